"""Attention of the first layer without an n × n matrix.

Its scores are the kernels themselves: a constant for each pair of orbits but at the near places. So
row i has one weight for all places of an orbit and others at the few near ones, and products with
vectors are running sums. Shapes as in `imir.reduced.kernels`.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from imir.reduced.kernels import Kernels, all_are_near


class Attention(eqx.Module):
    """A[i, k] = shared[i, orbit of k] for k ≤ i, and `more` than that at the near places of i."""

    kernels: Kernels
    shared: Float[Array, "n o"]
    more: Float[Array, "n D"]


def first_attention(c: Float[Array, " S"], B: Float[Array, "S o o"], kernels: Kernels) -> Attention:
    """Causal softmax of Σ_S c_S K_S, where B_S are the kernels of different copies.

    Places that are not near count as many times as they occur; an orbit without them has weight
    zero, so that no sum cancels.
    """
    orbits, near = kernels.orbits, kernels.near
    far = orbits @ jnp.einsum("s,sop->op", c, B)
    theirs = orbits[near]
    score = jnp.einsum("s,sid->id", c, kernels.apart[len(c) :])
    score += jnp.einsum("ido,io->id", theirs, far)
    causal = (near <= jnp.arange(len(near))[:, None]).astype(c.dtype)
    times = jnp.cumsum(orbits, axis=0) - jnp.einsum("id,ido->io", causal, theirs)
    count = jnp.concatenate([times, causal], axis=1)
    weight = jax.nn.softmax(jnp.concatenate([far, score], axis=1) + jnp.log(count), axis=-1)
    shared, single = jnp.split(weight / jnp.maximum(count, 1.0), [far.shape[1]], axis=1)
    more = causal * (single - jnp.einsum("ido,io->id", theirs, shared))
    return Attention(kernels, shared, more)


def dense(A: Attention) -> Float[Array, "n n"]:
    """The matrix itself."""
    if all_are_near(A.kernels):
        return A.more
    places = jnp.arange(len(A.more))
    at_near = jnp.where(A.kernels.near[:, :, None] == places, A.more[:, :, None], 0.0)
    return jnp.tril(A.shared @ A.kernels.orbits.T) + jnp.sum(at_near, axis=1)


def left(x: Float[Array, "... n"], A: Attention | Float[Array, "n n"]) -> Float[Array, "... n"]:
    """x A."""
    if not isinstance(A, Attention):
        return x @ A
    later = jnp.cumsum((x[..., None] * A.shared)[..., ::-1, :], axis=-2)[..., ::-1, :]
    at_near = jnp.zeros_like(x).at[..., A.kernels.near].add(x[..., None] * A.more)
    return jnp.sum(later * A.kernels.orbits, axis=-1) + at_near


def right(x: Float[Array, "... n"], A: Attention | Float[Array, "n n"]) -> Float[Array, "... n"]:
    """x Aᵀ."""
    if not isinstance(A, Attention):
        return x @ A.T
    earlier = jnp.cumsum(x[..., None] * A.kernels.orbits, axis=-2)
    return jnp.sum(earlier * A.shared, axis=-1) + jnp.sum(x[..., A.kernels.near] * A.more, axis=-1)
