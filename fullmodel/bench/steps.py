"""One gradient step of the reduced model against one of the full model, on the same prompts."""

import os
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fullmodel import confinement
from fullmodel.bench.programs import Program, full, reduced, weights_at
from fullmodel.bench.timing import per_step
from fullmodel.bench.work import Work
from fullmodel.model import Weights
from imir.flow import Optimizer

SGD = Optimizer("sgd", learning_rate=0.1)
# Steps over which losses and gradients are compared.
COMPARED = 3
# Matrices of d² numbers that a step of the full model holds: weights, maps, gradients, updates.
MATRICES = 12


@dataclass(frozen=True)
class Side:
    """Cost of one gradient step."""

    seconds: float
    compile_seconds: float
    flops: float
    bytes: int

    @property
    def rate(self) -> float:
        """Floating-point operations in a second."""
        return self.flops / self.seconds


@dataclass(frozen=True)
class Row:
    """Both sides on the same work; the full sides are `None` where the full model does not fit.

    `width` is d, the full model's; `loss_error` and `gradient_error` the largest absolute
    differences of the losses and of the gradients' inner products with the coordinates' directions.
    """

    work: str
    width: int
    vocabulary: int
    blocks: int
    prompts: int
    coordinates: int
    reduced: Side
    full: Side | None = None
    full_float32: Side | None = None
    loss_error: float | None = None
    gradient_error: float | None = None

    @property
    def ratio(self) -> float | None:
        """Seconds of the full model for each of the reduced one, both in float64."""
        return self.full and self.full.seconds / self.reduced.seconds


def compare(name: str, work: Work, repeats: int, least: float) -> Row:
    """Compile, check and time a step of both sides."""
    programs, errors = {"reduced": reduced(work, SGD)}, (None, None)
    if fits(work):
        programs["full"] = full(work, SGD)
        programs["full_float32"] = full(work, SGD, jnp.float32)
        errors = differences(work, programs["reduced"], programs["full"])
    times = per_step(programs, repeats, least)
    sides = {k: Side(times[k], p.compile_seconds, p.flops, p.bytes) for k, p in programs.items()}
    both = sides.get("full"), sides.get("full_float32")
    return Row(name, *_sizes(work), sides["reduced"], *both, *errors)


def _sizes(work: Work) -> tuple[int, int, int, int, int]:
    return work.width, work.vocabulary, work.task.blocks, work.size, len(work.tie.names)


def fits(work: Work) -> bool:
    """Whether the full model in float64 takes less than half of the machine's memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return full_bytes(work) < memory / 2


def full_bytes(work: Work) -> float:
    return 8.0 * MATRICES * work.width**2


def differences(work: Work, here: Program, there: Program) -> tuple[float, float]:
    """Largest differences of loss and of projected gradient over the first steps.

    A sample's gradient leaves the manifold, only its expectation stays. So the full model starts
    each step where the reduced one stands, and is projected after it.
    """
    state, found = here.start, []
    for _ in range(COMPARED):
        weights = weights_at(work, state.parameters)
        after, other = here.run(state, 1), there.run(there.begin(weights), 1)
        moved = jnp.asarray(work.tie.metric) @ (state.parameters - after.parameters)
        away = jax.tree.map(jnp.subtract, weights, other.parameters)
        off = jnp.max(jnp.abs(moved - inner(work, away))) / SGD.learning_rate
        found.append((abs(float(after.loss - other.loss)), float(off)))
        state = after
    loss, gradient = np.max(found, axis=0).tolist()
    return loss, gradient


def inner(work: Work, given: Weights) -> Float[Array, " C"]:
    """Inner products of full weights with the directions of the coordinates."""
    return jnp.asarray(work.tie.matrix).T @ confinement.inner_products(work.tie.basis, given)
