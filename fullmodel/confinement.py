"""Full weights ↔ coordinates, and whether learning stays on the manifold (Theorem 1 of 2607.11875).

    W = Σ_e θ_e B_e,     θ = G⁻¹ ⟨B_e, W⟩,     distance = ‖W − Σ_e θ_e B_e‖      (Frobenius)

B_e are the basis elements V_u S V_vᵀ (heads) and S V_vᵀ (output) in the exact frame, G their Gram
matrix. They are used block by block: W is a table of N × N blocks, one for each pair of paths.

Shapes: `E` basis elements, `U` paths, `S` selections, `N` tokens and places, `L` layers, `H` heads.
"""

from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count
from math import prod
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key

from fullmodel.frames import elements, exact_frame
from fullmodel.model import Transformer, Weights
from fullmodel.train import train, value_and_gradient
from imir import population, reduced
from imir.basis import Basis
from imir.flow import Optimizer, descend
from imir.prompts import Prompts, orbit, orbit_size
from imir.tasks.outcomes import assemble, draw, odds, sample
from imir.tasks.task import Task, copies_needed
from imir.ties import free


@partial(jax.jit, static_argnums=0)
def weights(basis: Basis, coefficients: Float[Array, " E"]) -> Weights:
    """Σ_e θ_e B_e: the full weights at a point of the manifold, in the coefficients' dtype."""
    heads, output = _places(basis)
    in_heads, in_output = jnp.split(coefficients, [len(heads)])
    S = jnp.asarray(_selections(basis), coefficients.dtype)
    U, N, d = _sizes(basis)
    zeros = partial(jnp.zeros, dtype=coefficients.dtype)
    theta = zeros((basis.layers, basis.heads, U, len(S), U)).at[tuple(heads.T)].set(in_heads)
    readout = zeros((len(S), U)).at[tuple(output.T)].set(in_output)
    key_query = jnp.einsum("lhusv,sij->lhuivj", theta, S).reshape(*theta.shape[:2], d, d)
    rows = jnp.einsum("sv,sij->ivj", readout, S).reshape(N, d)
    return Weights(key_query, zeros((d, d)).at[:N].set(rows))


@partial(jax.jit, static_argnums=0)
def inner_products(basis: Basis, weights: Weights) -> Float[Array, " E"]:
    """⟨B_e, W⟩ = Σ_ij S_ij (V_uᵀ W V_v)_ij, also the θ-gradient where W is a full gradient."""
    heads, output = _places(basis)
    S = jnp.asarray(_selections(basis), weights.readout.dtype)
    U, N, _ = _sizes(basis)
    blocks = weights.key_query.reshape(basis.layers, basis.heads, U, N, U, N)
    in_heads = jnp.einsum("lhuivj,sij->lhusv", blocks, S)
    in_output = jnp.einsum("ivj,sij->sv", weights.readout[:N].reshape(N, U, N), S)
    return jnp.append(in_heads[tuple(heads.T)], in_output[tuple(output.T)])


@partial(jax.jit, static_argnums=0)
def project(basis: Basis, weights: Weights) -> Float[Array, " E"]:
    """Coefficients of the nearest point of the manifold: θ = G⁻¹ ⟨B_e, W⟩."""
    products = inner_products(basis, weights)
    return jnp.linalg.solve(jnp.asarray(basis.gram, products.dtype), products)


@partial(jax.jit, static_argnums=0)
def off_span(basis: Basis, given: Weights) -> Weights:
    """What remains of full weights, or of their gradient, without its projection."""
    return jax.tree.map(jnp.subtract, given, weights(basis, project(basis, given)))


@partial(jax.jit, static_argnums=0)
def off_manifold(basis: Basis, given: Weights) -> Float[Array, ""]:
    """Frobenius distance of full weights from the manifold."""
    return optax.tree.norm(off_span(basis, given))


@partial(jax.jit, static_argnums=0)
def residual(basis: Basis, gradient: Weights) -> Float[Array, ""]:
    """Share of a gradient's norm that leaves the span, in the layer (or output) where it is largest.

    The share of the whole gradient is never larger.
    """
    off, whole = _part_norms(off_span(basis, gradient)), _part_norms(gradient)
    return jnp.max(jnp.where(whole > 0, off / whole, 0.0))


def _part_norms(given: Weights) -> Float[Array, " L+1"]:
    """Frobenius norm of each layer's key-query matrices, and of the readout."""
    layers = jnp.sum(given.key_query**2, axis=(1, 2, 3))
    return jnp.sqrt(jnp.append(layers, jnp.sum(given.readout**2)))


def _sizes(basis: Basis) -> tuple[int, int, int]:
    U, N = len(basis.paths(basis.layers + 1)), basis.configuration.size
    return U, N, U * N


