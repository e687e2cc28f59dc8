"""Explicit recognisers of PARITY, MAJORITY and FIRST: needles of which the hay is full of none.

PARITY follows Chiang & Cholak 2022, "Overcoming a theoretical limitation of self-attention",
section 3, in the recogniser's own architecture with layer norm. Of N + 1 places, i = 0 … N:

    layer 1   attention averages the ones, k / (N+1), everywhere; the feed-forward layer writes the
              indicator of i = k, as relu(u − 1) − 2 relu(u) + relu(u + 1) with u = k − i
    layer 2   the end token's two heads look at even and at odd places; the difference of what
              they find there of the indicator is positive where k is even

MAJORITY is the average of layer 1 minus its threshold; FIRST attends to the first place. All write
into one coordinate, and every coordinate has its negative beside it: vectors have mean zero, and a
layer norm is a positive factor that changes no sign. A coordinate that is always one stands for the
biases of relu, so that such a factor passes through, and a last one fills every embedding up to
variance one: a norm before layer 1 changes nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key

from fullmodel.boolean.functions import Function
from fullmodel.boolean.recognizer import (
    Architecture,
    Norm,
    Parameters,
    every_string,
    margins,
    shapes,
    signs_of,
)

ZERO, ONE, END, PLACE, SIDE, FIRST, ALWAYS, REST, COUNT, INDICATOR, ANSWER = range(11)
HALF = 12
# Attention scores of layer 2, in units where those of layer 1 are zero.
SHARP = 12.0


def architecture(length: int, norm: Norm = "post", epsilon: float = 0.0) -> Architecture:
    """The architecture that all three share: two layers, two heads, width 24."""
    return Architecture(length, 2, 2, 2 * HALF, 3, norm, epsilon, "learned")


def parity(length: int) -> Parameters:
    """Weights that compute the parity of N bits."""
    p = _blank(length)
    n = length + 1
    _average(p)
    # u − 1, u and u + 1 for u = k − i.
    p.up[0, COUNT], p.up[0, PLACE], p.up[0, ALWAYS] = n, -n, (-1, 0, 1)
    _write(p.down[0], slice(None), INDICATOR, np.array([1, -2, 1]))
    p.query[1, END, [0, HALF]] = SHARP
    p.key[1, SIDE, [0, HALF]] = 1, -1
    p.value[1, INDICATOR, [1, HALF + 1]] = 1
    _write(p.output[1], [1, HALF + 1], ANSWER, np.array([-1, 1]) * n)
    return _finished(p)


def majority(length: int) -> Parameters:
    """Weights that compute whether more than half of N bits are one."""
    p = _blank(length)
    n = length + 1
    _average(p, float(n))
    threshold = (length // 2) + 0.5
    _write(p.output[0], 0, ANSWER, 1.0)
    p.down_bias[0, ANSWER], p.down_bias[0, ANSWER + HALF] = -threshold, threshold
    return _finished(p)


def first(length: int) -> Parameters:
    """Weights that compute the first bit."""
    p = _blank(length)
    sharp = 2 * np.sqrt(np.log(4.0 * (length + 1)))
    p.query[0, END, 0] = p.key[0, FIRST, 0] = sharp
    p.value[0, ONE, 1] = 1
    _write(p.output[0], 1, ANSWER, 2.0)
    p.down_bias[0, ANSWER], p.down_bias[0, ANSWER + HALF] = -1, 1
    return _finished(p)


NEEDLES: dict[str, Callable[[int], Parameters]] = {
    "parity": parity,
    "majority": majority,
    "first": first,
}


def _blank(length: int) -> Any:
    """Embeddings, the readout, and zeros elsewhere, in NumPy arrays to be filled."""
    made = shapes(architecture(length))
    p = jax.tree.map(np.zeros, made, is_leaf=lambda x: isinstance(x, tuple))
    i = np.arange(length + 1)
    columns = {PLACE: i / (length + 1), SIDE: (-1.0) ** i, FIRST: i == 0, ALWAYS: 1.0 + 0 * i}
    # One is the token's share of the variance.
    columns[REST] = np.sqrt(HALF - 1 - sum(column**2.0 for column in columns.values()))
    for at, column in columns.items():
        p.positions[:, at], p.positions[:, at + HALF] = column, -1.0 * column
    for token, at in enumerate((ZERO, ONE, END)):
        p.tokens[token, at], p.tokens[token, at + HALF] = 1, -1
    p.readout[ANSWER] = 1
    return p


def _average(p: Any, scale: float = 1.0) -> None:
    """The mean of the ones over all places, in the first head's first coordinate."""
    p.value[0, ONE, 0] = scale
    _write(p.output[0], 0, COUNT, 1.0)


