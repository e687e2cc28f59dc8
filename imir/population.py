"""The expected loss in three kinds with one interface (arXiv 2607.11875, section 3).

*exact*: the weighted list of all prompts up to symmetry; *fixed*: given prompts or one sample;
*fresh*: a new sample at every step, for discrete optimisers only.
"""

from collections.abc import Sequence
from typing import Literal

import equinox as eqx
import jax
from jaxtyping import Array, Float, Key

from imir import induction, reduced
from imir.canonical import canonical
from imir.prompts import ONCE, Prompts
from imir.readout import LOSSES, Logits, probability, target_logit
from imir.tasks.enumeration import LIMIT, Enumeration, TooManyPrompts, enumerate_prompts
from imir.tasks.outcomes import Odds, Question, odds, sample
from imir.tasks.task import Task
from imir.ties import Tie

Expectation = Literal["auto", "exact", "sample"]
Loss = Literal["cross_entropy", "squared_error"]
View = reduced.View | induction.View


class Population(eqx.Module):
    """Prompts as a submanifold sees them, or the way to draw them.

    `seen` is the view to average over (`None` for a fresh population). Prompts that come from a
    task remember how: the enumeration of an exact population, the `key` of a sample.
    """

    tie: Tie = eqx.field(static=True)
    kind: Literal["exact", "fixed", "fresh"] = eqx.field(static=True)
    size: int = eqx.field(static=True)
    seen: View | None = None
    listed: Enumeration | None = None
    task: Task | None = eqx.field(static=True, default=None)
    question: Question = eqx.field(static=True, default=Question())
    odds: Odds | None = None
    key: Key[Array, ""] | None = None

    def at(self, key: Key[Array, ""] | None = None) -> View:
        """The view to average over; a fresh population needs a `key`."""
        return _draw(self, needed(key)) if self.seen is None else self.seen


def needed(key: Key[Array, ""] | None) -> Key[Array, ""]:
    """The key that a fresh population draws with; refuses None."""
    if key is None:
        raise ValueError("Argument `key` must be given for a fresh population, but is None.")
    return key


def _draw(population: Population, key: Key[Array, ""]) -> View:
    task, size, odds_ = population.task, population.size, population.odds
    assert task is not None
    assert odds_ is not None
    return view(population.tie, task, sample(task, key, size, odds_, population.question))


def view(tie: Tie, task: Task | None, prompts: Prompts) -> View:
    """Prompts of a task have the structure that the O(n) pass relies on; others may not."""
    if task is not None and tie == canonical(task):
        return induction.view(tie, len(task.template.letters), prompts)
    return reduced.view(tie, prompts)


_view = jax.jit(view, static_argnums=(0, 1), compiler_options=ONCE)


def compressed(seen: View) -> View:
    """The same view with nothing twice. Outside of jit only."""
    if isinstance(seen, induction.View):
        return induction.compressed(seen)
    return reduced.compressed(seen)


def stacked(views: Sequence[View]) -> View:
    """One view of all prompts."""
    if fast := [v for v in views if isinstance(v, induction.View)]:
        return induction.stacked(fast)
    return reduced.stacked([v for v in views if isinstance(v, reduced.View)])


def logits(tie: Tie, coordinates: Float[Array, " C"], seen: View) -> Logits:
    """Logits of every viewed prompt at its last place."""
    if isinstance(seen, induction.View):
        return induction.logits(tie, coordinates, seen)
    return reduced.logits(tie, coordinates, seen)


def exact(tie: Tie, task: Task, question: Question = Question(), limit: int = LIMIT) -> Population:
    """All prompts of a task that look different on the submanifold, with their probabilities.

    Raises `ValueError`, naming the count, where there are more than `limit`.
    """
    listed = enumerate_prompts(task, tie, question, limit)
    seen = compressed(_view(tie, task, listed.weighted(odds(task))))
    return Population(tie, "exact", len(listed.prompts), seen, listed, task, question)


def fixed(tie: Tie, prompts: Prompts) -> Population:
    """Given prompts with their own weights."""
    return Population(tie, "fixed", len(prompts), compressed(_view(tie, None, prompts)))


def fixed_sample(
    tie: Tie, task: Task, size: int, key: Key[Array, ""], question: Question = Question()
) -> Population:
    """One sample of `size` prompts, the same at every step."""
    seen = compressed(_view(tie, task, sample(task, key, size, odds(task), question)))
    return Population(tie, "fixed", size, seen, None, task, question, key=key)


def fresh_sample(tie: Tie, task: Task, size: int) -> Population:
    """A new sample of `size` prompts at every step."""
    return Population(tie, "fresh", size, None, None, task, odds=odds(task))


def expectation(
    kind: Expectation,
    tie: Tie,
    task: Task,
    size: int,
    key: Key[Array, ""],
    question: Question = Question(),
) -> Population:
    """Exact where the prompts can be listed (or `kind` insists on it), else one sample."""
    if kind != "sample":
        try:
            return exact(tie, task, question)
        except TooManyPrompts:
            if kind == "exact":
                raise
    return fixed_sample(tie, task, size, key, question)


def with_odds(population: Population, odds: Odds) -> Population:
    """The same prompts under other probabilities; a sample is drawn anew with its own key."""
    if population.listed is not None:
        weights = population.listed.weights(odds)
        return eqx.tree_at(lambda p: p.seen.weight, population, weights)
    if population.key is None:
        raise ValueError("Argument `population` must come from a task, but has given prompts.")
    seen = _draw(eqx.tree_at(lambda p: p.odds, population, odds, is_leaf=_none), population.key)
    return eqx.tree_at(lambda p: p.seen, population, seen)


def _none(x: object) -> bool:
    return x is None


def mean_loss(
    tie: Tie, coordinates: Float[Array, " C"], seen: View, loss: Loss
) -> Float[Array, ""]:
    """Σ weight · loss over viewed prompts, in nats for cross-entropy."""
    return seen.weight @ LOSSES[loss](logits(tie, coordinates, seen))


def score(tie: Tie, coordinates: Float[Array, " C"], seen: View, loss: Loss) -> Float[Array, " P"]:
    """Probability of the right answer; under squared error the right answer's logit."""
    right = probability if loss == "cross_entropy" else target_logit
    return right(logits(tie, coordinates, seen))


@eqx.filter_jit
def expected_loss(
    population: Population,
    coordinates: Float[Array, " C"],
    loss: Loss = "cross_entropy",
    key: Key[Array, ""] | None = None,
) -> Float[Array, ""]:
    """E[loss] of the reduced model at these coordinates."""
    return mean_loss(population.tie, coordinates, population.at(key), loss)
