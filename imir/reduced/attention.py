"""Attention of the first layer without an n × n matrix.

Its scores are the kernels themselves: a constant for each pair of orbits but at the near places. So
row i has one weight for all places of an orbit and others at the few near ones, and products with
vectors are running sums. Shapes as in `imir.reduced.kernels`.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from imir.reduced.kernels import Kernels


class Attention(eqx.Module):
    """A[i, k] = shared[i, orbit of k] for k ≤ i, and `more` than that at the near places of i."""

    orbits: Float[Array, "n o"]
    near: Int[Array, "n D"]
    shared: Float[Array, "n o"]
    more: Float[Array, "n D"]


def first_attention(
    c: Float[Array, " S"], background: Float[Array, "S o o"], kernels: Kernels
) -> Attention:
    """Causal softmax of Σ_S c_S K_S.

    Places that are not near count as many times as they occur; an orbit without them has weight
    zero, so that no sum cancels.
    """
    orbits, near = kernels.orbits, kernels.near
    far = orbits @ jnp.einsum("s,sop->op", c, background)
    theirs = orbits[near]
    score = jnp.einsum("s,sid->id", c, kernels.apart[len(c) :])
    score += jnp.einsum("ido,io->id", theirs, far)
    causal = (near <= jnp.arange(len(near))[:, None]).astype(c.dtype)
    times = jnp.cumsum(orbits, axis=0) - jnp.einsum("id,ido->io", causal, theirs)
    far = jnp.where(times > 0, far, -jnp.inf)
    score = jnp.where(causal > 0, score, -jnp.inf)
    both, count = jnp.concatenate([far, score], 1), jnp.concatenate([times, causal], 1)
    total = jax.nn.logsumexp(both, 1, b=count, keepdims=True)
    shared, single = jnp.exp(far - total), jnp.exp(score - total)
    more = jnp.where(causal > 0, single - jnp.einsum("ido,io->id", theirs, shared), 0.0)
    return Attention(orbits, near, shared, more)


def dense(A: Attention) -> Float[Array, "n n"]:
    """The matrix itself."""
    n, D = A.near.shape
    if n == D:
        return A.more
    places = jnp.arange(n)
    at_near = jnp.where(A.near[:, :, None] == places, A.more[:, :, None], 0.0)
    return jnp.tril(A.shared @ A.orbits.T) + jnp.sum(at_near, axis=1)


def left(x: Float[Array, "... n"], A: Attention | Float[Array, "n n"]) -> Float[Array, "... n"]:
    """x A."""
    if not isinstance(A, Attention):
        return x @ A
    later = jnp.cumsum((x[..., None] * A.shared)[..., ::-1, :], axis=-2)[..., ::-1, :]
    at_near = jnp.zeros_like(x).at[..., A.near].add(x[..., None] * A.more)
    return jnp.sum(later * A.orbits, axis=-1) + at_near


def right(x: Float[Array, "... n"], A: Attention | Float[Array, "n n"]) -> Float[Array, "... n"]:
    """x Aᵀ."""
    if not isinstance(A, Attention):
        return x @ A.T
    earlier = jnp.cumsum(x[..., None] * A.orbits, axis=-2)
    return jnp.sum(earlier * A.shared, axis=-1) + jnp.sum(x[..., A.near] * A.more, axis=-1)


def cheapest(A: Attention, rows: int) -> Attention | Float[Array, "n n"]:
    """In products with many rows, or where all places are near, the matrix is faster."""
    return dense(A) if rows > 1 or A.near.shape[-1] == len(A.near) else A
