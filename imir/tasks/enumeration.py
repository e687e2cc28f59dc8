"""All prompts of a task up to symmetry, with exact weights.

Two prompts are the same to a basis if every kernel that the basis uses is the same on both, so
distractors that no used selection tells apart are counted together: associative recall on the
(α, β, γ, δ) submanifold has N prompts for each kind of query, not 3^N.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product
from math import comb, prod

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from imir.prompts import ONCE, Prompts
from imir.tasks.outcomes import Layout, Odds, Outcome, Question, assemble, layout, shuffles_of
from imir.tasks.task import Task
from imir.ties import Tie

LIMIT = 20_000


class TooManyPrompts(ValueError):
    """An exact expectation would have to list more prompts than its limit."""


@dataclass(frozen=True)
class Kind:
    """Class and links of one group: of the letters, or of a distractor."""

    relation: int
    links: tuple[bool, ...]

    def probability(self, odds: Odds, free: int, given: Question) -> Float[Array, ""]:
        """`free` counts the links that chance decides; what is `given` has probability one."""
        q, linked = odds.unlinked[self.relation], sum(self.links)
        share = odds.shares[self.relation] if given.class_name is None else 1.0
        links = (1 - q) ** linked * q ** max(0, free - linked) if given.linked is None else 1.0
        return jnp.asarray(share * links)


class Enumeration(eqx.Module):
    """Every prompt up to symmetry; `weights` puts any odds of the same shape on it.

    `kind` indexes `kinds` (letters, and whether the relevant blocks are present), `types` the
    distractors' merged types (−1 where there is none), `multiplicity` is the probability of the
    order and the shuffles.
    """

    prompts: Prompts
    kind: Int[Array, " P"]
    types: Int[Array, "P D"]
    multiplicity: Float[Array, " P"]
    kinds: tuple[tuple[bool, Kind], ...] = eqx.field(static=True)
    merged: tuple[tuple[Kind, ...], ...] = eqx.field(static=True)
    motifs: tuple[int, ...] = eqx.field(static=True)
    question: Question = eqx.field(static=True)

    def weights(self, odds: Odds) -> Float[Array, " P"]:
        """Probability of each prompt; of a question's prompts, given the question."""
        kinds = jnp.stack([self._kind_probability(odds, *kind) for kind in self.kinds])
        chance = Question()
        merged = [sum(self._probability(odds, k, chance) for k in ks) for ks in self.merged]
        types = jnp.append(jnp.stack([jnp.asarray(p) for p in merged] or [jnp.ones(())]), 1.0)
        return kinds[self.kind] * self.multiplicity * jnp.prod(types[self.types], axis=1)

    def _probability(self, odds: Odds, kind: Kind, given: Question):
        m = self.motifs[kind.relation]
        return kind.probability(odds, sum(i % m != 0 for i in range(len(kind.links))), given)

    def _kind_probability(self, odds: Odds, present: bool, kind: Kind):
        c = odds.context_fraction
        here = (c if present else 1 - c) if self.question.present is None else 1.0
        return here * self._probability(odds, kind, self.question)

    @eqx.filter_jit
    def weighted(self, odds: Odds) -> Prompts:
        """The prompts with these weights."""
        return eqx.tree_at(lambda p: p.weight, self.prompts, self.weights(odds))


def enumerate_prompts(
    task: Task, tie: Tie | None = None, question: Question = Question(), limit: int = LIMIT
) -> Enumeration:
    """List every prompt that the task can produce, up to the symmetries and the basis' sight.

    With a `question`, only the prompts that ask it, weighted given that they do. Raises
    `TooManyPrompts` (a `ValueError`), naming the count, where there are more than `limit`.
    """
    plan = _Plan(task, tie, question)
    count = plan.count()
    if count > limit:
        raise TooManyPrompts(
            f"Argument `task` must have at most {limit} prompts up to symmetry for an exact "
            f"expectation, but has {count}; take a sample instead."
        )
    rows = list(plan.rows())
    outcomes = Outcome(
        *(jnp.asarray(np.stack(x)) for x in zip(*(r.outcome for r in rows), strict=True))
    )
    prompts = _assemble(task, outcomes)
    return Enumeration(
        prompts,
        jnp.array([row.kind for row in rows]),
        jnp.array([row.types for row in rows]).reshape(len(rows), -1),
        jnp.array([row.multiplicity for row in rows]),
        tuple(plan.kinds),
        tuple(map(tuple, plan.merged)),
        tuple(r.motif.size for r in task.classes),
        question,
    )


@partial(jax.jit, static_argnums=0, compiler_options=ONCE)
def _assemble(task: Task, outcomes: Outcome) -> Prompts:
    return jax.vmap(partial(assemble, task))(outcomes)


@dataclass(frozen=True)
class _Row:
    outcome: tuple[np.ndarray, ...]
    kind: int
    types: np.ndarray
    multiplicity: float


