"""Orbits of prompts under a task's symmetries: exact expectations for the full model."""

from dataclasses import replace
from functools import partial
from itertools import count
from math import prod

import jax
import numpy as np
from jaxtyping import Array, Key

from imir.prompts import ONCE, Prompts, is_prime, orbit, orbit_size, uniform
from imir.tasks.outcomes import assemble, draw, odds
from imir.tasks.task import Task, copies_needed


def smallest(task: Task) -> Task:
    """The same template and classes, with as few blocks and tokens as a prompt needs.

    No distractors, each relevant block once and present, and a prime number (at least two) of
    copies in each class. With fresh tokens in the template all tokens are rare.
    """
    blocks = *task.template.relevant, *task.template.decoys
    task = replace(
        task,
        blocks=len(blocks),
        burstiness=1,
        context_fraction=1.0,
        rare_fraction=1.0 if any("*" in b.tokens for b in blocks) else task.rare_fraction,
        variability=min(task.variability, 0.5),
        rare_vocabulary=None,
    )
    common, rare = (_prime_from(copies_needed(task, q)) for q in (min(task.unlinked), 1.0))
    size, bins = common * task.motif_size, [share for share, _ in task.frequency_bins]
    sizes = {"frequency_bins": tuple((s, size) for s in bins)} if bins else {"vocabulary": size}
    return replace(task, rare_vocabulary=rare, **sizes)


def _prime_from(least: int) -> int:
    return next(filter(is_prime, count(max(2, least))))


def orbit_of(task: Task, key: Key[Array, ""], most: int = 1000) -> tuple[Prompts, bool]:
    """All images of a random prompt of the task under its symmetries, and whether it is all.

    Where there are more than `most`, a part of them with the same expected gradient.
    """
    prompt = _canonical(task, key)
    size = _orbit_size(task, prompt)
    images = orbit(prompt, task.classes, task.positions, size <= most)
    return (images, True) if len(images) == size else (_thinned(task, images), False)


@partial(jax.jit, static_argnums=0, compiler_options=ONCE)
def _canonical(task: Task, key: Key[Array, ""]) -> Prompts:
    return assemble(task, draw(key, task, odds(task)))


def _thinned(task: Task, images: Prompts) -> Prompts:
    """Each symmetry of the places with one slope a of the token maps x → a x + b, where they exist.

    The translations alone move every token uniformly, so a token and a place stay independent; two
    tokens see all maps equally often where each slope meets equally many symmetries of the places.
    """
    p, single = task.classes[0].size, [r.motif.size for r in task.classes] == [1]
    places = np.stack([images.block, images.offset], axis=1)
    _, place = np.unique(places, axis=0, return_inverse=True)
    slope, many = (images.tokens[:, 1] - images.tokens[:, 0]) % p, int(place.max()) + 1
    if not single or len(images) != p * (p - 1) * many or many % (p - 1) or not slope.all():
        return images
    return uniform(jax.tree.map(lambda x: x[slope - 1 == place.ravel() % (p - 1)], images))


def _orbit_size(task: Task, prompt: Prompts) -> int:
    copy, node = (x[np.append(prompt.tokens, prompt.target)] for x in task.tokens.elements)
    relation = task.tokens.node_relation[node]
    used = [len(set(copy[relation == i])) for i in range(len(task.classes))]
    sizes = map(orbit_size, task.classes, used)
    return prod(sizes) * orbit_size(task.positions, len(set(prompt.block.tolist())))
