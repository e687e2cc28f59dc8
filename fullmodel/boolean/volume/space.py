"""Sets in a space of random points: how to draw a point, move it, and tell how near it is."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

Point = Float[Array, " P"]
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
    noise = jax.random.normal(key, point.shape, point.dtype)
    return jnp.sqrt(1 - step**2) * point + step * noise


def uniform_move(key: Key[Array, ""], point: Point, step: Float[Array, ""]) -> Point:
    """θ + s ξ reflected at the borders, which leaves U(−1, 1) in every entry as it is."""
    return _reflected(point + step * jax.random.normal(key, point.shape, point.dtype))


def _reflected(x: Point) -> Point:
    """Into [−1, 1], as light between two mirrors."""
    return 1 - jnp.abs((x + 1) % 4 - 2)
