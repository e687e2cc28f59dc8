"""Sets in a space of random points: how to draw a point, move it, and tell how near it is."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

Point = Any
Move = Callable[[Key[Array, ""], Point, Float[Array, ""]], Point]


class Space(eqx.Module):
    """A distribution of points and a subset of them, `score(point) > 0`.

    `move(key, point, step)` with a step in (0, 1] must leave the distribution as it is
    (detailed balance). The score decides which points survive on the way into the set: the more
    smoothly it rises, the smaller the error.
    """

    draw: Callable[[Key[Array, ""]], Point]
    move: Move
    score: Callable[[Point], Float[Array, ""]]


def gaussian_move(key: Key[Array, ""], point: Point, step: Float[Array, ""]) -> Point:
    """√(1 − s²) θ + s ξ with ξ standard normal, which leaves N(0, 1) in every entry as it is.

    The preconditioned Crank–Nicolson proposal (Cotter et al. 2013, "MCMC methods for functions").
    """
    noise = _normal_like(key, point)
    return jax.tree.map(lambda x, e: jnp.sqrt(1 - step**2) * x + step * e, point, noise)


def uniform_move(key: Key[Array, ""], point: Point, step: Float[Array, ""]) -> Point:
    """θ + s ξ reflected at the borders, which leaves U(−1, 1) in every entry as it is."""
    noise = _normal_like(key, point)
    return jax.tree.map(lambda x, e: _reflected(x + step * e), point, noise)


def _reflected(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Into [−1, 1], as light between two mirrors."""
    return 1 - jnp.abs((x + 1) % 4 - 2)


def _normal_like(key: Key[Array, ""], point: Point) -> Point:
    leaves, tree = jax.tree.flatten(point)
    keys = jax.random.split(key, len(leaves))
    noise = [jax.random.normal(k, x.shape, x.dtype) for k, x in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(tree, noise)
