"""Every architecture against a plain forward pass, and the frames that it is built on."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf, softmax

from fullmodel.architecture import Architecture
from fullmodel.confinement import lifted, weights
from fullmodel.frames import exact_frame, frame_of
from fullmodel.model import Transformer, expected_loss, repeated
from fullmodel.train.initial import beside, generic, on_manifold
from imir.basis import basis_of
from imir.prompts import Prompts
from imir.tasks.outcomes import odds, sample
from imir.tasks.task import Task

TASK = Task("recall", 3, burstiness=2, rare_fraction=0.5, vocabulary=10, rare_vocabulary=9)
ANY: dict[str, Any] = {
    "width": 24,
    "embedding": "gaussian",
    "positions": "sinusoidal",
    "output_value": "orthogonal",
}
SPLIT: dict[str, Any] = {"key_query": "factorised", "head_size": 6}
OPTIONS: dict[str, dict[str, Any]] = {
    "exact": {},
    "wider than exact": {"width": 240},
    "three layers": {"layers": 3, **ANY},
    "two heads": {"heads": 2, **ANY},
    "sinusoidal": {**ANY, "embedding": "sinusoidal"},
    "learned": {**ANY, "embedding": "learned"},
    "one-hot tokens": {**ANY, "width": 48, "embedding": "exact"},
    "absolute": {**ANY, "positions": "absolute"},
    "rotary": {**ANY, **SPLIT, "positions": "rotary", "heads": 2},
    "factorised": {**ANY, "key_query": "factorised", "heads": 2},
    "learned maps": {**ANY, "output_value": "learned"},
    "concatenated": {**ANY, "stream": "concatenated", "output_value": "exact"},
    "concatenated and rotated": {**ANY, "stream": "concatenated"},
    "layer norm before": {**ANY, "norm": "layer"},
    "layer norm after": {**ANY, "norm": "layer", "norm_place": "after"},
    "RMS norm before": {**ANY, "norm": "rms", "feed_forward": 7},
    "RMS norm after": {**ANY, "norm": "rms", "norm_place": "after", "feed_forward": 7},
    "feed-forward": {**ANY, "feed_forward": 7},
}


def built(architecture: Architecture, seed: int = 0, **options) -> Transformer:
    """A model whose gains are not one."""
    basis = basis_of(TASK, architecture.layers, architecture.heads)
    frame = frame_of(basis, architecture, jax.random.key(seed))
    found = generic(frame, architecture, jax.random.key(seed + 1))
    return Transformer(frame, beside(found, jax.random.key(2), 0.3), architecture, **options)


def prompts_of(task: Task = TASK, size: int = 5) -> Prompts:
    return sample(task, jax.random.key(9), size, odds(task))


def plain(model: Transformer, tokens, block, offset) -> np.ndarray:
    """Logits at each place of a prompt, with loops over places and heads."""
    a = model.architecture
    w = {name: np.asarray(x) for name, x in vars(model.weights).items() if x is not None}
    E, P, V = (np.asarray(getattr(model, n)[...]) for n in ("tokens", "positions", "output_value"))
    n = len(tokens)
    place = np.arange(n) if a.positions == "absolute" else block * model.ring + offset
    X = E[tokens] + P[place]
    which = iter(range(10))

    def norm(X, i):
        if a.norm == "none":
            return X
        centred = X - X.mean(-1, keepdims=True) if a.norm == "layer" else X
        return w["gains"][i] * centred / np.sqrt(np.mean(centred**2, -1, keepdims=True) + 1e-5)

    def turned(x, i):
        half = len(x) // 2
        z = (x[:half] + 1j * x[half:]) * np.exp(1j * i * 10000.0 ** (-np.arange(half) / half))
        return np.concatenate([z.real, z.imag])

    def score(layer, head, X, i, j):
        if a.key_query == "merged":
            return X[i] @ w["key_query"][layer, head] @ X[j]
        q, k = X[i] @ w["query"][layer, head], X[j] @ w["key"][layer, head]
        if a.positions == "rotary":
            q, k = turned(q, i), turned(k, j)
        return q @ k / np.sqrt(len(q))

    def attention(layer, X):
        out = np.zeros_like(X)
        for i in range(n):
            for head in range(a.heads):
                A = softmax([score(layer, head, X, i, j) for j in range(i + 1)])
                out[i] += V[layer, head] @ (A @ X[: i + 1])
        return out

    def hidden(layer, X):
        z = X @ w["into"][layer]
        return 0.5 * z * (1 + erf(z / np.sqrt(2))) @ w["out_of"][layer]

    for layer in range(a.layers):
        for part in (attention, hidden) if a.feed_forward else (attention,):
            i = next(which)
            if a.norm_place == "before":
                X = X + part(layer, norm(X, i))
            else:
                X = norm(X + part(layer, X), i)
    X = norm(X, -1) if a.norm_place == "before" else X
    return X @ w["readout"].T @ E.T


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_against_a_plain_forward_pass(name: str):
    with jax.enable_x64(True):
        model, prompts = built(Architecture(**OPTIONS[name])), prompts_of()
        rows = zip(*map(np.asarray, (prompts.tokens, prompts.block, prompts.offset)), strict=True)
        wanted = np.array([plain(model, *row) for row in rows])
        np.testing.assert_allclose(model.logits(prompts), wanted, rtol=0, atol=1e-11)
        np.testing.assert_allclose(model(prompts), wanted[:, -1], rtol=0, atol=1e-11)


def test_the_default_is_the_theorems_model():
    with jax.enable_x64(True):
        basis = basis_of(TASK, 2, 1)
        frame, exact = frame_of(basis, Architecture(), jax.random.key(0)), exact_frame(basis)
        for name in ("tokens", "positions", "output_value"):
            np.testing.assert_array_equal(getattr(frame, name), getattr(exact, name))
        theta = jax.random.normal(jax.random.key(1), (len(basis.elements),))
        found, wanted = lifted(basis, exact, theta), weights(basis, theta)
        for here, there in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(here, there, rtol=0, atol=1e-14)


def test_sinusoidal_places_of_a_block_are_those_of_the_exact_frame():
    with jax.enable_x64(True):
        basis, K = basis_of(TASK, 2, 1), basis_of(TASK, 2, 1).positions.motif.size
        wide = Architecture(width=4 * (K - 1), embedding="gaussian", positions="sinusoidal",
                            output_value="orthogonal")  # fmt: skip
        rows = frame_of(basis, wide, jax.random.key(0)).positions.reshape(-1, K, wide.width)
        gram = jnp.einsum("bid,bjd->bij", rows, rows)
        wanted = np.broadcast_to(np.eye(K) - 1 / K, gram.shape)
        np.testing.assert_allclose(gram, wanted, rtol=0, atol=1e-12)


def test_output_value_maps_are_rotations():
    maps = built(Architecture(**ANY)).output_value[...][0, 0]
    np.testing.assert_allclose(maps @ maps.T, np.eye(24), atol=1e-5)


def test_bfloat16_products_are_near_and_not_equal():
    short, long = (built(Architecture(**ANY), products=p)(prompts_of()) for p in ("bfloat16", None))
    assert short.dtype == long.dtype == jnp.float32
    difference = np.max(np.abs(np.asarray(short - long))) / np.max(np.abs(long))
    assert 1e-5 < difference < 0.05


def test_places_whose_next_token_the_context_tells():
    tokens = jnp.array([[4, 5, 1, 2, 4, 5, 4], [1, 2, 1, 3, 1, 2, 1]])
    same = jnp.zeros_like(tokens)
    told, following = repeated(Prompts(tokens, same, same, jnp.array([5, 2]), jnp.ones(2) / 2))
    assert np.asarray(told).astype(int).tolist() == [[0, 0, 0, 0, 1, 0, 1], [0, 0, 0, 0, 1, 1, 1]]
    assert following[:, -1].tolist() == [5, 2]


def test_the_loss_at_every_predictable_place():
    with jax.enable_x64(True):
        model, prompts = built(Architecture(**ANY, predict="repeated")), prompts_of()
        told, following = (np.asarray(x) for x in repeated(prompts))
        surprise = -jax.nn.log_softmax(model.logits(prompts))
        each = np.take_along_axis(np.asarray(surprise), following[..., None], 2)[..., 0]
        wanted = np.mean([np.mean(row[mask]) for row, mask in zip(each, told, strict=True)])
        assert expected_loss(model, prompts) == pytest.approx(wanted, rel=1e-12)
        assert told.sum() > len(told)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 0}, "`layers` must be at least 1, but is 0"),
        ({"norm": "batch"}, "`norm` must be one of none, layer, rms, but is batch"),
        ({**ANY, "positions": "rotary"}, "`key_query` must be factorised with rotary"),
        ({"embedding": "gaussian"}, "`positions` must be inexact with gaussian tokens"),
        ({**ANY, "width": None}, "`width` must be given with gaussian tokens"),
        ({"head_size": 4}, "`head_size` must be left out with merged heads"),
        ({**ANY, "key_query": "factorised", "heads": 5}, "`heads` must be a divisor of .* 24"),
        ({**ANY, "stream": "concatenated", "output_value": "learned"}, "must be exact or orth"),
        ({**ANY, **SPLIT, "positions": "rotary", "head_size": 3}, "`head_size` must be even"),
    ],
)
def test_contradictory_options_are_refused(options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        Architecture(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 100}, "`width` must be at least 156 for the 39 tokens and places"),
        ({**ANY, "output_value": "exact"}, "`width` must be at least 156"),
        ({**ANY, "embedding": "exact"}, "`width` must be at least 39"),
        ({**ANY, "stream": "concatenated", "width": 30}, "`width` must be a multiple of 4 copies"),
        ({**ANY, "width": 25}, "`width` must be a multiple of 2 for sinusoidal"),
    ],
)
def test_a_width_that_does_not_fit_names_the_one_that_does(options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        frame_of(basis_of(TASK, 2, 1), Architecture(**options), jax.random.key(0))


def test_a_start_on_the_manifold_needs_merged_matrices():
    model = built(Architecture(**ANY, **SPLIT))
    with pytest.raises(ValueError, match="`key_query` must be merged to start on the manifold"):
        on_manifold(model.weights, model.weights)


def test_weights_must_be_those_of_the_architecture():
    model, basis = built(Architecture(**ANY)), basis_of(TASK, 2, 1)
    frame = frame_of(basis, Architecture(**ANY), jax.random.key(0))
    with pytest.raises(ValueError, match="`weights` must have as gains an array of shape"):
        Transformer(frame, model.weights, Architecture(**ANY, norm="rms"))
    extra = replace(model.weights, into=jnp.ones((2, 24, 3)))
    with pytest.raises(ValueError, match="`weights` must have as into none, but has an array"):
        Transformer(frame, extra, Architecture(**ANY))
    with pytest.raises(ValueError, match="`architecture` must have the frame's 2 layers of 1"):
        Transformer(frame, model.weights, Architecture(**ANY, layers=3))
