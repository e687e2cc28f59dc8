"""Where training starts: a generic point, a point of the manifold, or one beside it.

Shapes as in `fullmodel.model`.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from fullmodel.architecture import Architecture
from fullmodel.frames import Frame
from fullmodel.model import Weights, shapes


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
