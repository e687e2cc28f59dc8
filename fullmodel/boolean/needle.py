"""Explicit recognisers of PARITY, MAJORITY and FIRST: needles of which the hay is full of none.

PARITY follows Chiang & Cholak 2022, "Overcoming a theoretical limitation of self-attention",
section 3, in the recogniser's own architecture with layer norm. Of N + 1 places, i = 0 … N:

    layer 1   attention averages the ones, k / (N+1), everywhere; the feed-forward layer writes the
              indicator of i = k, as relu(u − 1) − 2 relu(u) + relu(u + 1) with u = k − i
    layer 2   the end token's two heads look at even and at odd places; the difference of what
              they find there of the indicator is positive where k is even

MAJORITY is the average of layer 1 minus its threshold; FIRST attends to the first place. All write
into one coordinate, and every coordinate has its negative beside it: vectors have mean zero, and a
layer norm is a positive factor that changes no sign.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from fullmodel.boolean.recognizer import Architecture, Norm, Parameters, shapes

ONE, END, PLACE, SIDE, FIRST, COUNT, INDICATOR, ANSWER = range(8)
HALF = 8
# Attention scores of layer 2, in units where those of layer 1 are zero.
SHARP = 4.0


def architecture(length: int, norm: Norm = "post", epsilon: float = 0.0) -> Architecture:
    """The architecture that all three share: two layers, two heads, width 16."""
    return Architecture(length, 2, 2, 2 * HALF, 3, norm, epsilon, "learned")


def parity(length: int) -> Parameters:
    """Weights that compute the parity of N bits."""
    p = _blank(length)
    n = length + 1
    _average(p)
    # u = k − i, k − i ± 1 by the biases.
    p.up[0, COUNT], p.up[0, PLACE] = n, -n
    p.up_bias[0] = (-1, 0, 1)
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
    _average(p, n)
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


def _blank(length: int) -> Parameters:
    """Embeddings, the readout, and zeros elsewhere, in NumPy arrays to be filled."""
    made = shapes(architecture(length))
    p = jax.tree.map(np.zeros, made, is_leaf=lambda x: isinstance(x, tuple))
    i = np.arange(length + 1)
    for at, column in ((PLACE, i / (length + 1)), (SIDE, (-1.0) ** i), (FIRST, i == 0)):
        p.positions[:, at], p.positions[:, at + HALF] = column, -1.0 * column
    for token, at in ((1, ONE), (2, END)):
        p.tokens[token, at], p.tokens[token, at + HALF] = 1, -1
    p.readout[ANSWER] = 1
    return p


def _average(p: Parameters, scale: float = 1.0) -> None:
    """The mean of the ones over all places, in the first head's first coordinate."""
    p.value[0, ONE, 0] = scale
    _write(p.output[0], 0, COUNT, 1.0)


def _write(matrix: Float[np.ndarray, "I D"], rows, at: int, values) -> None:
    """Into a coordinate, and the negative into its mirror image."""
    matrix[rows, at], matrix[rows, at + HALF] = values, -values


def _finished(p: Parameters) -> Parameters:
    return jax.tree.map(jnp.asarray, p)
