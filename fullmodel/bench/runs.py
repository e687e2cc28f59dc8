"""A run until in-context learning emerges, in coordinates and in full weights.

Both take the same batches of prompts in the same order, with the same optimiser. The full weights
wander off the manifold by the noise of a finite batch, so the runs agree to rounding after the
first step, and in when they emerge.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fullmodel.bench.programs import Program, full, reduced
from fullmodel.bench.steps import inner
from fullmodel.bench.work import Work
from fullmodel.frames import exact_frame
from fullmodel.model import Transformer, Weights, right_answers
from imir import population
from imir.flow import Optimizer, inverse

# Mean probability of the right answer from which in-context learning has emerged.
EMERGED = 0.5


@dataclass(frozen=True)
class Limits:
    """At most so many steps; the full run may have fewer. The score is measured `every` so many."""

    steps: int = 1000
    full_steps: int = 1000
    every: int = 20


@dataclass(frozen=True)
class Way:
    """How far a run went, in what time, and whether in-context learning emerged."""

    steps: int
    seconds: float
    emerged: bool


@dataclass(frozen=True)
class Run:
    """Both runs; `extrapolated` where the full one ended first and its time is scaled up.

    `ratio` of the times; `first_error` is the largest difference of coordinates after one step.
    """

    width: int
    vocabulary: int
    blocks: int
    prompts: int
    reduced: Way
    full: Way
    extrapolated: bool
    ratio: float
    first_error: float


def race(work: Work, optimizer: Optimizer, limits: Limits) -> Run:
    """Both runs from the same start, each until it emerges or has made its steps."""
    here, there = reduced(work, optimizer), full(work, optimizer)
    error = first_error(work, here, there)
    mine = travel(here, _reduced_score(work), limits.steps, limits.every)
    theirs = travel(there, _full_score(work), limits.full_steps, limits.every)
    extrapolated = theirs.steps < mine.steps and not theirs.emerged
    seconds = theirs.seconds * (mine.steps / theirs.steps if extrapolated else 1.0)
    sizes = work.width, work.vocabulary, work.task.blocks, work.size
    return Run(*sizes, mine, theirs, extrapolated, seconds / mine.seconds, error)


def travel(program: Program, score: Callable[[Any], Array], steps: int, every: int) -> Way:
    """Steps until the score emerges; only the steps are timed."""
    program.run(program.start, 1)
    state, taken, emerged = program.start, 0.0, False
    while int(state.step) < steps and not emerged:
        began = time.perf_counter()
        state = program.run(state, min(every, steps - int(state.step)))
        taken += time.perf_counter() - began
        emerged = bool(score(state.parameters) > EMERGED)
    return Way(int(state.step), taken, emerged)


def first_error(work: Work, here: Program, there: Program) -> float:
    """Largest difference of coordinates after one step."""
    moved = here.run(here.start, 1).parameters
    projected = inner(work, there.run(there.start, 1).parameters)
    return float(jnp.max(jnp.abs(inverse(work.tie.metric) @ projected - moved)))


def _reduced_score(work: Work) -> Callable[[Array], Array]:
    """Mean probability of the right answer, which only the context tells."""
    assert work.asked is not None
    seen = population.fixed(work.tie, work.asked).at()
    return jax.jit(lambda y: seen.weight @ population.score(work.tie, y, seen, "cross_entropy"))


def _full_score(work: Work) -> Callable[[Weights], Array]:
    frame, asked = exact_frame(work.tie.basis), work.asked
    assert asked is not None
    return jax.jit(lambda weights: right_answers(Transformer(frame, weights), asked))
