"""What the reduced model sees of many prompts, independent of its coordinates.

Tokens outside the prompt's copies share one logit per orbit, so sums over the vocabulary run over
the prompt's copies plus "the rest, times how many". Shapes: `P` prompts, `c` candidates.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from imir.prompts import Prompts
from imir.reduced.kernels import Kernels, everywhere, look, nearest
from imir.ties import Tie


class View(eqx.Module):
    """What the reduced model sees of `P` prompts; independent of the coordinates.

    `kernels` of the selections that heads use, for `A` different sights, and which of them each
    prompt `attends` with; `answers`, the kernels of the selections that the output uses, asked for
    the candidates t; `counts` how many tokens each candidate stands for; `target` the candidate to
    predict; `weight` of each prompt.
    """

    kernels: Kernels
    attends: Int[Array, " P"]
    answers: Kernels
    counts: Float[Array, "P c"]
    target: Int[Array, " P"]
    weight: Float[Array, " P"]


def view(tie: Tie, prompts: Prompts) -> View:
    """Look up every kernel of every prompt; every place is near."""
    kernels, answers, counts, target = jax.vmap(partial(look, tie))(prompts)
    return View(kernels, jnp.arange(len(prompts)), answers, counts, target, prompts.weight)


def compressed(seen: View) -> View:
    """The same view with nothing twice: prompts that the heads see alike share their attention,
    candidates with equal answers are counted together. Only what is apart is near. Outside of jit
    only."""
    rows = np.concatenate([_flat(seen.kernels.orbits), _flat(everywhere(seen.kernels))], axis=1)
    _, first, number = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    kernels = jax.tree.map(lambda x: x[first], seen.kernels)
    attends = jnp.asarray(number.ravel()[np.asarray(seen.attends)])
    answers, counts, target = _merged(seen)
    return View(nearest(kernels), attends, nearest(answers), counts, target, seen.weight)


def _flat(x: Array) -> Float[np.ndarray, "P s"]:
    return np.asarray(x).reshape(len(x), -1)


def _merged(seen: View) -> tuple[Kernels, Float[Array, "P c"], Int[Array, " P"]]:
    """Answers, counts and target with equal candidates counted together."""
    apart = jnp.moveaxis(everywhere(seen.answers), 1, 2)
    rows = np.concatenate([seen.answers.asked, apart.reshape(*apart.shape[:2], -1)], axis=-1)
    parts = zip(rows, *map(np.asarray, (seen.counts, seen.target)), strict=True)
    kept, counts, target = zip(*(_merge_candidates(*prompt) for prompt in parts), strict=True)
    width = max(map(len, kept))
    # A place left over repeats a candidate and counts zero times.
    index = np.stack([np.pad(k, (0, width - len(k))) for k in kept])
    counts = np.stack([np.pad(c, (0, width - len(c))) for c in counts])
    answers = jax.vmap(_asked_of)(seen.answers, jnp.asarray(index))
    return answers, jnp.asarray(counts), jnp.asarray(np.stack(target))


def _merge_candidates(rows: Float[np.ndarray, "c s"], counts: Float[np.ndarray, " c"], target: int):
    _, first, number = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    total = np.bincount(number.ravel(), weights=counts, minlength=len(first))
    kept = (total > 0) | (np.arange(len(first)) == number.ravel()[target])
    return first[kept], total[kept], np.cumsum(kept)[number.ravel()[target]] - 1


def _asked_of(kernels: Kernels, index: Int[Array, " c"]) -> Kernels:
    asked, near, apart = kernels.asked[index], kernels.near[index], kernels.apart[:, index]
    return Kernels(kernels.orbits, asked, near, apart)


def stacked(views: list[View]) -> View:
    """One view of all prompts; candidates that a view lacks count zero times."""
    width = max(v.counts.shape[1] for v in views)
    before = np.cumsum([0, *(len(v.kernels) for v in views)])
    wide = [jnp.pad(v.counts, ((0, 0), (0, width - v.counts.shape[1]))) for v in views]
    return View(
        _joined([v.kernels for v in views]),
        jnp.concatenate([v.attends + b for v, b in zip(views, before, strict=False)]),
        _joined([_widened(v.answers, width) for v in views]),
        jnp.concatenate(wide),
        jnp.concatenate([v.target for v in views]),
        jnp.concatenate([v.weight for v in views]),
    )


def _widened(kernels: Kernels, width: int) -> Kernels:
    """The first candidate asked again until there are so many."""
    index = jnp.arange(width)
    index = jnp.where(index < kernels.near.shape[1], index, 0)
    return jax.vmap(_asked_of, (0, None))(kernels, index)


def _joined(parts: list[Kernels]) -> Kernels:
    width = max(part.near.shape[-1] for part in parts)
    return jax.tree.map(lambda *x: jnp.concatenate(x), *(nearest(part, width) for part in parts))
