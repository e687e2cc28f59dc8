"""Refinement: compute a coarse lattice, then only what a boundary passes through.

A lattice of stride s has every s-th line of an axis and its last one. Where the corners of a
lattice cell differ in regime, or their emergence times by more than a factor, the lattice of half
the stride is computed inside; elsewhere it is interpolated. The last two dimensions are refined,
others hold separate planes.
"""

from collections.abc import Mapping
from itertools import product

import numpy as np
from jaxtyping import Bool, Float, Int

STEEP = 2.0
TIMES = ("icl_time", "iwl_time", "icl_end", "icl_peak_time", "end")
Fields = Mapping[str, Float[np.ndarray, "*o y x"]]
Lines = tuple[Int[np.ndarray, " a"], Int[np.ndarray, " b"]]


def lattice(shape: tuple[int, ...], stride: int) -> Lines:
    """Lines of a lattice on the last two dimensions."""
    y, x = (np.unique(np.append(np.arange(0, n, stride), n - 1)) for n in shape[-2:])
    return y, x


def on(lines: Lines) -> tuple:
    """Index of a lattice into the last two dimensions."""
    return (..., lines[0][:, None], lines[1])


def is_on(shape: tuple[int, ...], lines: Lines) -> Bool[np.ndarray, "*o y x"]:
    """Which cells stand on a lattice."""
    mask = np.zeros(shape, bool)
    mask[on(lines)] = True
    return mask


def near_boundaries(fields: Fields, lines: Lines) -> Bool[np.ndarray, "*o y x"]:
    """Cells inside of (or on) lattice cells that a boundary or a steep time passes through."""
    regimes = _corners(fields["regime"][on(lines)])
    crossed = np.any(regimes != regimes[0], axis=0) | np.any(regimes < 0, axis=0)
    for name in ("icl_time", "iwl_time"):
        times = _corners(fields[name][on(lines)])
        with np.errstate(invalid="ignore"):
            crossed |= np.max(times, axis=0) > STEEP * np.min(times, axis=0)
    mask = np.zeros(fields["regime"].shape, bool)
    for *outer, i, j in np.argwhere(crossed):
        rows, columns = (slice(a[k], a[k + 1] + 1) for a, k in zip(lines, (i, j), strict=True))
        mask[(*outer, rows, columns)] = True
    return mask


def _corners(values: Float[np.ndarray, "*o a b"]) -> Float[np.ndarray, "4 *o a-1 b-1"]:
    ends = slice(None, -1), slice(1, None)
    return np.stack([values[(..., a, b)] for a, b in product(ends, ends)])


def interpolated(
    values: Float[np.ndarray, "*o y x"],
    known: Bool[np.ndarray, "*o y x"],
    coarse: Lines,
    fine: Lines,
    name: str,
) -> Float[np.ndarray, "*o y x"]:
    """Values on the fine lattice: known ones, and between the coarse lattice's the others.

    Regimes come from the nearest line, times are interpolated in their logarithms.
    """
    log = name in TIMES
    with np.errstate(divide="ignore", invalid="ignore"):
        filled = np.log(values[on(coarse)]) if log else values[on(coarse)]
        for dimension in (0, 1):
            filled = _between(filled, coarse[dimension], fine[dimension], dimension - 2, name)
        filled = np.exp(filled) if log else filled
    result = values.copy()
    result[on(fine)] = np.where(known[on(fine)], values[on(fine)], filled)
    return result


def _between(values: np.ndarray, coarse, fine, dimension: int, name: str) -> np.ndarray:
    """Linear between lines; from the nearest line for what only has names."""
    high = np.clip(np.searchsorted(coarse, fine), 1, max(1, len(coarse) - 1))
    low, high = high - 1, np.minimum(high, len(coarse) - 1)
    width = np.maximum(coarse[high] - coarse[low], 1)
    share = (fine - coarse[low]) / width
    share = np.round(share) if name == "regime" else share
    shape = [1] * values.ndim
    shape[dimension] = len(fine)
    share = share.reshape(shape)
    below, above = (np.take(values, i, axis=dimension) for i in (low, high))
    # A weight of zero must not spread NaN.
    return np.where(
        share == 0, below, np.where(share == 1, above, (1 - share) * below + share * above)
    )
