"""Prompts and their symmetric images, as one pytree.

Shapes: `n` tokens of a prompt. A place is an element `block * K + offset` of the position
relation (rings of K places, one per slot), just as a token is an element of the token relations.
"""

from functools import partial
from itertools import permutations, product
from math import factorial, perm, prod

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, UInt

from imir.relations import Relation

# Compiler options of what runs once: compiling it quickly matters more than running it quickly.
ONCE = {"xla_backend_optimization_level": 0}


class Prompts(eqx.Module):
    """A weighted list of prompts: `E[f] = Σ weight · f(prompt)`.

    `tokens` are elements of the token configuration; `block` and `offset` are the slot and the
    place on its ring (index in the block, up to a rotation); `target` is the token to predict.
    """

    tokens: Int[Array, "*batch n"]
    block: Int[Array, "*batch n"]
    offset: Int[Array, "*batch n"]
    target: Int[Array, "*batch"]
    weight: Float[Array, "*batch"]

    def __len__(self) -> int:
        return self.tokens.shape[0]

    @property
    def length(self) -> int:
        """Number of tokens in a prompt."""
        return self.tokens.shape[-1]


def uniform(prompts: Prompts) -> Prompts:
    """The same prompts with equal weights that sum to one."""
    weight = jnp.full(prompts.weight.shape, 1.0 / prompts.weight.size)
    return eqx.tree_at(lambda p: p.weight, prompts, weight)


def chances(key: Key[Array, ""], *shapes: tuple[int, ...]) -> list[UInt[Array, "..."]]:
    """Random words for several purposes from one call of the generator.

    Compiling the generator costs more than all that is done with its words.
    """
    sizes = [prod(shape) for shape in shapes]
    words = jax.random.bits(key, (sum(sizes),), jnp.uint32)
    parts = jnp.split(words, np.cumsum(sizes)[:-1].tolist())
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def unit(words: UInt[Array, "*n"]) -> Float[Array, "*n"]:
    """Uniform numbers in [0, 1), exact in float32 as well."""
    return (words >> 8).astype(float) * 2.0**-24


def distinct(key: Key[Array, ""], below: int, count: int) -> Int[Array, " count"]:
    """`count` different integers below `below`, uniformly ordered (Floyd's algorithm, O(count²)).

    Never materialises `below` integers, so vocabularies of any size cost the same. Probabilities
    are uniform up to below / 2³².
    """
    choose, shuffle = chances(key, (count,), (count,))
    return _distinct(choose, shuffle, below)


def _distinct(choose: UInt[Array, " count"], shuffle: UInt[Array, " count"], below: int):
    count = len(choose)
    limits = np.arange(below - count, below, dtype=np.uint32) + 1
    draws = (choose % limits).astype(int)

    def pick(chosen, i):
        value = jnp.where(jnp.any(chosen == draws[i]), below - count + i, draws[i])
        return chosen.at[i].set(value), None

    chosen, _ = jax.lax.scan(pick, jnp.full(count, -1), jnp.arange(count))
    return chosen[jnp.argsort(shuffle)]


