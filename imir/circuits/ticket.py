"""Lottery tickets: training on a circuit's directions alone, from the same initial point."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from imir.flow import Flow, gradient_flow
from imir.population import Population, exact, fixed_sample
from imir.solution import Solution
from imir.ties import Tie


def subtie(tie: Tie, names: Sequence[str]) -> Tie:
    """The same coordinates, only these of them; refuses other names."""
    if unknown := [name for name in names if name not in tie.names]:
        raise ValueError(
            f"Argument `names` must name coordinates among {', '.join(tie.names[:8])}, "
            f"but has {unknown[0]!r}."
        )
    return Tie(tie.basis, tuple(names), tuple(tie.members[tie.names.index(n)] for n in names))


def restricted(population: Population, tie: Tie) -> Population:
    """The same expectation as another tie sees it: listed anew, or the same sample."""
    if population.task is None:
        raise ValueError("Argument `population` must come from a task, but has given prompts.")
    if population.kind == "exact":
        return exact(tie, population.task, population.question)
    if population.kind == "fixed" and population.key is not None:
        task, key, question = population.task, population.key, population.question
        return fixed_sample(tie, task, population.size, key, question)
    raise ValueError("Argument `population` must be exact or fixed, but is fresh.")


@dataclass(frozen=True)
class Ticket:
    """Restricted training beside the unrestricted one, and when each reached a `level` of loss.

    Times in gradient-flow time, infinite where the level was never reached.
    """

    names: tuple[str, ...]
    level: float
    whole: Solution
    ticket: Solution
    whole_time: float
    ticket_time: float

    @property
    def ratio(self) -> float:
        """Time of the ticket over that of the whole: at most 1.1 for one that wins."""
        return self.ticket_time / self.whole_time

    def __str__(self) -> str:
        return (
            f"{len(self.names)} of {len(self.whole.names)} directions reach loss {self.level:.4g} "
            f"at {self.ticket_time:.4g}, all of them at {self.whole_time:.4g} "
            f"(ratio {self.ratio:.3f})"
        )


def ticket(
    population: Population,
    start: Float[Array, " C"],
    names: Sequence[str],
    flow: Flow = Flow(),
    level: float | None = None,
) -> Ticket:
    """Train on these directions alone (the others stay zero), and on all, from the same start.

    `level` is the loss to reach; by default half a percent of the start's above the final loss of
    the whole. Raises `ValueError` for unknown names, `RunFailure` where a solver gives up.
    """
    begin = np.asarray(start)
    tie = subtie(population.tie, names)
    places = [population.tie.names.index(name) for name in names]
    whole = gradient_flow(population, jnp.asarray(begin), flow)
    alone = gradient_flow(restricted(population, tie), jnp.asarray(begin[places]), flow)
    if level is None:
        level = float(whole.loss[-1] + 0.005 * (whole.loss[0] - whole.loss[-1]))
    times = (_reached(run, level) for run in (whole, alone))
    return Ticket(tuple(names), level, whole, alone, *times)


def _reached(solution: Solution, level: float) -> float:
    """First time at which the loss is at most `level`, linear between saved times."""
    below = np.flatnonzero(solution.loss <= level)
    if not below.size:
        return np.inf
    k = int(below[0])
    if k == 0:
        return float(solution.times[0])
    losses, times = solution.loss[k - 1 : k + 1], solution.times[k - 1 : k + 1]
    return float(np.interp(level, losses[::-1], times[::-1]))
