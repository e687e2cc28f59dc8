"""The O(n) pass on (α, β, γ, δ) against the general one."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import draw, once

from imir import induction, reduced
from imir.canonical import canonical
from imir.prompts import Prompts
from imir.readout import cross_entropy, probability, squared_error
from imir.tasks.enumeration import enumerate_prompts
from imir.tasks.outcomes import odds
from imir.tasks.task import Task
from imir.ties import Tie

STATISTICS = {
    "vocabulary": 60, "rare_fraction": 0.3, "variability": 0.3, "context_fraction": 0.6
}  # fmt: skip
TASKS = {
    "recall": Task("recall", blocks=4, burstiness=2, **STATISTICS),
    "2hop": Task("2hop", blocks=4, **STATISTICS),
    "3gram": Task("3gram", blocks=3, **STATISTICS),
    "inversion": Task("inversion", blocks=3, **STATISTICS),
    "retrieval": Task("retrieval", blocks=4, **STATISTICS),
    "ioi": Task("ioi", blocks=3, **STATISTICS),
    "bins": Task("recall", blocks=3, frequency_bins=((0.6, 40), (0.4, 80)), rare_fraction=0.3),
    "rare": Task("recall", blocks=3, rare_fraction=1.0),
    "lengths": Task("a b c; c d | {a *} | a b -> d", blocks=4, **STATISTICS),
}
POINTS = ((0.0, 0.0, 0.0, 0.0), (1.3, 2.1, 4.0, 1.7), (-2.0, 9.0, -3.0, 6.0))
FAR = (900.0, 300.0, 50.0, 20.0)


def reports(forward, tie: Tie, seen, points):
    """Losses, probabilities and gradients of both losses, at each point."""

    def losses(y):
        out = forward.logits(tie, y, seen)
        means = [seen.weight @ loss(out) for loss in (cross_entropy, squared_error)]
        return jnp.stack(means), probability(out)

    return jax.lax.map(lambda y: (losses(y), jax.jacrev(lambda y: losses(y)[0])(y)), points)


def stands_for(seen: induction.View):
    """How many tokens the candidates of each prompt are, those in common included."""
    return seen.counts.sum(axis=1) + seen.sights.alone[seen.attends].sum(axis=1)


def both(tie: Tie, task: Task, prompts: Prompts, points):
    """The same from the O(n) pass, compressed and not, and from the general pass."""
    letters = len(task.template.letters)
    fast = once(partial(induction.view, tie, letters), prompts)
    assert (stands_for(fast) == sum(relation.size for relation in task.classes)).all()
    plain = once(partial(reduced.view, tie), prompts)
    points = jnp.array(points)[:, : len(tie.names)]
    passes = (induction, fast), (induction, induction.compressed(fast)), (reduced, plain)
    return [once(partial(reports, p, tie), seen, points) for p, seen in passes]


def agree(found, expected, atol=1e-12) -> bool:
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return all(np.allclose(a, b, rtol=1e-12, atol=atol) for a, b in pairs)


@pytest.mark.parametrize("name", TASKS)
def test_listed_prompts_look_the_same_to_both_passes(name: str, float64):
    task = TASKS[name]
    tie = canonical(task)
    prompts = enumerate_prompts(task, tie).weighted(odds(task))
    fast, short, plain = both(tie, task, prompts, (*POINTS, FAR))
    assert agree(fast, plain)
    assert agree(short, plain)


@pytest.mark.parametrize("name", ["recall", "retrieval", "lengths"])
def test_sampled_prompts_look_the_same_to_both_passes(name: str, float64):
    task = TASKS[name]
    fast, short, plain = both(canonical(task), task, draw(task, 64), POINTS)
    assert agree(fast, plain)
    assert agree(short, plain)


def test_kinds_of_query_share_their_sights(float64):
    task = Task("recall", blocks=8, rare_fraction=0.3, variability=0.3)
    tie = canonical(task)
    prompts = enumerate_prompts(task, tie).weighted(odds(task))
    seen = induction.compressed(once(partial(induction.view, tie, 2), prompts))
    assert len(prompts) == 3 * 8
    assert len(seen.sights.earlier) == 8