def _apply(elements: Int[Array, " n"], first: int, relation: Relation, copies, turns):
    """Send (copy, role) to (copies[copy], turns[copy](role)) within one relation."""
    m = relation.motif.size
    automorphisms = jnp.asarray(relation.motif.automorphisms)
    inside = (elements >= first) & (elements < first + relation.size)
    copy, role = jnp.clip((elements - first) // m, 0, copies.shape[0] - 1), (elements - first) % m
    image = first + copies[copy] * m + automorphisms[turns[copy], role]
    return jnp.where(inside, image, elements)


def random_image(
    key: Key[Array, ""], prompts: Prompts, tokens: tuple[Relation, ...], positions: Relation
) -> Prompts:
    """Each prompt under a random symmetry of its own: fresh copies, slots and rotations.

    Expects canonical prompts, whose copies are numbered from zero in each relation.
    """
    keys = jax.random.split(key, len(prompts))
    return jax.vmap(partial(_random_image, tokens=tokens, positions=positions))(keys, prompts)


def _random_image(key, prompt: Prompts, tokens, positions) -> Prompts:
    both, K = jnp.append(prompt.tokens, prompt.target), positions.motif.size
    relations = (*tokens, positions)
    used = [min(r.copies, len(both) - (r is positions)) for r in relations]
    words = chances(key, *((3, u) for u in used))
    *images, place = (_random_symmetry(w, r) for w, r in zip(words, relations, strict=True))
    first = 0
    for relation, symmetry in zip(tokens, images, strict=True):
        both = _apply(both, first, relation, *symmetry)
        first += relation.size
    moved = _apply(prompt.block * K + prompt.offset, 0, positions, *place)
    return Prompts(both[:-1], moved // K, moved % K, both[-1], prompt.weight)


def _random_symmetry(words: UInt[Array, "3 used"], relation: Relation):
    """Images of the first copies, and an automorphism for each."""
    turns = words[2] % np.uint32(len(relation.motif.automorphisms))
    return _distinct(words[0], words[1], relation.copies), turns.astype(int)


def orbit_size(relation: Relation, used: int) -> int:
    """Number of images of `used` copies of a relation."""
    return perm(relation.copies, used) * len(relation.motif.automorphisms) ** used


def symmetries(relation: Relation, used: int, whole: bool) -> list[tuple[np.ndarray, np.ndarray]]:
    """Symmetries (copies, turns) of the first `used` copies of a relation.

    `whole=True`: the whole group's images. `whole=False`: a smallest part of them that treats any
    two elements as the whole does, so that averages of anything bilinear in two elements, such as
    a gradient, agree exactly: the affine maps of a field are sharply two-transitive on the copies,
    and a linear code makes the turns of any two copies uniform and independent.
    """
    p, turns = relation.copies, len(relation.motif.automorphisms)
    maps = list(permutations(range(p), used))
    if not whole and is_prime(p) and p * (p - 1) < len(maps):
        maps = [tuple((a * x + b) % p for x in range(used)) for a in range(1, p) for b in range(p)]
    rows = list(product(range(turns), repeat=used))
    if not whole and is_prime(turns) and relation.motif.is_cycle:
        rows = _code(turns, used)
    return [(np.array(m), np.array(r)) for m in maps for r in rows]


def _code(p: int, columns: int) -> list[tuple[int, ...]]:
    """Orthogonal array of strength two over the field of p elements: linear, by its columns."""
    k = 1
    while (p**k - 1) // (p - 1) < columns:
        k += 1
    points = [v for v in product(range(p), repeat=k) if any(v) and next(filter(None, v)) == 1]
    generator = np.array(points[:columns]).reshape(columns, k).T
    return [tuple(np.array(v) @ generator % p) for v in product(range(p), repeat=k)]


def is_prime(p: int) -> bool:
    """Wilson's theorem."""
    return p > 1 and (factorial(p - 1) + 1) % p == 0


def orbit(
    prompt: Prompts, tokens: tuple[Relation, ...], positions: Relation, whole: bool
) -> Prompts:
    """All images of one canonical prompt under the task's symmetries, equally weighted."""
    K, n = positions.motif.size, prompt.tokens.shape[-1]
    both, first = jnp.append(prompt.tokens, prompt.target)[None], 0
    for relation in tokens:
        inside = [int(t) for t in both[0] if first <= t < first + relation.size]
        used = max(((t - first) // relation.motif.size for t in inside), default=-1) + 1
        both = _images(both, first, relation, used, whole)
        first += relation.size
    place = (prompt.block * K + prompt.offset)[None]
    place = _images(place, 0, positions, int(prompt.block.max()) + 1, whole)
    a, b = (x.ravel() for x in np.mgrid[: len(both), : len(place)])
    both, place = both[a], place[b]
    images = Prompts(both[:, :n], place // K, place % K, both[:, n], jnp.ones(len(both)))
    return uniform(images)


def _images(elements, first: int, relation: Relation, used: int, whole: bool):
    if used == 0:
        return elements
    copies, turns = map(jnp.array, zip(*symmetries(relation, used, whole), strict=True))

    @jax.jit
    @jax.vmap
    def images(c, t):
        return jax.vmap(lambda row: _apply(row, first, relation, c, t))(elements)

    return images(copies, turns).reshape(-1, elements.shape[-1])
