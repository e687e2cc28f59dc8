"""Kernels of selections on a prompt, found by table look-ups.

K_S is a constant for each pair of orbits but for the few places of the same copy or block, so that
x K_S costs O(n) for each row x, and no n × n kernel is kept.

Shapes: `n` tokens, `S` selections, `o` orbits of tokens, `t` elements that kernels are asked for,
`D` places near each.
"""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from imir.prompts import Prompts
from imir.ties import Tie


class Kernels(eqx.Module):
    """K_S[k, t] = B_S[orbit of k, orbit of t], but for the `near` places of t, those that share a
    copy or a block with it: there K_S is `apart` from B_S, the kernel of different copies.
    The heads' selections are followed by their transposes.

    `orbits` of the prompt's tokens k and of the elements t that are `asked`, as one-hot rows. Any
    other place may be listed as near, with zeros; where all are (D = n), they stand in order.
    """

    orbits: Float[Array, "*P n o"]
    asked: Float[Array, "*P t o"]
    near: Int[Array, "*P t D"]
    apart: Float[Array, "*P S t D"]

    def __len__(self) -> int:
        return len(self.near)


def everywhere(kernels: Kernels) -> Float[Array, "P S t n"]:
    """What is apart at every place."""
    n = kernels.orbits.shape[-2]
    if all_are_near(kernels):
        return kernels.apart
    rows = jax.vmap(jax.vmap(lambda near, x: jnp.zeros((len(x), n)).at[:, near].add(x), (0, 1), 1))
    return rows(kernels.near, kernels.apart)


def nearest(kernels: Kernels, width: int | None = None) -> Kernels:
    """The same kernels with so many near places for each element, by default as few as suffice."""
    apart = everywhere(kernels)
    far = jnp.all(apart == 0, axis=1)
    width = int(jnp.max(jnp.sum(~far, axis=-1))) if width is None else width
    near = jnp.sort(jnp.argsort(far, axis=-1)[..., :width], axis=-1)
    kept = jnp.take_along_axis(apart, near[:, None], axis=-1)
    return Kernels(kernels.orbits, kernels.asked, near, kept)


def through(
    c: Float[Array, "U S V"],
    B: Float[Array, "S o o"],
    x: Float[Array, "U i n"],
    kernels: Kernels,
) -> Float[Array, "V i t"]:
    """Σ_{u,S} c_{uSv} x_u K_S."""
    far = jnp.einsum("usv,sop->uvop", c, B)
    across = jnp.einsum("uio,uvop,tp->vit", x @ kernels.orbits, far, kernels.asked)
    apart = kernels.apart[: c.shape[1]]
    if all_are_near(kernels):
        return across + jnp.einsum("usv,uik,stk->vit", c, x, apart)
    return across + jnp.einsum("usv,uitd,std->vit", c, x[:, :, kernels.near], apart)


def all_are_near(kernels: Kernels) -> bool:
    """Are all places listed as near, in order?"""
    return kernels.near.shape[-1] == kernels.orbits.shape[-2]


def look(tie: Tie, prompt: Prompts):
    """Kernels, answers, counts and target of one prompt."""
    basis, config = tie.basis, tie.basis.configuration
    K, first = basis.positions.motif.size, config.first(len(basis.classes))
    heads, output = (_difference(tie, used) for used in used_kernels(tie))
    copy, node = config.locate(jnp.append(prompt.tokens, prompt.target))
    place = config.locate(first + prompt.block * K + prompt.offset)
    token = copy[:-1], node[:-1]
    *candidate, counts = _candidates(basis, copy, node)
    orbits = _orbit(config, node[:-1])
    heads = np.concatenate([heads, heads.swapaxes(1, 2)])
    apart = _apart(heads, token, token) + _apart(heads, place, place)
    kernels = _all_near(orbits, orbits, apart)
    toward = _apart(output.swapaxes(1, 2), token, candidate)
    answers = _all_near(orbits, _orbit(config, candidate[1]), toward)
    target = (len(node) - 1) * _roles(basis) + node[-1] - _first_node(config)[node[-1]]
    return kernels, answers, counts, target


def _all_near(orbits, asked, apart: Float[Array, "S t n"]) -> Kernels:
    return Kernels(orbits, asked, jnp.broadcast_to(jnp.arange(len(orbits)), apart.shape[1:]), apart)