class _Plan:
    """The lists whose product is the enumeration, and how long it is."""

    def __init__(self, task: Task, tie: Tie | None, question: Question) -> None:
        self.task, self.shape = task, layout(task)
        presents = [p for p in (True, False) if task.context_fraction != float(not p)]
        if question.present is not None:
            presents = [question.present]
        letters = [k for k in _kinds(task, task.motif_size) if _asks(task, k, question)]
        self.kinds = list(product(presents, letters))
        lengths = self.shape.lengths[1 : 1 + self.shape.distractors]
        every = {int(n): _merge(task, tie, _kinds(task, int(n))) for n in lengths}
        self.merged = [kinds for groups in every.values() for kinds in groups]
        self.types = {n: [self.merged.index(g) for g in groups] for n, groups in every.items()}
        self.lengths = lengths

    def _labels(self, present: bool) -> list[list[int]]:
        """Interchangeable blocks, as lists of block numbers; the distractors come last."""
        task, relevant = self.task, self.shape.relevant
        decoys = len(task.template.decoys)
        burst = task.burstiness
        alike = [list(range(i, i + burst)) for i in range(0, relevant, burst)]
        rest = list(range(relevant + decoys, task.blocks))
        away = [*range(relevant), *rest]
        fixed = [[relevant + i] for i in range(decoys)]
        return [*alike, *fixed, rest] if present else [*fixed, *_by_length(away, self.lengths)]

    def _distractors(self, present: bool) -> list[int]:
        return list(range(self.shape.relevant if present else 0, self.shape.distractors))

    def _shuffles(self, present: bool) -> list[list[int]]:
        """Permutations of each relevant block and decoy; stand-ins are never shuffled."""
        allowed = shuffles_of(self.task)
        return allowed if present else [[0]] * self.shape.relevant + allowed[self.shape.relevant :]

    def count(self) -> int:
        return sum(
            prod(len(self.types[int(self.lengths[d])]) for d in self._distractors(present))
            * _arrangements(self._labels(present))
            * prod(map(len, self._shuffles(present)))
            for present, _ in self.kinds
        )

    def rows(self) -> Iterator[_Row]:
        for number, (present, kind) in enumerate(self.kinds):
            labels, distractors = self._labels(present), self._distractors(present)
            choices = [self.types[int(self.lengths[d])] for d in distractors]
            shuffles = list(product(*self._shuffles(present)))
            share = 1 / (_arrangements(labels) * len(shuffles))
            for order, types, shuffle in product(_orders(labels), product(*choices), shuffles):
                every = np.full(self.shape.distractors, -1)
                every[distractors] = types
                outcome = self._outcome(present, kind, every, order, shuffle)
                yield _Row(outcome, number, every, share)

    def _outcome(self, present: bool, kind: Kind, types, order, shuffle) -> tuple[np.ndarray, ...]:
        """Fields of an `Outcome`."""
        shape: Layout = self.shape
        kinds = [kind, *(self.merged[t][0] if t >= 0 else kind for t in types)]
        links = np.zeros((len(kinds), shape.width), bool)
        for row, k in zip(links, kinds, strict=True):
            row[: len(k.links)] = k.links[: shape.width]
        place = np.empty(self.task.blocks, int)
        place[list(order)] = np.arange(self.task.blocks)
        return (
            np.array(present),
            np.array([k.relation for k in kinds]),
            links,
            place,
            np.array(shuffle, int),
        )


def _kinds(task: Task, length: int) -> list[Kind]:
    """All kinds of a group of `length` tokens that have a positive probability."""
    kinds = []
    for c, (relation, q) in enumerate(zip(task.classes, task.unlinked, strict=True)):
        m = relation.motif.size
        choices = [
            [False] if i % m == 0 else [True, False] if q > 0 else [True] for i in range(length)
        ]
        kinds += [Kind(c, links) for links in product(*choices)]
    return kinds


def _asks(task: Task, kind: Kind, question: Question) -> bool:
    m = task.classes[kind.relation].motif.size
    free = [x for i, x in enumerate(kind.links) if i % m]
    named = question.class_name in (None, task.classes[kind.relation].name)
    return named and (question.linked is None or all(x == question.linked for x in free))


def _merge(task: Task, tie: Tie | None, kinds: list[Kind]) -> list[list[Kind]]:
    """Group the kinds of distractors that look the same on the submanifold."""
    groups: dict[object, list[Kind]] = {}
    for kind in kinds:
        groups.setdefault(tie.sight(*_nodes(task, kind)) if tie else kind, []).append(kind)
    return list(groups.values())


def _nodes(task: Task, kind: Kind) -> tuple[list[int], list[int]]:
    """Copy (numbered from zero) and node of each token of a distractor."""
    m = task.classes[kind.relation].motif.size
    roots = np.maximum.accumulate([0 if x else i for i, x in enumerate(kind.links)])
    nodes = [task.tokens.node(kind.relation, (i - r) % m) for i, r in enumerate(roots)]
    return roots.tolist(), nodes


def _by_length(blocks: list[int], lengths: np.ndarray) -> list[list[int]]:
    """Stand-ins and distractors of equal length; the d-th distractor fills the d-th block."""
    sizes = {n: [b for b, m in zip(blocks, lengths, strict=True) if m == n] for n in lengths}
    return list(sizes.values())


def _arrangements(labels: list[list[int]]) -> int:
    """Number of orders of blocks where those of one label are interchangeable."""
    total, count = 0, 1
    for label in labels:
        total += len(label)
        count *= comb(total, len(label))
    return count


def _orders(labels: list[list[int]]) -> Iterator[tuple[int, ...]]:
    """Blocks in the order of their places, once for each arrangement."""
    total = sum(map(len, labels))

    def fill(free: tuple[int, ...], rest: list[list[int]]) -> Iterator[dict[int, int]]:
        if not rest:
            yield {}
            return
        for places in combinations(free, len(rest[0])):
            for others in fill(tuple(x for x in free if x not in places), rest[1:]):
                yield {**dict(zip(places, rest[0], strict=True)), **others}

    for placed in fill(tuple(range(total)), labels):
        yield tuple(placed[i] for i in range(total))
