"""Attention of three layers and more: all paths' matrices in one array.

    A[u, i, k] = (A_u)_ik      score_h = Σ_v (Σ_{u,S} θ_huSv A_u K_S) A_vᵀ

A layer is three products of whole arrays, whatever the number of its paths, so that a program grows
with the layers alone. Two layers are faster by rows, near places and running sums
(`imir.reduced.forward`); from three on those take as long to run, and longer to compile.

Shapes: `n` tokens, `i` rows, `U` and `V` paths, `S` selections, `H` heads.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from imir.reduced.kernels import Kernels, everywhere


def last_rows(
    coefficients: list[Float[Array, "H U S V"]], B: Float[Array, "S o o"], kernels: Kernels
) -> Float[Array, "P U n"]:
    """Row of the last place of A_v for every path v, from the coefficients of each layer.

    One prompt after another: its arrays stay in the cache, and a gradient keeps few of them.
    """
    apart = everywhere(kernels)[:, : len(B)].swapaxes(2, 3)
    K = apart + jnp.einsum("pko,sol,ptl->pskt", kernels.orbits, B, kernels.asked)
    return jax.lax.map(lambda K: _last_rows(coefficients, K), K)


def _last_rows(coefficients, K: Float[Array, "S n n"]) -> Float[Array, "U n"]:
    A = jnp.eye(K.shape[-1], dtype=K.dtype)[None]
    for c in coefficients[:-1]:
        A = jnp.concatenate([A, _written(_heads(c, A, K, A), A)])
    x = A[:, -1:]
    return jnp.concatenate([x, _written(_heads(coefficients[-1], x, K, A), A)])[:, 0]


def _heads(c, x: Float[Array, "U i n"], K, A: Float[Array, "V n n"]) -> Float[Array, "H i n"]:
    """Rows of the causal softmax of every head."""
    met = jnp.einsum("uik,skt->usit", x, K)
    met = jnp.einsum("husv,usit->hvit", c, met)
    score = jnp.einsum("hvit,vjt->hij", met, A)
    causal = jnp.tril(jnp.ones((A.shape[-1],) * 2, bool))[-x.shape[1] :]
    return jax.nn.softmax(jnp.where(causal, score, -jnp.inf), axis=-1)


def _written(heads: Float[Array, "H i n"], A: Float[Array, "U n n"]) -> Float[Array, "HU i n"]:
    """A^(h) A_u, head by head."""
    return jnp.einsum("hij,ujk->huik", heads, A).reshape(-1, heads.shape[1], A.shape[-1])