def _write(matrix: Float[np.ndarray, "I D"], rows, at: int, values) -> None:
    """Into a coordinate, and the negative into its mirror image."""
    matrix[rows, at], matrix[rows, at + HALF] = values, -values


def _finished(p: Any) -> Parameters:
    return jax.tree.map(jnp.asarray, p)


@dataclass(frozen=True)
class Radius:
    """Upper bounds on the radius of the largest box [θ − r, θ + r] that computes the function.

    Each is the radius of a perturbation that was found to break some string: nothing is proved
    about smaller ones.
    """

    worst: float
    """Along the signs of the logit's gradient, for the string that breaks first."""
    corners: float
    """Along random corners of the box: the first of them to break."""


def radius(
    architecture: Architecture,
    parameters: Parameters,
    function: Function,
    key: Key[Array, ""],
    strings: int = 256,
    corners: int = 32,
) -> Radius:
    """Search for the smallest perturbation, in the largest entry, that breaks a string.

    Gradients are followed for the `strings` of smallest margin. Raises `ValueError` where the
    parameters do not compute the function.
    """
    signs = signs_of(function)
    least, worst, cornered = _search(architecture, strings, corners, parameters, signs, key)
    if least <= 0:
        raise ValueError(
            f"Argument `parameters` must compute {function.name} on all strings, but do not."
        )
    return Radius(float(worst), float(cornered))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _search(architecture: Architecture, strings: int, corners: int, parameters, signs, key):
    every = every_string(architecture.length)
    flat, unravel = ravel_pytree(parameters)

    def sided(x: Array, bits: Array, signs: Array) -> Array:
        return signs * margins(architecture, unravel(x), bits)

    def broken(radius: Array, attack) -> Array:
        """Distance to the side of the failure: positive where it is still right."""
        bits, sign = attack
        one = lambda x: sided(x, bits[None], sign)[0]  # noqa: E731
        first = flat - radius * jnp.sign(jax.grad(one)(flat))
        again = flat - radius * jnp.sign(jax.grad(one)(first))
        return jnp.minimum(one(first), one(again))

    def corner(radius: Array, key: Array) -> Array:
        step = jax.random.rademacher(key, flat.shape, flat.dtype)
        return jnp.min(sided(flat + radius * step, every, signs))

    found = sided(flat, every, signs)
    order = jnp.argsort(found)[:strings]
    worst = jax.lax.map(partial(_bisected, broken), (every[order], signs[order]), batch_size=64)
    cornered = jax.lax.map(partial(_bisected, corner), jax.random.split(key, corners))
    return jnp.min(found), jnp.min(worst), jnp.min(cornered)


def _bisected(right: Callable, argument) -> Array:
    """A radius at which it is no longer right, to a part in a thousand; infinite above 16."""

    def narrow(_, ends):
        low, high = ends
        middle = jnp.sqrt(low * high)
        good = right(middle, argument) > 0
        return jnp.where(good, middle, low), jnp.where(good, high, middle)

    _, high = jax.lax.fori_loop(0, 15, narrow, (jnp.asarray(1e-6), jnp.asarray(16.0)))
    return jnp.where(high < 16, high, jnp.inf)