@cache
def _selections(basis: Basis) -> Float[np.ndarray, "S N N"]:
    copy, node = elements(basis.configuration)
    same = (copy[:, None] == copy).astype(int)
    return basis.values[:, basis.configuration.table[same, node[:, None], node]]


@cache
def _places(basis: Basis) -> tuple[Int[np.ndarray, "E 5"], Int[np.ndarray, "E 2"]]:
    """Where the elements stand in tables (ℓ, h, u, S, v) of the heads and (S, v) of the output."""
    path = basis.paths(basis.layers + 1).index
    heads = [
        (e.layer - 1, e.head - 1, path(e.query_path), e.selection, path(e.key_path))
        for e in basis.elements
        if e.head is not None
    ]
    output = [(e.selection, path(e.key_path)) for e in basis.elements if e.head is None]
    return np.array(heads).reshape(-1, 5), np.array(output).reshape(-1, 2)


def at(basis: Basis, coefficients: Float[Array, " E"]) -> Transformer:
    """The full model at a point of the manifold."""
    frame = jax.tree.map(lambda x: x.astype(coefficients.dtype), exact_frame(basis))
    return Transformer(frame, weights(basis, coefficients))


_vocabulary_logits = jax.jit(reduced.vocabulary_logits, static_argnums=0)


# (a) The reduced model is the full one


class Agreement(NamedTuple):
    """Largest absolute differences between the reduced model and the full one."""

    logits: float
    gradient: float


def agreement(
    basis: Basis,
    coefficients: Float[Array, " E"],
    prompts: Prompts,
    loss: population.Loss = "cross_entropy",
) -> Agreement:
    """Logits of both models, and the reduced θ-gradient against ⟨B_e, full gradient⟩."""
    tie, model = free(basis), at(basis, coefficients)
    seen = population.fixed(tie, prompts).at()
    logits = _vocabulary_logits(tie, coefficients, prompts) - eqx.filter_jit(model)(prompts)
    here = jax.jit(jax.grad(lambda c: population.mean_loss(tie, c, seen, loss)))(coefficients)
    there = inner_products(basis, value_and_gradient(model, prompts, loss)[1])
    return Agreement(*(float(jnp.max(jnp.abs(x))) for x in (logits, here - there)))


# (b) The exact expected gradient stays in the span


def orbit_residual(
    basis: Basis, coefficients: Float[Array, " E"], prompts: Prompts
) -> Float[Array, ""]:
    """`residual` of the full gradient at a point of the manifold, averaged over an orbit.

    Zero to rounding by Theorem 1, where `basis` has the reachable shifts and `prompts` are an
    orbit of the task's symmetries (see `orbit_of`).
    """
    return residual(basis, gradient(basis, coefficients, prompts))


def gradient(basis: Basis, coefficients: Float[Array, " E"], prompts: Prompts) -> Weights:
    """Full gradient of the expected cross-entropy at a point of the manifold."""
    return value_and_gradient(at(basis, coefficients), prompts)[1]


def smallest(task: Task) -> Task:
    """The same template and classes, with as few blocks and tokens as a prompt needs.

    No distractors, each relevant block once and present, and a prime number (at least two) of
    copies in each class. With fresh tokens in the template all tokens are rare.
    """
    blocks = *task.template.relevant, *task.template.decoys
    task = replace(
        task,
        blocks=len(blocks),
        burstiness=1,
        context_fraction=1.0,
        rare_fraction=1.0 if any("*" in b.tokens for b in blocks) else task.rare_fraction,
        variability=min(task.variability, 0.5),
        rare_vocabulary=None,
    )
    common, rare = (_prime_from(copies_needed(task, q)) for q in (min(task.unlinked), 1.0))
    size, bins = common * task.motif_size, [share for share, _ in task.frequency_bins]
    sizes = {"frequency_bins": tuple((s, size) for s in bins)} if bins else {"vocabulary": size}
    return replace(task, rare_vocabulary=rare, **sizes)


def _prime_from(least: int) -> int:
    return next(p for p in count(max(2, least)) if all(p % x for x in range(2, p)))


def orbit_of(task: Task, key: Key[Array, ""], most: int = 1000) -> tuple[Prompts, bool]:
    """All images of a random prompt of the task under its symmetries, and whether it is all.

    Where there are more than `most`, a part of them with the same expected gradient.
    """
    prompt = jax.jit(lambda key: assemble(task, draw(key, task, odds(task))))(key)
    size = _orbit_size(task, prompt)
    images = orbit(prompt, task.classes, task.positions, size <= most)
    return images, len(images) == size


def _orbit_size(task: Task, prompt: Prompts) -> int:
    copy, node = (x[np.append(prompt.tokens, prompt.target)] for x in elements(task.tokens))
    relation = task.tokens.node_relation[node]
    used = [len(set(copy[relation == i])) for i in range(len(task.classes))]
    sizes = map(orbit_size, task.classes, used)
    return prod(sizes) * orbit_size(task.positions, len(set(prompt.block.tolist())))


