"""Boolean functions of N bits, and their profiles in closed form (arXiv 2606.08768).

**The order of bits, everywhere in this package.** A string is written x_1 x_2 … x_N, and is the
number with these binary digits, x_1 the most significant one. A truth table lists f in the order of
these numbers, which is the alphabetical order of the strings: for N = 2, f(00) f(01) f(10) f(11). A
packed table holds entry k in bit k mod 64 (counted from the least significant) of word ⌊k / 64⌋;
below N = 6 the unused bits of the one word are zero. Arrays of bits hold x_1 in column 0.

Most named functions see some of the bits only, and only how many of these are one: PARITY (odd),
MAJORITY (more ones than zeros, so that a tie is 0), AND, OR, THRESHOLD, each on all bits or on the
first m; DICTATOR (bit i alone) and FIRST (bit 1 alone); the constants. The others are truth tables.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import comb
from pathlib import Path

import numpy as np
from jaxtyping import Array, Bool, Shaped, UInt8, UInt64
from numpy.random import SeedSequence

AnyArray = Array | np.ndarray
LONGEST = 24
"""Bits of the longest strings that a truth table is made for: 2 MiB a function."""


@dataclass(frozen=True)
class Counting:
    """f(x) = values[Σ x_i over the m `places`]; values has m + 1 entries, places count from 0."""

    name: str
    length: int
    places: tuple[int, ...]
    values: tuple[bool, ...]

    def __call__(self, bits: Shaped[AnyArray, "*batch N"]) -> Bool[AnyArray, "*batch"]:
        """f of each row of bits; NumPy arrays in, NumPy out, JAX arrays in, JAX out."""
        xp = bits.__array_namespace__()
        ones = xp.sum(bits[..., np.array(self.places, int)], axis=-1, dtype=xp.int32)
        return xp.asarray(self.values)[ones]

    @property
    def profile(self) -> tuple[int, ...]:
        """K_0 … K_N. Of m bits with w ones, m − w flips lead to w + 1 ones and w to w − 1.

        K_n = 2^(N−m) Σ_w C(m, w) [s(w) = n],
        s(w) = (m − w) [f(w) ≠ f(w+1)] + w [f(w) ≠ f(w−1)].
        """
        m, f = len(self.places), self.values
        counts = [0] * (self.length + 1)
        for w in range(m + 1):
            up = (m - w) * (f[w] != f[min(w + 1, m)])
            down = w * (f[w] != f[max(w - 1, 0)])
            counts[up + down] += comb(m, w) << (self.length - m)
        return tuple(counts)

    def entries(self, index: Shaped[np.ndarray, " B"]) -> Bool[np.ndarray, " B"]:
        """f of the strings at places of the truth table."""
        mask = sum(1 << (self.length - 1 - i) for i in self.places)
        return np.asarray(self.values)[np.bitwise_count(index & index.dtype.type(mask))]


@dataclass(frozen=True, eq=False)
class Tabulated:
    """A function given by its packed truth table; its profile has no closed form."""

    name: str
    length: int
    words: UInt64[np.ndarray, " W"]
    profile = None

    def __call__(self, bits: Shaped[AnyArray, "*batch N"]) -> Bool[AnyArray, "*batch"]:
        """f of each row of bits, looked up; NumPy arrays in, NumPy out, JAX arrays in, JAX out."""
        xp = bits.__array_namespace__()
        powers = xp.asarray(1 << np.arange(self.length - 1, -1, -1), dtype=xp.int32)
        index = xp.sum(bits * powers, axis=-1, dtype=xp.int32)
        return xp.asarray(self._bytes)[index >> 3] >> (index & 7).astype(xp.uint8) & 1 != 0

    @cached_property
    def _bytes(self) -> np.ndarray:
        return self.words.astype("<u8").view(np.uint8)


Function = Counting | Tabulated


def function(text: str, length: int) -> Function:
    """The function that a text names, on strings of N = `length` bits.

    `parity`, `majority`, `and`, `or`, or on the first m bits `parity:m` …; `threshold:k` (at least
    k ones); `first`; `dictator:i` (bit i = 1 … N); `zero`, `one`; `random:seed` (uniform over all
    functions); `table:FILE` (2^N characters 0 and 1 in the order above, blanks ignored).

    Raises `ValueError` for an unknown name, a missing or impossible number, more bits than N, and a
    truth table of another length or alphabet.
    """
    if length < 1:
        raise ValueError(f"Argument `length` must be at least 1, but is {length}.")
    name, _, argument = text.partition(":")
    if name == "table":
        return _from_file(text, length, Path(argument))
    if name == "random":
        return _uniform(text, length, _number(text, argument, 0, 2**63))
    if name == "first":
        name, argument = "dictator", argument or "1"
    if name == "dictator":
        place = _number(text, argument, 1, length) - 1
        return Counting(text, length, (place,), (False, True))
    if name == "threshold":
        least = _number(text, argument, 1, length)
        return _on_first(text, length, length, lambda w, m: w >= least)
    if name in CONSTANT:
        return Counting(text, length, (), (CONSTANT[name],))
    if name not in COUNTING:
        known = ", ".join([*COUNTING, *CONSTANT, "first"])
        raise ValueError(
            f"Argument `function` must be one of {known}, dictator:i, threshold:k, random:seed and "
            f"table:FILE, but is {text!r}."
        )
    bits = _number(text, argument, 1, length) if argument else length
    return _on_first(text, length, bits, COUNTING[name])


CONSTANT = {"zero": False, "one": True}
COUNTING: dict[str, Callable[[int, int], bool]] = {
    "parity": lambda w, m: w % 2 == 1,
    "majority": lambda w, m: 2 * w > m,
    "and": lambda w, m: w == m,
    "or": lambda w, m: w > 0,
}
"""f of w ones among m bits."""


def _on_first(text: str, length: int, bits: int, value: Callable[[int, int], bool]) -> Counting:
    values = tuple(value(w, bits) for w in range(bits + 1))
    return Counting(text, length, tuple(range(bits)), values)


def _number(text: str, argument: str, least: int, most: int) -> int:
    if argument.isdecimal() and least <= int(argument) <= most:
        return int(argument)
    name = text.partition(":")[0]
    limit = f"from {least} to N = {most}" if most < 2**63 else "that is not negative"
    raise ValueError(
        f"Argument `function` must be {name}:n with a whole number n {limit}, but is {text!r}."
    )


def _uniform(text: str, length: int, seed: int) -> Tabulated:
    return Tabulated(text, length, random_words(length, 1, seed)[0])


def random_words(length: int, count: int, seed: int | SeedSequence) -> UInt64[np.ndarray, "M W"]:
    """Packed truth tables of uniformly random functions. Raises `ValueError` above N = 24."""
    words = max(1, 2 ** checked(length) // 64)
    drawn = np.random.default_rng(seed).integers(0, 2**64, (count, words), np.uint64)
    return drawn & mask(length)


def mask(length: int) -> np.uint64:
    """The bits of a word that a truth table uses."""
    return np.uint64(2 ** min(64, 2**length) - 1)


def _from_file(text: str, length: int, file: Path) -> Tabulated:
    checked(length)
    try:
        letters = "".join(file.read_text().split())
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"Argument `function` must name a readable truth table, but {text!r} is not ({error})."
        ) from None
    if strange := sorted(set(letters) - {"0", "1"}):
        raise ValueError(
            f"Argument `function` must name a truth table of the characters 0 and 1, but {text!r} "
            f"has {strange[0]!r}."
        )
    if len(letters) != 2**length:
        raise ValueError(
            f"Argument `function` must name a truth table of 2^{length} = {2**length} entries, but "
            f"{text!r} has {len(letters)}."
        )
    return Tabulated(text, length, packed(np.frombuffer(letters.encode(), np.uint8) == ord("1")))


def checked(length: int) -> int:
    """The length of strings whose truth table is wanted, if a table can be made."""
    if not 1 <= length <= LONGEST:
        raise ValueError(
            f"Argument `length` must be from 1 to {LONGEST} for an exact truth table, but is "
            f"{length}; for longer strings, estimate from sampled ones."
        )
    return length


def table(function: Function) -> UInt64[np.ndarray, " W"]:
    """The packed truth table. Raises `ValueError` above N = 24."""
    checked(function.length)
    if isinstance(function, Tabulated):
        return function.words
    size, block = 1 << function.length, 1 << 20
    index = np.arange(min(size, block), dtype=np.uint32)
    starts = range(0, size, block)
    return np.concatenate([packed(function.entries(index + np.uint32(s))) for s in starts])


def packed(values: Bool[np.ndarray, "*models K"]) -> UInt64[np.ndarray, "*models W"]:
    """Entries in the order of the truth table, as words."""
    return as_words(np.packbits(values, axis=-1, bitorder="little"))


def as_words(octets: UInt8[np.ndarray, "*models K"]) -> UInt64[np.ndarray, "*models W"]:
    """Bytes of packed tables, the first the least significant, as words."""
    short = [(0, 0)] * (octets.ndim - 1) + [(0, -octets.shape[-1] % 8)]
    return np.ascontiguousarray(np.pad(octets, short)).view("<u8").astype(np.uint64)


def unpacked(words: UInt64[np.ndarray, "*models W"], length: int) -> Bool[np.ndarray, "*models K"]:
    """The 2^N entries of packed truth tables."""
    octets = np.ascontiguousarray(words.astype("<u8")).view(np.uint8)
    return np.unpackbits(octets, axis=-1, count=2**length, bitorder="little").astype(bool)


def string(index: int, length: int) -> str:
    """x_1 … x_N at a place of the truth table."""
    return format(index, f"0{length}b")