def _orbit(config, node: Int[Array, " n"]) -> Float[Array, "n o"]:
    """One-hot rows of the orbits of token nodes."""
    number = config.orbit_of_node
    return jnp.asarray(np.eye(number[-1])[np.minimum(number, number[-1] - 1)], float)[node]


def _apart(difference: Float[np.ndarray, "S nodes nodes"], source, asked) -> Float[Array, "S t n"]:
    """How far K_S[k, t] is from the kernel of different copies, from (copy, node) of k and of t."""
    (copy, node), (copy_asked, node_asked) = source, asked
    values = jnp.asarray(difference, float)[:, node, node_asked[:, None]]
    return jnp.where(copy == copy_asked[:, None], values, 0.0)


def _difference(tie: Tie, used: list[int]) -> Float[np.ndarray, "S nodes nodes"]:
    """Kernel of two nodes in the same copy minus that in different ones."""
    same, other = _on_nodes(tie, used)[:, 1], _on_nodes(tie, used)[:, 0]
    return np.where(tie.basis.configuration.table[1] >= 0, same - other, 0.0)


def _on_nodes(tie: Tie, used: list[int]) -> Float[np.ndarray, "S 2 nodes nodes"]:
    """Values of kernels on each pair of nodes; zero where there is no such pair."""
    table = tie.basis.configuration.table
    return np.where(table >= 0, tie.kernels[used][:, table], 0.0)


@cache
def background(tie: Tie) -> tuple[Float[np.ndarray, "S o o"], Float[np.ndarray, "T o o"]]:
    """B_S between orbits of tokens in different copies and blocks, for the heads' kernels; for the
    output's, from the prompt's token to the predicted one."""
    last = tie.basis.configuration.orbit_of_node[-1]
    nodes = [list(tie.basis.configuration.orbit_of_node).index(o) for o in range(last + 1)]
    heads, output = (
        _on_nodes(tie, used)[:, 0][:, nodes][:, :, nodes] for used in used_kernels(tie)
    )
    both = heads + heads[:, -1:] + heads[:, :, -1:] + heads[:, -1:, -1:]
    return both[:, :-1, :-1], (output + output[:, :, -1:])[:, :-1, :-1].swapaxes(1, 2)


def _roles(basis) -> int:
    return max(relation.motif.size for relation in basis.classes)


@cache
def _first_nodes(config) -> tuple[int, ...]:
    return tuple(config.node(int(r), 0) for r in config.node_relation)


def _first_node(config) -> Int[Array, " nodes"]:
    return jnp.asarray(_first_nodes(config))


def _candidates(basis, copy, node):
    """Every token of the copies in the prompt (and of the target's), then one rest per orbit.

    A copy counts where it stands first; orbits of no further copies count zero times.
    """
    config, roles = basis.configuration, _roles(basis)
    classes = len(basis.classes)
    relation = jnp.asarray(config.node_relation)[node]
    earlier = (copy[:, None] == copy) & (jnp.arange(len(copy)) < jnp.arange(len(copy))[:, None])
    new = ~jnp.any(earlier, axis=1)
    sizes = jnp.asarray([r.motif.size for r in config.relations])[relation]
    role = jnp.arange(roles)
    nodes = _first_node(config)[node][:, None] + jnp.minimum(role, sizes[:, None] - 1)
    counts = new[:, None] & (role < sizes[:, None])
    seen = jnp.sum(new[:, None] & (relation[:, None] == jnp.arange(classes)), axis=0)
    orbits = [o for o in dict.fromkeys(config.orbit_of_node) if o != config.orbit_of_node[-1]]
    members = [np.flatnonzero(config.orbit_of_node == o) for o in orbits]
    of = jnp.array([config.node_relation[m[0]] for m in members])
    absent = jnp.asarray([r.copies for r in basis.classes])[of] - seen[of]
    rest = absent * jnp.asarray([len(m) for m in members])
    return (
        jnp.append(jnp.repeat(copy, roles), jnp.full(len(orbits), -1)),
        jnp.append(nodes.ravel(), jnp.asarray([m[0] for m in members])),
        jnp.append(counts.ravel(), rest).astype(float),
    )


@cache
def used_kernels(tie: Tie) -> tuple[list[int], list[int]]:
    """Kernels that the tie uses in heads and in the output."""
    heads = sorted({t.kernel for t in tie.terms if t.head is not None})
    output = sorted({t.kernel for t in tie.terms if t.head is None})
    return heads, output
