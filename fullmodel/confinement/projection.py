"""Full weights ↔ coordinates on the manifold (arXiv 2607.11875, Theorem 1).

    W = Σ_e θ_e B_e,     θ = G⁻¹ ⟨B_e, W⟩,     distance = ‖W − Σ_e θ_e B_e‖      (Frobenius)

B_e are the basis elements V_u S V_vᵀ (heads) and S V_vᵀ (output) in the exact frame, G their Gram
matrix. They are used block by block: W is a table of N × N blocks, one for each pair of paths.

Shapes: `E` basis elements, `U` paths, `S` selections, `N` tokens and places, `L` layers, `H` heads.
"""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from fullmodel.frames import Frame, exact_frame, writings
from fullmodel.model import Transformer, Weights
from imir.basis import Basis


@partial(jax.jit, static_argnums=0)
def weights(basis: Basis, coefficients: Float[Array, " E"]) -> Weights:
    """Σ_e θ_e B_e: the full weights at a point of the manifold, in the coefficients' dtype."""
    theta, readout = _tables(basis, coefficients)
    S = jnp.asarray(basis.configuration.dense(basis.values), coefficients.dtype)
    _, N, d = _sizes(basis)
    key_query = jnp.einsum("lhusv,sij->lhuivj", theta, S).reshape(*theta.shape[:2], d, d)
    rows = jnp.einsum("sv,sij->ivj", readout, S).reshape(N, d)
    return Weights(key_query, jnp.zeros((d, d), rows.dtype).at[:N].set(rows))


def lifted(basis: Basis, frame: Frame, coefficients: Float[Array, " E"]) -> Weights:
    """W = Σ θ_e F_uᵀ S F_v and R = Σ θ_e F_∅ᵀ S F_v, with F_u the writings of path u.

    On the exact frame these are the `weights` with these coordinates; on a random frame scores are
    off by about 1/√d.
    """
    theta, readout = map(np.asarray, _tables(basis, coefficients))
    F, S = writings(basis, frame), basis.configuration.dense(basis.values)
    L, H, N, flat = *theta.shape[:2], F.shape[1], F.reshape(-1, F.shape[-1])
    blocks = np.tensordot(theta, S, (3, 0)).transpose(0, 1, 2, 4, 3, 5)
    W = flat.T @ blocks.reshape(L, H, len(flat), len(flat)) @ flat
    rows = np.tensordot(readout, S, (0, 0)).swapaxes(0, 1)
    R = F[0].T @ rows.reshape(N, len(flat)) @ flat
    return Weights(*(jnp.asarray(x, frame.tokens.dtype) for x in (W, R)))


def _tables(basis: Basis, coefficients: Float[Array, " E"]):
    """Coefficients in tables (ℓ, h, u, S, v) of the heads and (S, v) of the output."""
    heads, output = _places(basis)
    in_heads, in_output = jnp.split(coefficients, [len(heads)])
    U, S = _sizes(basis)[0], len(basis.values)
    zeros = partial(jnp.zeros, dtype=coefficients.dtype)
    theta = zeros((basis.layers, basis.heads, U, S, U)).at[tuple(heads.T)].set(in_heads)
    return theta, zeros((S, U)).at[tuple(output.T)].set(in_output)


@partial(jax.jit, static_argnums=0)
def inner_products(basis: Basis, weights: Weights) -> Float[Array, " E"]:
    """⟨B_e, W⟩ = Σ_ij S_ij (V_uᵀ W V_v)_ij, also the θ-gradient where W is a full gradient."""
    heads, output = _places(basis)
    S = jnp.asarray(basis.configuration.dense(basis.values), weights.readout.dtype)
    U, N, _ = _sizes(basis)
    assert weights.key_query is not None
    blocks = weights.key_query.reshape(basis.layers, basis.heads, U, N, U, N)
    in_heads = jnp.einsum("lhuivj,sij->lhusv", blocks, S)
    in_output = jnp.einsum("ivj,sij->sv", weights.readout[:N].reshape(N, U, N), S)
    return jnp.append(in_heads[tuple(heads.T)], in_output[tuple(output.T)])


@partial(jax.jit, static_argnums=0)
def project(basis: Basis, weights: Weights) -> Float[Array, " E"]:
    """Coefficients of the nearest point of the manifold: θ = G⁻¹ ⟨B_e, W⟩."""
    products = inner_products(basis, weights)
    return jnp.linalg.solve(jnp.asarray(basis.gram, products.dtype), products)


@partial(jax.jit, static_argnums=0)
def off_span(basis: Basis, given: Weights) -> Weights:
    """What remains of full weights, or of their gradient, without its projection."""
    return jax.tree.map(jnp.subtract, given, weights(basis, project(basis, given)))


@partial(jax.jit, static_argnums=0)
def off_manifold(basis: Basis, given: Weights) -> Float[Array, ""]:
    """Frobenius distance of full weights from the manifold."""
    return optax.tree.norm(off_span(basis, given))


@partial(jax.jit, static_argnums=0)
def residual(basis: Basis, gradient: Weights) -> Float[Array, ""]:
    """Share of a gradient's norm that leaves the span, the largest of all layers and the output.

    The share of the whole gradient is never larger than that.
    """
    off, whole = _part_norms(off_span(basis, gradient)), _part_norms(gradient)
    return jnp.max(jnp.where(whole > 0, off / whole, 0.0))


def _part_norms(given: Weights) -> Float[Array, " L+1"]:
    """Frobenius norm of each layer's key-query matrices, and of the readout."""
    assert given.key_query is not None
    layers = jnp.sum(given.key_query**2, axis=(1, 2, 3))
    return jnp.sqrt(jnp.append(layers, jnp.sum(given.readout**2)))


def _sizes(basis: Basis) -> tuple[int, int, int]:
    U, N = len(basis.paths(basis.layers + 1)), basis.configuration.size
    return U, N, U * N


@cache
def _places(basis: Basis) -> tuple[Int[np.ndarray, "E 5"], Int[np.ndarray, "E 2"]]:
    """Where the elements stand in tables (ℓ, h, u, S, v) of the heads and (S, v) of the output."""
    path = basis.paths(basis.layers + 1).index
    heads = [
        (e.layer - 1, e.head - 1, path(e.query_path), e.selection, path(e.key_path))
        for e in basis.elements
        if e.head is not None
    ]
    output = [(e.selection, path(e.key_path)) for e in basis.elements if e.head is None]
    return np.array(heads, int).reshape(-1, 5), np.array(output, int).reshape(-1, 2)


def at(basis: Basis, coefficients: Float[Array, " E"]) -> Transformer:
    """The full model at a point of the manifold."""
    frame = jax.tree.map(lambda x: x.astype(coefficients.dtype), exact_frame(basis))
    return Transformer(frame, weights(basis, coefficients))
