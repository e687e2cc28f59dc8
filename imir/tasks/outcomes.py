"""What is random about a prompt, up to symmetry, and the prompt that follows from it.

Sampling draws outcomes, enumeration lists them; both assemble prompts here. Tokens come in
*groups*: the letters, one group for each distractor (those standing in for absent relevant blocks
first), and one for each fresh token `*`. Copies are numbered from zero in each class.

Shapes: `G` groups of at most `W` tokens, `D` distractors, `N` blocks, `B` of them
relevant or decoys.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import permutations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from imir.prompts import Prompts, chances, random_image, uniform, unit
from imir.tasks.task import Task, unlinked
from imir.tasks.template import Block


class Outcome(eqx.Module):
    """The random choices behind one prompt.

    `present`: are the relevant blocks in the context? `classes`: of the letters, then of each
    distractor. `links`: is each token associated with the one before it in its group?
    `order`: place of each block. `shuffle`: which permutation each relevant block
    and decoy stands in.
    """

    present: Bool[Array, ""]
    classes: Int[Array, " 1+D"]
    links: Bool[Array, "1+D W"]
    order: Int[Array, " N"]
    shuffle: Int[Array, " B"]


@dataclass(frozen=True)
class Layout:
    """Static shape of a task's prompts: which group and index each place of each block holds.

    `here` and `away` give (group, index) for relevant blocks that are present or absent; padded
    places have index −1. `lengths` are the groups' sizes; relevant blocks come first, then the
    decoys (`bound` counts both).
    """

    here: np.ndarray
    away: np.ndarray
    lengths: np.ndarray
    relevant: int
    bound: int
    distractors: int
    query: np.ndarray
    answer: int

    @property
    def width(self) -> int:
        return int(self.lengths.max())

    @property
    def fresh(self) -> int:
        """Number of fresh-token groups."""
        return len(self.lengths) - 1 - self.distractors


@cache
def layout(task: Task) -> Layout:
    template, letter = task.template, task.template.letters.index
    relevant = [block for block in template.relevant for _ in range(task.burstiness)]
    lengths = [len(template.letters), *(len(b.tokens) for b in relevant)]
    lengths += [task.block_size] * task.distractors
    stars = len(lengths)

    def places(block: Block) -> Iterator[tuple[int, int]]:
        nonlocal stars
        for token in block.tokens:
            stars += token == "*"
            yield (stars - 1, 0) if token == "*" else (0, letter(token))

    bound = [list(places(block)) for block in (*relevant, *template.decoys)]
    spare: list[list[tuple[int, int]]]
    spare = [[(1 + g, i) for i in range(n)] for g, n in enumerate(lengths[1:])]
    rest = bound[len(relevant) :] + spare[len(relevant) :]
    here, away = (_padded(x + rest, task) for x in (bound[: len(relevant)], spare[: len(relevant)]))
    lengths += [1] * (stars - len(lengths))
    query = np.array([letter(x) for x in template.query], np.int32)
    distractors = len(relevant) + task.distractors
    return Layout(
        here,
        away,
        np.array(lengths),
        len(relevant),
        len(bound),
        distractors,
        query,
        letter(template.answer),
    )


def _padded(blocks: list[list[tuple[int, int]]], task: Task) -> np.ndarray:
    # 32-bit in every precision: a trace may otherwise keep constants of another precision.
    padded = [b + [(0, -1)] * (task.block_size - len(b)) for b in blocks]
    return np.array(padded, np.int32)


def orders_of(task: Task) -> np.ndarray:
    """Permutations of a block's places, the identity first; only that where nothing is shuffled."""
    template = task.template
    shuffled = any(block.shuffled for block in (*template.relevant, *template.decoys))
    places = range(task.block_size)
    return np.array(list(permutations(places)) if shuffled else [places], np.int32)


def shuffles_of(task: Task) -> list[list[int]]:
    """The permutations (rows of `orders_of`) that each relevant block and decoy may stand in."""
    orders = orders_of(task)
    blocks = [block for block in task.template.relevant for _ in range(task.burstiness)]
    blocks += task.template.decoys
    still = np.arange(task.block_size)
    return [
        [
            i
            for i, order in enumerate(orders)
            if (order[len(b.tokens) :] == still[len(b.tokens) :]).all() and (b.shuffled or i == 0)
        ]
        for b in blocks
    ]


def assemble(task: Task, outcome: Outcome) -> Prompts:
    """The canonical prompt of an outcome (weight 1)."""
    shape = layout(task)
    tokens = _group_tokens(task, outcome)
    here, away = jnp.asarray(shape.here), jnp.asarray(shape.away)
    places = jnp.where(outcome.present, here, away)
    orders = jnp.asarray(orders_of(task))[outcome.shuffle]
    bound = places[: shape.bound]
    moved = jnp.take_along_axis(bound, orders[:, :, None], axis=1)
    stays = ~outcome.present & (jnp.arange(shape.bound) < shape.relevant)
    moved = jnp.where(stays[:, None, None], bound, moved)
    places = jnp.concatenate([moved, places[shape.bound :]])
    return _flatten(task, tokens, places, outcome.order)


