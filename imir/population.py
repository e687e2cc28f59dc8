"""The expected loss in three kinds with one interface (arXiv 2607.11875, section 3).

*exact*: the weighted list of all prompts up to symmetry; *fixed*: given prompts or one sample;
*fresh*: a new sample at every step, for discrete optimisers only.
"""

from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
from jaxtyping import Array, Float, Key

from imir.prompts import Prompts
from imir.reduced import (
    Logits,
    View,
    compressed,
    cross_entropy,
    logits,
    probability,
    squared_error,
    target_logit,
    view,
)
from imir.tasks.enumeration import LIMIT, enumerate_prompts
from imir.tasks.outcomes import Odds, Question, odds, sample
from imir.tasks.task import Task
from imir.ties import Tie

Loss = Literal["cross_entropy", "squared_error"]
LOSSES: dict[str, Callable[[Logits], Float[Array, " P"]]] = {
    "cross_entropy": cross_entropy,
    "squared_error": squared_error,
}


class Population(eqx.Module):
    """Prompts as a submanifold sees them, or the way to draw them.

    `seen` holds the view of an exact or fixed population; a fresh one draws `size` prompts of
    `task` with the probabilities `odds`.
    """

    tie: Tie = eqx.field(static=True)
    seen: View | None
    kind: Literal["exact", "fixed", "fresh"] = eqx.field(static=True)
    task: Task | None = eqx.field(static=True, default=None)
    size: int = eqx.field(static=True, default=0)
    odds: Odds | None = None

    def at(self, key: Key[Array, ""] | None = None) -> View:
        """The view to average over; a fresh population needs a `key`."""
        if self.seen is not None:
            return self.seen
        if key is None or self.task is None or self.odds is None:
            raise ValueError("Argument `key` must be given for a fresh population, but is None.")
        return view(self.tie, sample(self.task, key, self.size, self.odds))


_view = jax.jit(view, static_argnums=0)


def exact(tie: Tie, task: Task, question: Question = Question(), limit: int = LIMIT) -> Population:
    """All prompts of a task that look different on the submanifold, with their probabilities.

    Raises `ValueError`, naming the count, where there are more than `limit`.
    """
    listed = enumerate_prompts(task, tie, question, limit)
    seen = compressed(_view(tie, listed.weighted(odds(task))))
    return Population(tie, seen, "exact", task, len(listed.prompts))


def fixed(tie: Tie, prompts: Prompts) -> Population:
    """Given prompts with their own weights."""
    return Population(tie, _view(tie, prompts), "fixed", None, len(prompts))


def fixed_sample(
    tie: Tie, task: Task, size: int, key: Key[Array, ""], question: Question = Question()
) -> Population:
    """One sample of `size` prompts, the same at every step."""
    return fixed(tie, sample(task, key, size, odds(task), question))


def fresh_sample(tie: Tie, task: Task, size: int) -> Population:
    """A new sample of `size` prompts at every step."""
    return Population(tie, None, "fresh", task, size, odds(task))


def mean_loss(
    tie: Tie, coordinates: Float[Array, " C"], seen: View, loss: Loss
) -> Float[Array, ""]:
    """Σ weight · loss over viewed prompts, in nats for cross-entropy."""
    return seen.weight @ LOSSES[loss](logits(tie, coordinates, seen))


def mean_score(
    tie: Tie, coordinates: Float[Array, " C"], seen: View, loss: Loss
) -> Float[Array, ""]:
    """Mean probability of the right answer; under squared error the right answer's logit."""
    right = probability if loss == "cross_entropy" else target_logit
    return seen.weight @ right(logits(tie, coordinates, seen))


@eqx.filter_jit
def expected_loss(
    population: Population,
    coordinates: Float[Array, " C"],
    loss: Loss = "cross_entropy",
    key: Key[Array, ""] | None = None,
) -> Float[Array, ""]:
    """E[loss] of the reduced model at these coordinates."""
    return mean_loss(population.tie, coordinates, population.at(key), loss)