# (c) Averages over random prompts approach the span


@dataclass(frozen=True)
class MonteCarlo:
    """Off-span share of gradients averaged over P random prompts: E r² = floor² + c²/P.

    `residuals` are root mean squares over `repeats` independent averages for each number of
    `samples`. `slope` of log r over log P is −1/2 on the manifold. `floor` is zero where the least
    squares of r² give a negative floor²; `floor_error` is the root of the standard error of floor².
    """

    samples: tuple[int, ...]
    residuals: tuple[float, ...]
    repeats: int
    slope: float
    slope_error: float
    floor: float
    floor_error: float


BATCH = 64


def monte_carlo(
    basis: Basis,
    coefficients: Float[Array, " E"],
    task: Task,
    key: Key[Array, ""],
    *,
    doublings: int = 6,
    repeats: int = 8,
) -> MonteCarlo:
    """Residual of the gradient averaged over 64, 128, … random prompts, up to `doublings` times.

    Residuals are shares of the norm of the mean over all prompts, so that r² is unbiased.
    """
    batches = 2 ** np.arange(doublings + 1)
    runs = np.repeat(batches, repeats)
    sums = _batch_sums(at(basis, coefficients), task, key, tuple(runs.tolist()))
    off = _off_norms(basis, sums) / runs
    whole = optax.tree.norm(jax.tree.map(lambda x: jnp.sum(x, axis=0) / runs.sum(), sums))
    return _fit(BATCH * batches, np.asarray(off / whole).reshape(-1, repeats))


_off_norms = jax.jit(
    lambda basis, given: jax.vmap(partial(off_manifold, basis))(given), static_argnums=0
)


@eqx.filter_jit
def _batch_sums(model: Transformer, task: Task, key, runs: tuple[int, ...]) -> Weights:
    """Sum of the gradients of each run's batches of random prompts."""

    def add(total, batch):
        run, key = batch
        prompts = sample(task, key, BATCH, odds(task))
        gradient = value_and_gradient(model, prompts)[1]
        return jax.tree.map(lambda x, g: x.at[run].add(g), total, gradient), None

    nothing = jax.tree.map(lambda x: jnp.zeros((len(runs), *x.shape), x.dtype), model.weights)
    batches = np.repeat(np.arange(len(runs)), runs), jax.random.split(key, sum(runs))
    return jax.lax.scan(add, nothing, batches)[0]


def _fit(samples: Int[np.ndarray, " P"], residuals: Float[np.ndarray, "P R"]) -> MonteCarlo:
    """Least squares of log r over log P, and of r² over 1/P with weights P²."""
    repeats = residuals.shape[1]
    P, r = np.repeat(samples, repeats).astype(float), residuals.ravel()
    (slope, _), slopes = np.polyfit(np.log(P), np.log(r), 1, cov=True)
    (_, square), squares = np.polyfit(1 / P, r**2, 1, w=P, cov=True)
    rms = np.sqrt(np.mean(residuals**2, axis=1))
    return MonteCarlo(
        tuple(samples.tolist()),
        tuple(rms.tolist()),
        repeats,
        float(slope),
        float(np.sqrt(slopes[0, 0])),
        float(np.sqrt(max(square, 0.0))),
        float(squares[1, 1] ** 0.25),
    )


# (d) Training in full weights is training in coordinates


class Trajectories(NamedTuple):
    """Largest difference of coordinates, and largest off-manifold share of the way travelled."""

    error: float
    drift: float


def trajectories(
    basis: Basis,
    start: Float[Array, " E"],
    prompts: Prompts,
    optimizer: Optimizer,
    steps: int,
    *,
    every: int = 1,
    loss: population.Loss = "cross_entropy",
) -> Trajectories:
    """Full-batch steps in full weights and in coordinates from the same point of the manifold.

    The full run is projected, and its distance from the manifold measured, after every so many
    steps. `prompts` must be an orbit: the manifold confines expected gradients only.
    """
    path = train(at(basis, start), prompts, optimizer, steps, every=every, loss=loss).weights
    here = descend(population.fixed(free(basis), prompts), start, optimizer, steps, loss=loss)
    there, away, travelled = _along(basis, path)
    error = np.max(np.abs(here.coordinates[::every] - there))
    return Trajectories(float(error), float(jnp.max(away[1:] / travelled[1:])))


@partial(jax.jit, static_argnums=0)
def _along(basis: Basis, path: Weights):
    """Coordinates, distance from the manifold and from the start, at each point of a path."""
    way = jax.tree.map(lambda x: x - x[:1], path)
    return jax.lax.map(
        lambda x: (project(basis, x[0]), off_manifold(basis, x[0]), optax.tree.norm(x[1])),
        (path, way),
    )
