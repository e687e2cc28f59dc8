"""ICL and IWL scores: what a run has learned, when, and the regime that they add up to.

- ICL: mean probability of the right answer where only the context tells it: a rare query whose
  relevant block is present (without a rare class: a common one that is bound to a token other
  than its associate). Best possible: 1.
- IWL: mean probability of the associate on a common query whose relevant block is absent. Best
  possible: (1 − q)^h for an answer h associations away.

A score has *emerged* once it exceeds half of the best possible. Under squared error the right
answer's logit, an estimate of the same probability, takes its place.
"""

from dataclasses import replace
from typing import Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from imir.population import Loss, Population, View, expectation, score, stacked, with_odds
from imir.tasks.outcomes import Odds, Question
from imir.tasks.task import Task, unlinked
from imir.ties import Tie

Regime = Literal["neither", "ICL", "IWL", "both", "transient"]
REGIMES: tuple[Regime, ...] = ("neither", "ICL", "IWL", "both", "transient")


class Probes(eqx.Module):
    """The prompts behind the two scores and the best possible scores.

    `seen` holds the prompts of both questions; `icl` and `iwl` are their weights, zero on the
    other's prompts, and NaN where a task has no such query.
    """

    seen: View
    icl: Float[Array, " P"]
    iwl: Float[Array, " P"]
    icl_best: Float[Array, ""]
    iwl_best: Float[Array, ""]
    asked: tuple[Population | None, Population | None]


def probes(tie: Tie, task: Task, size: int, key: Key[Array, ""]) -> Probes:
    """Exact probes where their prompts can be listed, else samples of `size` prompts.

    Raises `ValueError` for a task that has no query of either kind.
    """
    icl, iwl = (
        None if q is None else expectation("auto", tie, q[0], size, key, q[1])
        for q in questions(task)
    )
    return _stack(icl, iwl, jnp.asarray(best_iwl(task)))


def questions(task: Task) -> tuple[tuple[Task, Question] | None, tuple[Task, Question] | None]:
    """What the ICL and the IWL score ask, and of which variant of the task.

    `None` where there is nothing to ask, or too few tokens to ask it.
    """
    common = [r.name for r in task.classes if r.name != "rare"]
    rare = len(common) < len(task.classes)
    asked = Question(True, "rare") if rare else Question(True, common[0], linked=False)
    contrary = {} if rare else {"variability": max(task.variability, 1e-9)}
    known = Question(False, common[0], linked=True) if common else None
    return (
        _question(task, {"context_fraction": 1.0, **contrary}, asked),
        _question(task, {"context_fraction": 0.0}, known),
    )


def _question(task: Task, changes, question: Question | None) -> tuple[Task, Question] | None:
    try:
        return None if question is None else (replace(task, **changes), question)
    except ValueError:
        return None


@eqx.filter_jit
def _stack(icl: Population | None, iwl: Population | None, best_iwl: Float[Array, ""]) -> Probes:
    views = [p.at() for p in (icl, iwl) if p is not None]
    seen = stacked(views)
    none = jnp.full(len(seen.weight), jnp.nan)
    first = views[0].weight.size if icl is not None else 0
    ask_icl = jnp.arange(len(none)) < first
    weights = (
        none if icl is None else jnp.where(ask_icl, seen.weight, 0.0),
        none if iwl is None else jnp.where(ask_icl, 0.0, seen.weight),
    )
    return Probes(seen, *weights, jnp.ones(()), best_iwl, (icl, iwl))


def reweighted(found: Probes, odds: Odds, best_iwl: Float[Array, ""]) -> Probes:
    """The same questions under other probabilities."""
    icl, iwl = (p and with_odds(p, odds) for p in found.asked)
    return _stack(icl, iwl, best_iwl)


def best_iwl(task: Task, shape: Task | None = None) -> float:
    """(1 − q)^h, the probability of the associate h associations away (NaN without a relation).

    With a `shape`, for the classes of that task.
    """
    common = [r for r in (shape or task).classes if r.name != "rare"]
    q = min((unlinked(task.variability, relation) for relation in common), default=np.nan)
    return (1 - q) ** task.template.hops


def scores(
    found: Probes | None, tie: Tie, coordinates: Float[Array, " C"], loss: Loss
) -> Float[Array, " 2"]:
    """(ICL, IWL) at these coordinates; NaN where the task has no such query."""
    if found is None:
        return jnp.full(2, jnp.nan)
    right = score(tie, coordinates, found.seen, loss)
    return jnp.stack([found.icl @ right, found.iwl @ right])


def halves(found: Probes | None) -> Float[Array, " 2"]:
    """What (ICL, IWL) must exceed to have emerged: half of the best possible."""
    if found is None:
        return jnp.full(2, jnp.nan)
    return jnp.stack([found.icl_best, found.iwl_best]) / 2


def regime(
    reached: Float[Array, " 2"], icl_time: Float[Array, ""], found: Probes
) -> Int[Array, ""]:
    """Index into `REGIMES` of final (ICL, IWL) scores; ICL that emerged and went is transient."""
    icl, iwl = reached > halves(found)
    transient = ~icl & jnp.isfinite(icl_time)
    return jnp.where(transient, REGIMES.index("transient"), icl + 2 * iwl)
