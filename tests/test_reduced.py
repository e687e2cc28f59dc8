"""The forward pass in coordinates against dense matrices."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import UNOPTIMISED, as_jax, by_parts, draw, once, plain_logits, small_basis, softmax

from imir.basis import Basis, Frame, basis_of
from imir.canonical import canonical
from imir.prompts import Prompts
from imir.readout import cross_entropy, log_partition, probability, squared_error, target_logit
from imir.reduced import View, compressed, logits, stacked, view, vocabulary_logits
from imir.reduced.attention import dense, first_attention, left, right
from imir.reduced.kernels import background, everywhere, used_kernels
from imir.relations import Motif, Relation, cycle
from imir.tasks.enumeration import enumerate_prompts
from imir.tasks.outcomes import odds
from imir.tasks.task import Task
from imir.ties import Tie, free, tie

CASES = json.loads((Path(__file__).parent / "data" / "dense_cases.json").read_text())
MOTIFS = {"cycle": cycle, "edge": lambda _: Motif(2, frozenset({(0, 1)}))}


def basis_of_case(case: dict[str, Any]) -> Basis:
    classes = tuple(
        Relation(f"class{i}", MOTIFS[c["motif"]](c["size"]), c["copies"])
        for i, c in enumerate(case["classes"])
    )
    positions = Relation("position", cycle(case["ring"]), case["slots"])
    shape = (case["block_size"], case["layers"], case["heads"])
    return Basis(classes, positions, *shape, frame="centered", shifts="all")


def selection_name(symbol: str, classes: int) -> str:
    """`class0:C^1` → `C[class0]`, `M^1` → `M`."""
    relation, _, orbital = symbol.rpartition(":")
    short = {"C^0": "I", "C^1": "C", "M^1": "M"}.get(orbital, orbital)
    return f"{short}[{relation}]" if relation and classes > 1 else short


def element_name(element: dict[str, Any], classes: int) -> str:
    def path(steps: list[list[int]]) -> str:
        return "(" + ",".join(f"{layer}.{head}" for layer, head in steps) + ")"

    selection = selection_name(element["selection"], classes)
    if element["layer"] == "output":
        return f"output {selection} {path(element['source_path'])}"
    place = f"layer{element['layer']}.head{element['head']}"
    return f"{place} {path(element['query_path'])} {selection} {path(element['key_path'])}"


def tie_of_case(case: dict[str, Any]) -> Tie:
    """The case's elements, in its order, as coordinates."""
    names = [element_name(e, len(case["classes"])) for e in case["elements"]]
    assert len(set(names)) == len(names)
    return tie(basis_of_case(case), {name: [name] for name in names})


def prompts_of_case(case: dict[str, Any]) -> Prompts:
    """The case's prompt once for each token of the vocabulary as the target."""
    size = len(case["logits"])
    tokens, block, offset = (
        jnp.tile(jnp.array(case[name]), (size, 1)) for name in ("tokens", "block", "offset")
    )
    target = jnp.arange(size)
    return Prompts(tokens, block, offset, target, (target == case["target"]).astype(float))


def results(tied: Tie, coordinates: jax.Array, prompts: Prompts) -> dict[str, jax.Array]:
    """Everything that the reduced model says about prompts, compiled together."""

    def loss(c, seen):
        out = logits(tied, c, seen)
        return prompts.weight @ cross_entropy(out), out

    seen = view(tied, prompts)
    (value, out), gradient = jax.value_and_grad(loss, has_aux=True)(coordinates, seen)
    return {
        "loss": value,
        "gradient": gradient,
        "logits": target_logit(out),
        "log_partition": log_partition(out),
        "probability": probability(out),
        "squared_error": squared_error(out),
    }


@cache
def compiled(tied: Tie, tokens: int, dtype: np.dtype) -> Callable:
    """`results` for a tie; cases of one shape share it."""
    coordinates, row = jnp.ones(len(tied.names), dtype), jnp.zeros(tokens, int)
    size = sum(relation.size for relation in tied.basis.classes)
    rows = jnp.tile(row, (size, 1))
    prompts = Prompts(rows, rows, rows, jnp.arange(size), jnp.ones(size, dtype))
    lowered = jax.jit(lambda *a: results(tied, *a)).lower(coordinates, prompts)
    return lowered.compile(compiler_options=UNOPTIMISED)


