"""Four measures of confinement (arXiv 2607.11875, Theorem 1).

(a) `agreement`: the reduced model is the full one on the manifold;
(b) `orbit_residual`: the exact expected gradient stays in the span;
(c) `monte_carlo`: gradients averaged over random prompts approach the span as P^(−1/2);
(d) `trajectories`: training in full weights is training in coordinates.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from fullmodel.confinement.projection import at, inner_products, off_manifold, project, residual
from fullmodel.model import Transformer, Weights
from fullmodel.train import train, value_and_gradient
from imir import population, reduced
from imir.basis import Basis
from imir.flow import Optimizer, descend
from imir.prompts import ONCE, Prompts
from imir.ties import free


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
    logits = reduced_logits(tie, coefficients, prompts) - _logits(model, prompts)
    here = _theta_gradient(tie, coefficients, seen, loss)
    there = inner_products(basis, _gradient(model, prompts, loss)[1])
    return Agreement(*(float(jnp.max(jnp.abs(x))) for x in (logits, here - there)))


reduced_logits = jax.jit(reduced.vocabulary_logits, static_argnums=0, compiler_options=ONCE)
_logits = jax.jit(Transformer.__call__, compiler_options=ONCE)
_theta_gradient = jax.jit(
    jax.grad(population.mean_loss, argnums=1), static_argnums=(0, 3), compiler_options=ONCE
)


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
    return _gradient(at(basis, coefficients), prompts)[1]


_gradient = jax.jit(value_and_gradient, static_argnums=2, compiler_options=ONCE)


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
    basis: Basis, coefficients: Float[Array, " E"], prompts: Prompts, *, repeats: int = 8
) -> MonteCarlo:
    """Off-span share of the gradient averaged over 64, 128, … of the given random prompts.

    Every average has prompts of its own; the numbers double as long as there are enough for all
    `repeats`. The share is of the norm of the mean over all prompts, so that r² is unbiased.
    Raises `ValueError` for fewer than 448 · repeats prompts, which make three numbers.
    """
    doublings = int(np.log2(1 + len(prompts) / (BATCH * repeats)))
    if doublings < 3:
        least = 7 * BATCH * repeats
        raise ValueError(f"Argument `prompts` must be at least {least}, but are {len(prompts)}.")
    batches = 2 ** np.arange(doublings)
    runs = np.repeat(batches, repeats)
    sums = _batch_sums(at(basis, coefficients), prompts, tuple(runs.tolist()))
    whole = optax.tree.norm(jax.tree.map(lambda x: jnp.sum(x, axis=0), sums))
    shares = np.asarray(_off_norms(basis, sums) / whole) * runs.sum() / runs
    return _fit(BATCH * batches, shares.reshape(-1, repeats))


_off_norms = jax.jit(
    lambda basis, given: jax.vmap(partial(off_manifold, basis))(given),
    static_argnums=0,
    compiler_options=ONCE,
)


@eqx.filter_jit
def _batch_sums(model: Transformer, prompts: Prompts, runs: tuple[int, ...]) -> Weights:
    """Sum of the gradients of each run's batches of prompts."""

    def add(total, batch):
        run, some = batch
        gradient = value_and_gradient(model, some)[1]
        return jax.tree.map(lambda x, g: x.at[run].add(g), total, gradient), None

    batches = sum(runs)
    rows = jax.tree.map(
        lambda x: x[: BATCH * batches].reshape(batches, BATCH, *x.shape[1:]), prompts
    )
    nothing = jax.tree.map(lambda x: jnp.zeros((len(runs), *x.shape), x.dtype), model.weights)
    return jax.lax.scan(add, nothing, (np.repeat(np.arange(len(runs)), runs), rows))[0]


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


@partial(jax.jit, static_argnums=0, compiler_options=ONCE)
def _along(basis: Basis, path: Weights):
    """Coordinates, distance from the manifold and from the start, at each point of a path."""
    way = jax.tree.map(lambda x: x - x[:1], path)
    return jax.lax.map(
        lambda x: (project(basis, x[0]), off_manifold(basis, x[0]), optax.tree.norm(x[1])),
        (path, way),
    )
