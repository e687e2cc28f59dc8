"""Sensitivity of Boolean functions, from packed truth tables (arXiv 2606.08768).

    s(x) = #{i : f(x) ≠ f(x with bit i flipped)}      sensitivity of a string
    K_n  = #{x : s(x) = n},  n = 0 … N                profile
    I_i  = 2^−N #{x : bit i is one of these}          influence;  Σ_i I_i = 2^−N Σ_n n K_n

A table and itself with bit i flipped are exclusive-or'd word by word, and the N results are added
bit by bit: number n stands in as many words as it has binary digits. So 64 strings are counted in
an operation. The order of bits is that of `functions`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int64, Key, UInt64
from scipy.stats import beta, norm

from fullmodel.boolean.functions import AnyArray, checked, mask, unpacked

# The strings within a word whose bit is zero: bit b of their number, b = 0 … 5.
LOW = tuple(np.uint64(sum(1 << k for k in range(64) if not k >> b & 1)) for b in range(6))
# Words at once, so that the counters stay in the cache.
BLOCK = 2**15


def average(profile: Int64[np.ndarray, "*models N+1"]) -> Float[np.ndarray, "*models"]:
    """Average sensitivity of a profile, 2^−N Σ_n n K_n."""
    return profile @ np.arange(profile.shape[-1]) / np.sum(profile, axis=-1)


@dataclass(frozen=True)
class Sensitivity:
    """Exact sensitivities of one function, or of several along a leading axis."""

    profile: Int64[np.ndarray, "*models N+1"]
    """K_0 … K_N."""
    influences: Float[np.ndarray, "*models N"]
    """I_1 … I_N."""

    @property
    def average(self) -> Float[np.ndarray, "*models"]:
        """2^−N Σ_n n K_n."""
        return average(self.profile)

    @property
    def maximum(self) -> Int64[np.ndarray, "*models"]:
        """max_x s(x)."""
        found = self.profile[..., ::-1] > 0
        return self.profile.shape[-1] - 1 - np.argmax(found, axis=-1)

    @property
    def zeros(self) -> Int64[np.ndarray, "*models"]:
        """K_0, strings that no flip of a bit takes to another value."""
        return self.profile[..., 0]


def sensitivity(words: UInt64[np.ndarray, "*models W"], length: int) -> Sensitivity:
    """Profiles and influences of packed truth tables of N = `length` bits.

    Raises `ValueError` where N is not from 1 to 24 or the number of words is not that of N.
    """
    _check(words, length)
    rows = words.reshape(-1, words.shape[-1])
    size = max(1, BLOCK // rows.shape[1])
    parts = [_counted(rows[s : s + size], length) for s in range(0, len(rows), size)]
    counts, flips = (np.concatenate(part) for part in zip(*parts, strict=True))
    shape = words.shape[:-1]
    return Sensitivity(counts.reshape(*shape, -1), flips.reshape(*shape, -1) / 2**length)


def zero_strings(
    words: UInt64[np.ndarray, " W"], length: int, most: int | None = None
) -> Int64[np.ndarray, " Z"]:
    """Places in the truth table of the strings of sensitivity zero, the first `most` of them."""
    _check(words, length)
    digits, _ = _added(words, length)
    sensitive = reduce(np.bitwise_or, digits)
    return np.flatnonzero(~unpacked(sensitive, length))[:most]


def _check(words: np.ndarray, length: int) -> None:
    wanted = max(1, 2 ** checked(length) // 64)
    if words.shape[-1] != wanted or words.dtype != np.uint64:
        raise ValueError(
            f"Argument `words` must be {wanted} words of 64 bits for strings of {length}, but is "
            f"{words.shape[-1]} of dtype {words.dtype}."
        )


def _counted(words: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """K_n, and for how many strings each bit matters."""
    digits, flips = _added(words, length)
    counts = np.zeros((length + 1, len(words)), np.int64)
    _count(digits, np.full_like(words, mask(length)), 0, counts)
    return counts.T, flips


def _added(words: np.ndarray, length: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Binary digits of s(x), the least significant first, and the number of flips of each bit.

    Three summands of one significance become a sum and a carry, which is of the next.
    """
    levels: list[list[np.ndarray]] = [[] for _ in range(length.bit_length())]
    flips = []
    for place in range(length):
        carry = flipped(words, length, place)
        flips.append(_ones(carry))
        for level in levels:
            level.append(carry)
            if len(level) < 3:
                break
            a, b, c = level
            level[:] = [a ^ b ^ c]
            carry = a & b | (a ^ b) & c
    return _resolved(levels), np.stack(flips, axis=-1)


