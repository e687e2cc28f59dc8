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
from jaxtyping import Array, Float, Key

from imir.population import Loss, Population, expectation, mean_score
from imir.tasks.outcomes import Question
from imir.tasks.task import Task, unlinked
from imir.ties import Tie

Regime = Literal["neither", "ICL", "IWL", "both"]
REGIMES: tuple[Regime, ...] = ("neither", "ICL", "IWL", "both")


class Probes(eqx.Module):
    """The prompts behind the two scores (`None` where a task has no such query), and the bests."""

    icl: Population | None
    iwl: Population | None
    icl_best: Float[Array, ""]
    iwl_best: Float[Array, ""]


def probes(tie: Tie, task: Task, size: int, key: Key[Array, ""]) -> Probes:
    """Exact probes where their prompts can be listed, else samples of `size` prompts."""
    common = [r.name for r in task.classes if r.name != "rare"]
    rare = len(common) < len(task.classes)
    asked = Question(True, "rare") if rare else Question(True, common[0], linked=False)
    contrary = {} if rare else {"variability": max(task.variability, 1e-9)}
    icl = _probe(tie, task, {"context_fraction": 1.0, **contrary}, asked, size, key)
    known = Question(False, common[0], linked=True) if common else None
    iwl = _probe(tie, task, {"context_fraction": 0.0}, known, size, key)
    return Probes(icl, iwl, jnp.asarray(1.0), jnp.asarray(best_iwl(task)))


def best_iwl(task: Task, shape: Task | None = None) -> float:
    """(1 − q)^h, the probability of the associate h associations away (NaN without a relation).

    With a `shape`, for the classes of that task.
    """
    common = [r for r in (shape or task).classes if r.name != "rare"]
    q = min((unlinked(task.variability, relation) for relation in common), default=np.nan)
    return (1 - q) ** task.template.hops


def _probe(tie, task, changes, question, size, key) -> Population | None:
    """`None` where there is nothing to ask, or too few tokens to ask it."""
    try:
        task = replace(task, **changes)
    except ValueError:
        return None
    return question and expectation("auto", tie, task, size, key, question)


def scores(
    found: Probes, coordinates: Float[Array, " C"], loss: Loss
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """(ICL, IWL) at these coordinates; NaN where the task has no such query."""
    pair = [
        jnp.nan if p is None else mean_score(p.tie, coordinates, p.at(), loss)
        for p in (found.icl, found.iwl)
    ]
    return jnp.asarray(pair[0]), jnp.asarray(pair[1])


def regime(icl: Float[Array, "*c"], iwl: Float[Array, "*c"], found: Probes) -> Array:
    """Index into `REGIMES` of final scores."""
    return (icl > found.icl_best / 2) + 2 * (iwl > found.iwl_best / 2)