def run_case(case: dict[str, Any]) -> dict[str, np.ndarray]:
    theta, prompts = jnp.array(case["theta"]), prompts_of_case(case)
    run = compiled(tie_of_case(case), prompts.length, theta.dtype)
    return jax.tree.map(np.asarray, run(theta, prompts))


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_dense_cases_agree_in_logits_loss_and_gradient(case: dict[str, Any], float64):
    found, out = run_case(case), np.array(case["logits"])
    for name in ("logits", "loss", "gradient"):
        assert np.allclose(found[name], case[name], rtol=0, atol=1e-12)
    assert found["loss"].dtype == np.float64
    expected = {
        "log_partition": np.full(len(out), np.log(np.exp(out).sum())),
        "probability": softmax(out),
        "squared_error": ((out - np.eye(len(out))) ** 2).sum(1) / 2,
    }
    for name, values in expected.items():
        assert np.allclose(found[name], values, rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_dense_cases_agree_in_inner_products_of_selections(case: dict[str, Any]):
    basis, classes = basis_of_case(case), len(case["classes"])
    place = {s.name: i for i, s in enumerate(basis.selections)}
    for pair, value in case["selection_gram"].items():
        a, b = (place[selection_name(symbol, classes)] for symbol in pair.split("|"))
        assert basis.selection_gram[a, b] == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize("number", [4, 12])
def test_single_precision_agrees(number: int, float32):
    case = CASES[number]
    found = run_case(case)
    assert found["loss"].dtype == np.float32
    for name in ("logits", "loss", "gradient"):
        assert np.allclose(found[name], case[name], rtol=0, atol=1e-5)


# Explicit residual streams


def raw_selections(frame: str) -> dict[str, np.ndarray]:
    """0/1 matrices on six tokens (three pairs) and fifteen places (three rings of five)."""
    tokens, places = np.arange(21) < 6, np.arange(21) >= 6
    S = {f"M^{j}": np.kron(np.eye(3), np.roll(np.eye(5), j, axis=0)) for j in (-1, 0, 1)}
    S = {name: np.pad(m, ((6, 0), (6, 0))) for name, m in S.items()}
    S["M"] = S.pop("M^1")
    for name, turn in {"I": np.eye(2), "C": 1 - np.eye(2)}.items():
        S[name] = np.pad(np.kron(np.eye(3), turn), ((0, 15), (0, 15)))
    if frame == "onehot":
        S["rest[pairs]"] = np.outer(tokens, tokens) - S["I"] - S["C"]
        S["rest[position]"] = np.pad(np.kron(1 - np.eye(3), np.ones((5, 5))), ((6, 0), (6, 0)))
        S["all[pairs,position]"] = np.outer(tokens, places).astype(float)
        S["all[position,pairs]"] = np.outer(places, tokens).astype(float)
    return S


def embeddings(frame: str) -> np.ndarray:
    """One-hot, or minus the mean of all tokens and of each ring."""
    means = np.zeros((21, 21))
    means[:6, :6] = 1 / 6
    means[6:, 6:] = np.kron(np.eye(3), np.full((5, 5), 1 / 5))
    return np.eye(21) - (means if frame == "centered" else 0)


def transformer(basis: Basis, theta: np.ndarray, prompts: Prompts) -> np.ndarray:
    """Residual streams with a copy of the embedding space for each path, and W as one matrix."""
    paths, N = basis.paths(basis.layers + 1), 21
    E, S = embeddings(basis.frame), raw_selections(basis.frame)
    place, d = {path: i * N for i, path in enumerate(paths)}, N * len(paths)
    steps = [(layer, h) for layer in range(1, basis.layers + 1) for h in range(1, basis.heads + 1)]
    W, V = ({step: np.zeros((d, d)) for step in steps} for _ in range(2))
    R = np.zeros((d, d))
    for e, coefficient in zip(basis.elements, theta, strict=True):
        u, v = place[e.query_path], place[e.key_path]
        matrix = R if e.head is None else W[e.layer, e.head]
        matrix[u : u + N, v : v + N] += coefficient * S[basis.selections[e.selection].name]
    for path in paths[1:]:
        a, b = place[path], place[path[:-1]]
        V[path[-1]][a : a + N, b : b + N] = np.eye(N)
    out = []
    parts = map(np.asarray, (prompts.tokens, prompts.block, prompts.offset))
    for tokens, block, offset in zip(*parts, strict=True):
        X = np.pad(E[tokens] + E[6 + 5 * block + offset], ((0, 0), (0, d - N)))
        hidden = np.where(np.tri(len(tokens)), 0, -np.inf)
        for layer in range(1, basis.layers + 1):
            heads = [(W[step], V[step]) for step in steps if step[0] == layer]
            X = X + sum(softmax(X @ w @ X.T + hidden) @ X @ v.T for w, v in heads)
        out.append(np.pad(E[:6], ((0, 0), (0, d - N))) @ R @ X[-1])
    return np.array(out)


def some_prompts() -> Prompts:
    return Prompts(
        tokens=jnp.array([[0, 1, 4, 2, 0], [3, 3, 5, 0, 2]]),
        block=jnp.array([[2, 2, 0, 0, 1], [1, 0, 0, 2, 2]]),
        offset=jnp.array([[4, 0, 2, 3, 1], [3, 0, 1, 2, 3]]),
        target=jnp.array([1, 4]),
        weight=jnp.array([0.3, 0.7]),
    )


@pytest.mark.parametrize("frame", ["centered", "onehot"])
@pytest.mark.parametrize(("layers", "heads"), [(1, 2), (2, 1)])
def test_an_explicit_transformer_has_the_same_logits(layers, heads, frame, float64):
    basis = small_basis(layers, heads, frame=frame, shifts="all")
    theta = np.random.default_rng(layers + heads).normal(size=len(basis.elements))
    prompts = some_prompts()
    expected, found = (
        transformer(basis, theta, some_prompts()),
        once(lambda *a: vocabulary_logits(free(basis), *a), jnp.array(theta), prompts),
    )
    assert np.ptp(expected) > 1
    assert np.allclose(found, expected, rtol=0, atol=1e-12)
    # The plain version that other tests rely on is the same.
    assert np.allclose(plain_logits(basis, theta, some_prompts()), expected, rtol=0, atol=1e-12)


# Populations of prompts


def mean_losses(tied: Tie, coordinates: jax.Array, seen: View) -> jax.Array:
    out = logits(tied, coordinates, seen)
    return jnp.array([seen.weight @ cross_entropy(out), seen.weight @ squared_error(out)])


def tie_named(name: str, task: Task) -> Tie:
    return canonical(task) if name == "canonical" else free(basis_of(task, 2, 1))


@pytest.mark.parametrize(("template", "kind"), [("retrieval", "canonical"), ("recall", "free")])
def test_compressed_views_give_the_same_losses_and_gradients(template: str, kind: str, float64):
    """Both agree with all logits of a vocabulary most of which no prompt shows."""
    blocks = {"recall": 2, "retrieval": 3}[template]
    task = Task(
        template,
        blocks=blocks,
        context_fraction=0.6,
        rare_fraction=0.3,
        variability=0.3,
        vocabulary=60,
    )
    tied = tie_named(kind, task)
    prompts = enumerate_prompts(task, tied).weighted(odds(task))
    plain = once(lambda p: view(tied, p), prompts)
    short = compressed(plain)
    assert len(short.kernels) < len(plain.kernels)
    assert short.counts.shape[1] < plain.counts.shape[1]
    assert np.allclose(short.counts.sum(1), 120)
    theta = jnp.array(np.random.default_rng(3).normal(size=len(tied.names)))

    def both(c, seen):
        losses = mean_losses(tied, c, seen)
        return losses.sum(), losses

    gradient = jax.value_and_grad(both, has_aux=True)
    ((_, losses), slope), ((_, again), slope_again) = (
        once(gradient, theta, seen) for seen in (plain, short)
    )
    assert np.allclose(again, losses, rtol=1e-13)
    assert np.allclose(slope_again, slope, rtol=0, atol=1e-12)
    listed = jax.tree.map(np.asarray, prompts)
    out = plain_logits(tied.basis, tied.matrix @ np.asarray(theta), listed)
    unit = np.eye(120)[listed.target]
    assert losses[0] == pytest.approx(listed.weight @ by_parts(tied, np.asarray(theta), listed))
    assert losses[1] == pytest.approx(listed.weight @ ((out - unit) ** 2).sum(1) / 2)


@pytest.mark.parametrize("frame", ["centered", "onehot"])
def test_first_attention_is_the_softmax_of_its_scores(frame: Frame, float64):
    """As a matrix, and in products from both sides; with scores far apart too."""
    task = Task("recall", blocks=3, rare_fraction=0.4, vocabulary=20)
    tied = free(basis_of(task, 2, 1, frame))
    prompts = as_jax(draw(task, 4))
    kernels = compressed(once(lambda p: view(tied, p), prompts)).kernels
    assert kernels.near.shape[-1] < prompts.length
    B, n = jnp.asarray(background(tied)[0]), prompts.length
    generator = np.random.default_rng(1)
    c = jnp.array(generator.normal(size=len(used_kernels(tied)[0]))) * 30
    x = jnp.array(generator.normal(size=(2, n)))

    def products(kernels):
        A = first_attention(c, B, kernels)
        return dense(A), left(x, A), right(x, A)

    found = once(jax.vmap(products), kernels)
    K = np.einsum("pio,sou,pju->psij", kernels.orbits, B, kernels.asked)
    K += np.asarray(everywhere(kernels))[:, : len(c)].swapaxes(2, 3)
    scores = np.einsum("s,psij->pij", c, K) + np.where(np.tri(n), 0, -np.inf)
    A = np.array([softmax(rows) for rows in scores])
    for result, expected in zip(found, (A, x @ A, x @ A.swapaxes(1, 2)), strict=True):
        assert np.allclose(result, expected, rtol=0, atol=1e-12)


def test_stacked_views_keep_their_losses(float64):
    """Views with other numbers of candidates and of near places, side by side."""
    task = Task("recall", blocks=3, rare_fraction=0.4, vocabulary=20)
    tied = free(basis_of(task, 3, 1, "onehot"))
    prompts = as_jax(draw(task, 4))
    parts = [jax.tree.map(lambda x, i=i: x[i : i + 2], prompts) for i in (0, 2)]
    plain = once(lambda p: view(tied, p), prompts)
    views = [compressed(once(lambda p: view(tied, p), part)) for part in parts]
    theta = jnp.array(np.random.default_rng(2).normal(size=len(tied.names)))
    each, together = (
        once(lambda c, seen: cross_entropy(logits(tied, c, seen)), theta, seen)
        for seen in (plain, stacked(views))
    )
    assert np.allclose(together, each, rtol=1e-12)


def test_gradients_are_finite_differences(float64):
    tied = free(small_basis(2, 1, frame="onehot"))
    seen = once(lambda p: view(tied, p), some_prompts())
    generator, h = np.random.default_rng(5), 1e-4
    theta = generator.normal(size=len(tied.names))
    directions = generator.normal(size=(4, len(theta)))
    points = np.concatenate([theta + h * directions, theta - h * directions])

    def both(points, centre):
        along = jax.vmap(lambda c: mean_losses(tied, c, seen))(points)
        return along, jax.jacrev(lambda c: mean_losses(tied, c, seen))(centre)

    values, gradient = map(np.asarray, once(both, jnp.array(points), jnp.array(theta)))
    slopes = (values[:4] - values[4:]) / (2 * h)
    assert np.abs(slopes).min() > 1e-3
    assert np.allclose(slopes, directions @ gradient.T, rtol=0, atol=1e-6)


def test_a_tie_is_the_sum_of_its_members(float64):
    basis = small_basis(frame="onehot")
    groups = {
        "head": ["layer1.head1 () M ()", "layer1.head1 () I ()", "layer2.head1 (1.1) I ()"],
        "out": ["output I (2.1)", "output C (2.1)", "output C ()"],
    }
    tied, prompts = tie(basis, groups), some_prompts()
    coordinates = np.array([1.3, -0.7])
    found = once(lambda *a: vocabulary_logits(tied, *a), jnp.array(coordinates), prompts)
    expected = transformer(basis, tied.matrix @ coordinates, some_prompts())
    assert np.allclose(found, expected, rtol=0, atol=1e-12)


def test_views_and_logits_hold_no_vocabulary(float64):
    """The size of every array stays the same while the vocabulary grows a thousandfold."""

    def sizes(vocabulary: int) -> int:
        task = Task("recall", blocks=3, vocabulary=vocabulary)
        tied = free(basis_of(task, 2, 1))
        prompts = jax.tree.map(lambda x: x[:1], some_prompts())
        lowered = jax.jit(lambda c: log_partition(logits(tied, c, view(tied, prompts)))).lower(
            jnp.ones(len(tied.names))
        )
        memory: Any = lowered.compile(compiler_options=UNOPTIMISED).memory_analysis()
        return memory.temp_size_in_bytes

    assert sizes(2000) == sizes(2_000_000) < 10**6