def _resolved(levels: list[list[np.ndarray]]) -> list[np.ndarray]:
    """One table for each significance."""
    digits = []
    for level, above in zip(levels, [*levels[1:], []], strict=True):
        while len(level) > 1:
            a, b = level.pop(), level.pop()
            level.append(a ^ b)
            above.append(a & b)
        digits += level
    return digits


def flipped(
    words: UInt64[np.ndarray, "*models W"], length: int, place: int
) -> UInt64[np.ndarray, "*models W"]:
    """The table of f(x) ≠ f(x with the bit of that place, from 0, flipped)."""
    b = length - 1 - place
    if b >= 6:
        return words ^ np.take(words, np.arange(words.shape[-1]) ^ (1 << (b - 6)), axis=-1)
    shift = np.uint64(1 << b)
    change = (words ^ (words >> shift)) & LOW[b] & mask(length)
    return change | change << shift


def _count(digits: list[np.ndarray], among: np.ndarray, n: int, counts: np.ndarray) -> None:
    """K_n for all n with some leading digits, from the strings `among` those that have them."""
    if n << len(digits) >= len(counts):
        return
    if not digits:
        counts[n] = _ones(among)
        return
    *lower, digit = digits
    one = among & digit
    _count(lower, one, 2 * n + 1, counts)
    _count(lower, among ^ one, 2 * n, counts)


def _ones(words: np.ndarray) -> np.ndarray:
    return np.asarray(np.sum(np.bitwise_count(words), axis=-1, dtype=np.int64))


@dataclass(frozen=True)
class Estimate:
    """Sensitivities from sampled strings; every interval is (lower end, upper end)."""

    samples: int
    level: float
    """Confidence of each interval by itself."""
    profile: Float[np.ndarray, " N+1"]
    """K_n / 2^N, unbiased."""
    profile_interval: Float[np.ndarray, "2 N+1"]
    influences: Float[np.ndarray, " N"]
    influences_interval: Float[np.ndarray, "2 N"]
    average: float
    average_interval: tuple[float, float]
    maximum: int
    """The largest sensitivity seen, a lower bound."""
    zero_strings: tuple[int, ...]
    """Sampled strings of sensitivity zero, as numbers."""


def estimate(
    function: Callable[[Bool[Array, "B N"]], Bool[AnyArray, " B"]],
    length: int,
    samples: int,
    key: Key[Array, ""],
    level: float = 0.95,
) -> Estimate:
    """Sensitivities of any function of N bits, from strings drawn uniformly, with intervals.

    Each sampled string is asked for with each of its flips: samples · (N + 1) evaluations, N + 1
    calls. Shares of strings have Clopper and Pearson's intervals, which cover at least as often as
    they say; the average has the central limit's.
    """
    if length < 1:
        raise ValueError(f"Argument `length` must be at least 1, but is {length}.")
    if samples < 2:
        raise ValueError(f"Argument `samples` must be at least 2, but is {samples}.")
    bits = jax.random.bernoulli(key, shape=(samples, length))
    value = function(bits)
    change = np.stack([function(bits.at[:, i].set(~bits[:, i])) != value for i in range(length)])
    s = np.sum(change, axis=0)
    profile, flips = np.bincount(s, minlength=length + 1), np.sum(change, axis=1)
    half = float(norm.ppf((1 + level) / 2) * np.std(s, ddof=1) / np.sqrt(samples))
    mean = float(np.mean(s))
    return Estimate(
        samples=samples,
        level=level,
        profile=profile / samples,
        profile_interval=interval(profile, samples, level),
        influences=flips / samples,
        influences_interval=interval(flips, samples, level),
        average=mean,
        average_interval=(max(0.0, mean - half), min(float(length), mean + half)),
        maximum=int(np.max(s)),
        zero_strings=tuple(
            int("".join(row), 2) for row in np.asarray(bits)[s == 0].astype(int).astype(str)
        ),
    )


def interval(hits: np.ndarray, trials: int, level: float = 0.95) -> Float[np.ndarray, "2 *shape"]:
    """Clopper and Pearson's confidence interval of probabilities, from hits in trials."""
    tail = (1 - level) / 2
    low = np.where(hits > 0, beta.ppf(tail, hits, trials - hits + 1), 0.0)
    high = np.where(hits < trials, beta.ppf(1 - tail, hits + 1, trials - hits), 1.0)
    return np.stack([low, high])
