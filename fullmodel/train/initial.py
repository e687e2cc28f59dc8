"""Where training starts: a generic point, a point of the manifold, or one beside it.

Shapes as in `fullmodel.model`; `U` paths, `S` selections, `N` tokens and places, `E` elements.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from fullmodel.architecture import Architecture
from fullmodel.frames import Frame, writings
from fullmodel.model import Weights, shapes
from imir.basis import Basis


def generic(
    frame: Frame, architecture: Architecture, key: Key[Array, ""], scale: float = 1.0
) -> Weights:
    """Gaussian matrices with entries of variance scale²/(rows), gains of one.

    Trained embeddings start from the frame's.
    """
    wanted, dtype = shapes(frame, architecture), frame.tokens.dtype
    keys = dict(zip(wanted, jax.random.split(key, len(wanted)), strict=True))

    def drawn(name: str) -> Array:
        if name in ("tokens", "positions"):
            return getattr(frame, name)
        if name == "gains":
            return jnp.ones(wanted[name], dtype)
        shape = wanted[name]
        return scale * jax.random.normal(keys[name], shape, dtype) / jnp.sqrt(shape[-2])

    return Weights(**{"key_query": None, **{name: drawn(name) for name in wanted}})


def lifted(basis: Basis, frame: Frame, coefficients: Float[Array, " E"]) -> Weights:
    """W = Σ θ_e F_uᵀ S F_v and R = Σ θ_e F_∅ᵀ S F_v, with F_u the writings of path u.

    On the exact frame this is the point of the manifold with these coordinates; on a random frame
    scores are off by about 1/√d.
    """
    theta = np.asarray(coefficients)
    F, S = writings(basis, frame), basis.configuration.dense(basis.values)
    number = {path: i for i, path in enumerate(basis.paths(basis.layers + 1))}
    tables = np.zeros((basis.layers + 1, basis.heads, len(number), len(number), len(S)))
    for value, e in zip(theta, basis.elements, strict=True):
        here = e.layer - 1, (e.head or 1) - 1, number[e.query_path], number[e.key_path]
        tables[(*here, e.selection)] = value
    used = np.argwhere(np.any(tables != 0, axis=-1))
    W = np.zeros((basis.layers + 1, basis.heads, F.shape[-1], F.shape[-1]))
    for layer, head, u, v in used:
        kernel = np.tensordot(tables[layer, head, u, v], S, 1)
        W[layer, head] += F[u].T @ kernel @ F[v]
    dtype = frame.tokens.dtype
    return Weights(jnp.asarray(W[:-1], dtype), jnp.asarray(W[-1, 0], dtype))


def beside(weights: Weights, key: Key[Array, ""], share: float) -> Weights:
    """The weights, with Gaussian noise of the given share of each array's norm."""
    leaves, form = jax.tree.flatten(weights)
    noise = [
        jax.random.normal(k, x.shape, x.dtype)
        for k, x in zip(jax.random.split(key, len(leaves)), leaves, strict=True)
    ]
    moved = [
        x + share * jnp.linalg.norm(x) / jnp.linalg.norm(z) * z
        for x, z in zip(leaves, noise, strict=True)
    ]
    return jax.tree.unflatten(form, moved)


def on_manifold(weights: Weights, point: Weights) -> Weights:
    """Generic weights with key-query matrices and readout of a point of the manifold."""
    if weights.key_query is None:
        raise ValueError(
            "Argument `key_query` must be merged to start on the manifold, but is factorised."
        )
    return replace(weights, key_query=point.key_query, readout=point.readout)