def _group_tokens(task: Task, outcome: Outcome) -> Int[Array, "G W"]:
    """Token of each index of each group: linked ones share a copy, the others open a new one."""
    shape, index = layout(task), jnp.arange(layout(task).width)
    sizes = jnp.asarray([r.motif.size for r in task.classes])
    classes = jnp.concatenate([outcome.classes, jnp.repeat(outcome.classes[:1], shape.fresh)])
    links = jnp.pad(outcome.links, ((0, shape.fresh), (0, 0)))
    opens = ~(links & (index % sizes[classes][:, None] != 0))
    root = jax.lax.cummax(jnp.where(opens, index, 0), axis=1)
    shown = jnp.where(outcome.present, _shown(shape, shape.here), _shown(shape, shape.away))
    new = jnp.any((root[:, None] == index[:, None]) & shown[:, None], axis=2)
    one_hot = new[:, :, None] & (classes[:, None, None] == jnp.arange(len(task.classes)))
    count = jnp.cumsum(one_hot.reshape(-1, len(task.classes)), axis=0).reshape(one_hot.shape) - 1
    label = jnp.take_along_axis(count, classes[:, None, None], axis=2)[:, :, 0]
    copy = jnp.take_along_axis(label, root, axis=1)
    first = jnp.asarray([task.tokens.first(i) for i in range(len(task.classes))])
    return first[classes][:, None] + copy * sizes[classes][:, None] + index - root


def _shown(shape: Layout, places: np.ndarray) -> Bool[np.ndarray, "G W"]:
    """Which tokens stand in a prompt; the others need no copy of their own."""
    shown = np.zeros((len(shape.lengths), shape.width), bool)
    shown[0, [*shape.query, shape.answer]] = True
    group, index = places[places[..., 1] >= 0].T
    shown[group, index] = True
    return shown


def _flatten(task: Task, tokens, places: Int[Array, "N k 2"], order) -> Prompts:
    """Blocks in their order, then the query's incomplete block."""
    shape, k = layout(task), task.block_size
    offset = jnp.broadcast_to(jnp.arange(k), places.shape[:2])
    padded = places[..., 1] < 0
    rank = jnp.where(padded, task.blocks * k, order[:, None] * k + offset)
    kept = jnp.argsort(rank.ravel())[: task.length - len(shape.query)]
    context = tokens[places[..., 0], places[..., 1]].ravel()[kept]
    q, query = jnp.arange(len(shape.query)), jnp.asarray(shape.query)
    return Prompts(
        jnp.concatenate([context, tokens[0, query]]),
        jnp.concatenate([rank.ravel()[kept] // k, jnp.full(len(q), task.blocks)]),
        jnp.concatenate([rank.ravel()[kept] % k, q]),
        tokens[0, shape.answer],
        jnp.ones(()),
    )


class Odds(eqx.Module):
    """The probabilities behind a task's outcomes; they may vary where the shapes do not.

    `shares` of the token classes, `unlinked` q of each class, and the `context_fraction`.
    """

    shares: Float[Array, " C"]
    unlinked: Float[Array, " C"]
    context_fraction: Float[Array, ""]


def odds(task: Task, shape: Task | None = None) -> Odds:
    """The probabilities that a task's statistics stand for.

    With a `shape`, for the classes of that task: one with f_r between 0 and 1 holds both kinds.
    """
    own = dict(zip((r.name for r in task.classes), task.shares, strict=True))
    classes = (shape or task).classes
    shares = [own.get(relation.name, 0.0) for relation in classes]
    q = [unlinked(task.variability, relation) for relation in classes]
    return Odds(*map(jnp.asarray, (shares, q, task.context_fraction)))


def draw(key: Key[Array, ""], task: Task, odds: Odds) -> Outcome:
    """One random outcome; `task` gives the shapes."""
    shape, groups = layout(task), 1 + layout(task).distractors
    sizes = (groups,), (groups, shape.width), (task.blocks,), (shape.bound,), ()
    one, many, order, turn, here = chances(key, *sizes)
    classes = jnp.searchsorted(jnp.cumsum(odds.shares[:-1]), unit(one), side="right")
    links = unit(many) >= odds.unlinked[classes][:, None]
    allowed = shuffles_of(task)
    count = np.array([len(choices) for choices in allowed])
    padded = jnp.array([choices + [0] * (max(count) - len(choices)) for choices in allowed])
    shuffle = padded[jnp.arange(len(count)), (turn % count.astype(np.uint32)).astype(int)]
    present = unit(here) < odds.context_fraction
    return Outcome(present, classes, links, jnp.argsort(order), shuffle)


@dataclass(frozen=True)
class Question:
    """A kind of prompt to ask for: class of the letters, associated or not, answer at hand or not.

    A field of `None` is left to chance.
    """

    present: bool | None = None
    class_name: str | None = None
    linked: bool | None = None


def ask(task: Task, question: Question, outcome: Outcome) -> Outcome:
    """The same outcome, with the letters as the question wants them."""
    names = [relation.name for relation in task.classes]
    if question.present is not None:
        outcome = eqx.tree_at(lambda o: o.present, outcome, jnp.array(question.present))
    if question.class_name is not None:
        chosen = names.index(question.class_name)
        outcome = eqx.tree_at(lambda o: o.classes, outcome, outcome.classes.at[0].set(chosen))
    if question.linked is not None:
        links = outcome.links.at[0].set(question.linked)
        outcome = eqx.tree_at(lambda o: o.links, outcome, links)
    return outcome


@partial(jax.jit, static_argnames=("task", "size", "question"))
def sample(
    task: Task,
    key: Key[Array, ""],
    size: int,
    odds: Odds,
    question: Question = Question(),
) -> Prompts:
    """`size` random prompts of a task, equally weighted.

    `odds` are those of the task (`imir.odds`) or of another one of the same shape.
    """
    draws, images = jax.random.split(key)
    outcomes = jax.vmap(lambda k: ask(task, question, draw(k, task, odds)))(
        jax.random.split(draws, size)
    )
    prompts = uniform(jax.vmap(partial(assemble, task))(outcomes))
    return random_image(images, prompts, task.classes, task.positions)
