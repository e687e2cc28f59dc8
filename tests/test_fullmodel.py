"""The full model against plain NumPy and against the reduced model; frames, losses, training."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import once, small_basis, softmax
from hypothesis import given, settings
from hypothesis import strategies as st

from fullmodel.confinement import at
from fullmodel.frames import Frame, exact_frame
from fullmodel.model import Transformer, Weights, cross_entropy, expected_loss, squared_error
from fullmodel.train import CHUNK, train, value_and_gradient
from imir.basis import Basis
from imir.flow import Optimizer
from imir.prompts import Prompts
from imir.reduced import vocabulary_logits
from imir.relations import Motif, Relation, cycle
from imir.ties import free

pytestmark = pytest.mark.usefixtures("float64")

EDGE, STAR = Motif(2, frozenset({(0, 1)})), Motif(3, frozenset({(1, 0), (2, 0)}))
MOTIFS = (cycle(1), cycle(2), cycle(3), EDGE, STAR)


def random_prompts(
    rng: np.random.Generator, basis: Basis, lengths: list[int], size: int
) -> Prompts:
    """Block lists of any template: random tokens in blocks on random slots and phases."""
    V, ring = sum(r.size for r in basis.classes), basis.positions.motif.size
    slots = np.array([rng.permutation(basis.positions.copies)[: len(lengths)] for _ in range(size)])
    phase = rng.integers(ring, size=slots.shape)
    index = np.concatenate([np.arange(m) for m in lengths])
    block, offset = (np.repeat(x, lengths, axis=1) for x in (slots, phase))
    tokens, target = rng.integers(V, size=block.shape), rng.integers(V, size=size)
    arrays = (tokens, block, (offset + index) % ring, target, rng.random(size))
    return Prompts(*map(jnp.asarray, arrays))


def random_model(rng: np.random.Generator, d: int = 6, layers: int = 2, heads: int = 2):
    """Nothing special: dense weights and a frame of Gaussian vectors for small_basis()."""

    def draw(*shape):
        return jnp.asarray(rng.normal(size=shape) / d**0.5)

    frame = Frame(draw(6, d), draw(15, d), draw(layers, heads, d, d), ring=5)
    return frame, Weights(draw(layers, heads, d, d), draw(d, d))


def plain_transformer(frame: Frame, weights: Weights, prompts: Prompts) -> np.ndarray:
    """Prompt by prompt and head by head, with all rows of all layers."""
    out = []
    for i in range(len(prompts)):
        place = prompts.block[i] * frame.ring + prompts.offset[i]
        X = np.asarray(frame.tokens)[prompts.tokens[i]] + np.asarray(frame.positions)[place]
        for W, V in zip(np.asarray(weights.key_query), np.asarray(frame.output_value), strict=True):
            written = np.zeros_like(X)
            for w, v in zip(W, V, strict=True):
                scores = np.where(np.tri(len(X), dtype=bool), X @ w @ X.T, -np.inf)
                written += softmax(scores) @ X @ v.T
            X = X + written
        out.append(np.asarray(frame.tokens) @ np.asarray(weights.readout) @ X[-1])
    return np.array(out)


# Frames


def test_onehot_frame_is_a_unit_vector_for_every_token_and_place():
    frame = exact_frame(small_basis(2, 2, frame="onehot"))
    d = 21 * 9
    embeddings = np.concatenate([frame.tokens, frame.positions])
    np.testing.assert_array_equal(embeddings, np.eye(21, d))
    assert frame.output_value.shape == (2, 2, d, d)


def test_centered_frame_takes_away_the_means_of_orbits_and_rings():
    edges = Relation("names", EDGE, 3)
    frame = exact_frame(small_basis(1, classes=(edges, Relation("rare", cycle(1), 4))))
    tokens, positions = np.asarray(frame.tokens), np.asarray(frame.positions)
    tokens_of = [[0, 2, 4], [1, 3, 5], [6, 7, 8, 9]]
    for orbit in tokens_of:
        expected = np.eye(25, 50)[orbit] - np.eye(25, 50)[orbit].mean(axis=0)
        np.testing.assert_allclose(tokens[orbit], expected, atol=1e-15)
    gram = np.kron(np.eye(3), np.eye(5) - 1 / 5)
    np.testing.assert_allclose(positions @ positions.T, gram, atol=1e-15)
    assert not np.any(tokens @ positions.T)


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (2, 1), (3, 1), (2, 2)])
def test_output_values_send_each_path_below_to_the_longer_path(layers: int, heads: int):
    basis = small_basis(layers, heads)
    V, paths = np.asarray(exact_frame(basis).output_value), basis.paths(layers + 1)
    blocks = V.reshape(layers, heads, len(paths), 21, len(paths), 21)
    for layer in range(layers):
        for head in range(heads):
            for v, to in enumerate(paths):
                for u, path in enumerate(paths):
                    below = not path or path[-1][0] <= layer
                    step = below and to == (*path, (layer + 1, head + 1))
                    np.testing.assert_array_equal(blocks[layer, head, v, :, u], step * np.eye(21))


def test_elements_are_those_of_the_look_up():
    basis = small_basis(classes=(Relation("names", EDGE, 3), Relation("rare", cycle(1), 4)))
    expected = once(basis.configuration.locate, jnp.arange(basis.configuration.size))
    np.testing.assert_array_equal(basis.configuration.elements, expected)


# The model


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (2, 3), (3, 2)])
def test_logits_are_those_of_a_plain_transformer(layers: int, heads: int):
    rng = np.random.default_rng(layers)
    frame, weights = random_model(rng, 6, layers, heads)
    prompts = random_prompts(rng, small_basis(), [2, 2, 1], 7)
    logits = once(lambda model, p: model(p), Transformer(frame, weights), prompts)
    np.testing.assert_allclose(logits, plain_transformer(frame, weights, prompts), atol=1e-13)


def test_losses_are_their_definitions():
    rng = np.random.default_rng(0)
    frame, weights = random_model(rng)
    prompts = random_prompts(rng, small_basis(), [2, 1], 9)
    logits, target = plain_transformer(frame, weights, prompts), np.asarray(prompts.target)
    nats = -np.log(softmax(logits)[np.arange(9), target])
    squares = 0.5 * np.sum((logits - np.eye(6)[target]) ** 2, axis=1)
    np.testing.assert_allclose(cross_entropy(jnp.asarray(logits), jnp.asarray(target)), nats)
    np.testing.assert_allclose(squared_error(jnp.asarray(logits), jnp.asarray(target)), squares)
    model = Transformer(frame, weights)
    for loss, values in (("cross_entropy", nats), ("squared_error", squares)):
        found = once(partial(expected_loss, loss=loss), model, prompts)
        np.testing.assert_allclose(found, prompts.weight @ values)


def test_an_unknown_loss_is_refused():
    frame, weights = random_model(np.random.default_rng(0))
    prompts = random_prompts(np.random.default_rng(0), small_basis(), [2, 1], 2)
    with pytest.raises(ValueError, match="`loss` must be one of cross_entropy, squared_error"):
        expected_loss(Transformer(frame, weights), prompts, "hinge")


def test_weights_must_fit_the_frame():
    frame, weights = random_model(np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"as readout an array of shape \(6, 6\)"):
        Transformer(frame, replace(weights, readout=weights.readout[:5]))
    with pytest.raises(ValueError, match=r"key_query .* dtype float64, but has .* float32"):
        Transformer(frame, replace(weights, key_query=jnp.asarray(weights.key_query, "float32")))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_dtype_throughout_under_strict_promotion(dtype: str):
    rng = np.random.default_rng(0)
    frame, weights = jax.tree.map(lambda x: x.astype(dtype), random_model(rng))
    prompts = random_prompts(rng, small_basis(), [2, 1], 3)
    with jax.numpy_dtype_promotion("strict"):
        shapes = jax.eval_shape(value_and_gradient, Transformer(frame, weights), prompts)
    assert {x.dtype for x in jax.tree.leaves(shapes)} == {jnp.dtype(dtype)}


# The reduced model is the full one


@st.composite
def cases(draw):
    k = draw(st.integers(1, 3))
    relations = st.builds(lambda m, c: (m, c), st.sampled_from(MOTIFS), st.integers(1, 3))
    drawn = draw(st.lists(relations, min_size=1, max_size=2))
    classes = tuple(Relation(f"class{i}", m, c) for i, (m, c) in enumerate(drawn))
    lengths = draw(st.lists(st.integers(1, k), min_size=1, max_size=3))
    layers, heads = draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)]))
    positions = Relation("position", cycle(2 * k + 1), 3)
    frame = draw(st.sampled_from(["centered", "onehot"]))
    return Basis(classes, positions, k, layers, heads, frame), lengths


@given(cases(), st.sampled_from([32, 64, 64]), st.integers(0, 99))
@settings(max_examples=6, deadline=None)
def test_reduced_logits_are_the_full_ones(case: tuple, bits: int, seed: int):
    basis, lengths = case
    rng = np.random.default_rng(seed)
    with jax.enable_x64(bits == 64):
        prompts = random_prompts(rng, basis, lengths, 3)
        theta = jnp.asarray(0.5 * rng.normal(size=len(basis.elements)))
        full = once(lambda model, p: model(p), at(basis, theta), prompts)
        reduced = once(partial(vocabulary_logits, free(basis)), theta, prompts)
    assert full.dtype == reduced.dtype == jnp.dtype(f"float{bits}")
    np.testing.assert_allclose(reduced, full, rtol=0, atol=1e-12 if bits == 64 else 1e-4)


# Training


def test_gradients_of_many_prompts_are_sums_over_chunks():
    rng = np.random.default_rng(1)
    model = Transformer(*random_model(rng))
    prompts = random_prompts(rng, small_basis(), [2, 1], 2 * CHUNK + 3)
    value, gradient = value_and_gradient(model, prompts)

    def at_once(weights: Weights):
        frame = Frame(model.tokens[...], model.positions[...], model.output_value[...], 5)
        return expected_loss(Transformer(frame, weights), prompts)

    expected_value, expected = once(jax.value_and_grad(at_once), model.weights)
    np.testing.assert_allclose(value, expected_value, rtol=1e-13)
    for x, y in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-13)


def test_training_is_momentum_on_the_gradient():
    rng = np.random.default_rng(2)
    frame, weights = random_model(rng)
    prompts = random_prompts(rng, small_basis(), [2, 1], 5)
    model = Transformer(frame, weights)
    run = train(model, prompts, Optimizer("momentum", 0.1, 0.8, weight_decay=0.01), 4, every=2)
    W, m = np.asarray(weights.key_query), 0.0
    R, r = np.asarray(weights.readout), 0.0
    for step in range(4):
        if step % 2 == 0:
            np.testing.assert_allclose(run.weights.readout[step // 2], R, atol=1e-14)
        here = Weights(jnp.asarray(W), jnp.asarray(R))
        value, gradient = value_and_gradient(Transformer(frame, here), prompts)
        np.testing.assert_allclose(run.losses[step], value)
        m = 0.8 * m + np.asarray(gradient.key_query) + 0.01 * W
        r = 0.8 * r + np.asarray(gradient.readout) + 0.01 * R
        W, R = W - 0.1 * m, R - 0.1 * r
    assert run.losses.shape == (4,)
    np.testing.assert_allclose(run.weights.readout[-1], R, atol=1e-14)
    np.testing.assert_allclose(np.asarray(run.weights.key_query)[-1], W, atol=1e-14)
    np.testing.assert_array_equal(model.weights.readout, weights.readout)


def test_fresh_batches_come_from_the_key():
    rng = np.random.default_rng(3)
    model = Transformer(*random_model(rng))
    pool = random_prompts(rng, small_basis(), [2, 1], 50)

    def draw(key):
        chosen = jax.random.choice(key, 50, (4,))
        return jax.tree.map(lambda x: x[chosen], pool)

    first, again, other = (
        train(model, draw, Optimizer("sgd"), 6, key=jax.random.key(seed)).losses
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert np.all(first != other)
    assert len(set(first.tolist())) == 6


def test_training_refuses_what_does_not_fit():
    rng = np.random.default_rng(3)
    model = Transformer(*random_model(rng))
    prompts = random_prompts(rng, small_basis(), [2, 1], 5)
    with pytest.raises(ValueError, match="`steps` must be a positive multiple of 3, but is 4"):
        train(model, prompts, Optimizer("sgd"), 4, every=3)
    with pytest.raises(ValueError, match="`key` must be given"):
        train(model, lambda key: prompts, Optimizer("sgd"), 4)
