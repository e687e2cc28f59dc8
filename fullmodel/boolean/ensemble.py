"""Boolean functions drawn at random: from the space of transformers, and uniformly.

The control is a uniformly random function of N bits. Each of its strings has sensitivity zero with
probability 2^−N, so one such string is expected; their number is Poisson's as N → ∞, and at least
one is there with probability 1 − 1/e.

For transformers with ε = 0, Theorem 4.5 of arXiv 2606.08768 says that almost surely at least
N^((D−1)/(2L) − 5) strings have sensitivity zero once N is large enough. Wherever D ≤ 10 L + 1 that
is at most 1, and below 1 it says nothing.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import jax
import numpy as np
from jaxtyping import Float, Int64

from fullmodel.boolean.functions import checked, random_words
from fullmodel.boolean.recognizer import (
    RULES,
    Architecture,
    Initialization,
    initial,
    truth_table,
)
from fullmodel.boolean.sensitivity import average, sensitivity

LIMIT = 1 - float(np.exp(-1))
"""Share of uniformly random functions with a string of sensitivity zero, as N → ∞."""
AT_ONCE = 1024  # models whose parameters are in memory
FEW = 4  # bits of the functions that are all counted, 2^16 of them


@dataclass(frozen=True)
class Ensemble:
    """Functions of one origin: what is asked of their profiles."""

    name: str
    profiles: Int64[np.ndarray, "M N+1"]
    margin: Float[np.ndarray, " M"] | None = None
    """min_x |logit(x)| of each transformer."""

    @property
    def zeros(self) -> Int64[np.ndarray, " M"]:
        """K_0 of each function."""
        return self.profiles[:, 0]

    @property
    def with_zero(self) -> int:
        """Functions with at least one string of sensitivity zero."""
        return int(np.sum(self.zeros > 0))

    @property
    def share(self) -> float:
        """Of those among all."""
        return self.with_zero / len(self.profiles)

    @property
    def standard_error(self) -> float:
        """Of the share, by its own variance."""
        return float(np.sqrt(self.share * (1 - self.share) / len(self.profiles)))

    @property
    def constant(self) -> int:
        """Functions that are constant: all 2^N strings have sensitivity zero."""
        return int(np.sum(self.zeros == np.sum(self.profiles, axis=1)))

    @property
    def mean_profile(self) -> Float[np.ndarray, " N+1"]:
        return np.mean(self.profiles, axis=0)

    @property
    def averages(self) -> Float[np.ndarray, " M"]:
        """Average sensitivity of each function."""
        return average(self.profiles)


def transformers(
    architecture: Architecture,
    initialization: Initialization,
    models: int,
    seed: int = 0,
    memory: int = 2**24,
    progress: Callable[[Iterable], Iterable] = iter,
) -> Ensemble:
    """Profiles of `models` random transformers, from all 2^N strings; `memory` as in `truth_table`.

    Model number m is the same however many are drawn. Raises `ValueError` for less than one model
    and for N above 24.
    """
    _check(models)
    checked(architecture.length)
    rule = initialization.rule
    key = jax.random.fold_in(jax.random.key(seed), RULES.index(rule))
    draw = jax.jit(jax.vmap(lambda k: initial(architecture, initialization, k)))
    parts = []
    for first, last in progress(list(pairwise([*range(0, models, AT_ONCE), models]))):
        keys = jax.vmap(lambda m: jax.random.fold_in(key, m))(np.arange(first, last))
        tables = truth_table(architecture, draw(keys), memory)
        parts.append((sensitivity(tables.words, architecture.length).profile, tables.margin))
    profiles, margin = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Ensemble(rule, profiles, margin)


def control(length: int, models: int, seed: int = 0) -> Ensemble:
    """Profiles of uniformly random functions. Raises `ValueError` as `transformers` does."""
    _check(models)
    size = max(1, 2**20 // max(1, 2**length // 64))
    counts = [min(size, models - start) for start in range(0, models, size)]
    seeds = np.random.SeedSequence(seed).spawn(len(counts))
    parts = [
        sensitivity(random_words(length, count, each), length).profile
        for count, each in zip(counts, seeds, strict=True)
    ]
    return Ensemble("uniformly random functions", np.concatenate(parts))


def _check(models: int) -> None:
    if models < 1:
        raise ValueError(f"Argument `models` must be at least 1, but is {models}.")


def bound(architecture: Architecture) -> float:
    """Theorem 4.5: N^((D−1)/(2L) − 5) strings of sensitivity zero; below 1 it says nothing."""
    a = architecture
    return float(a.length) ** ((a.width - 1) / (2 * a.layers) - 5)


def zero_share(length: int) -> float:
    """Probability that a uniformly random function of N bits has a string of sensitivity zero.

    Exact for N ≤ 4, where all functions are counted. Above, from the factorial cumulants κ_r of
    the number Z of such strings, log P(Z = 0) = Σ_r (−1)^r κ_r / r!, up to r = 3. The moments are
    exact: strings are independent unless at most two flips apart, and strings whose neighbourhoods
    (u strings in all) form c connected pieces are insensitive together with probability
    2^(c − u). The rest is below 0.02 at N = 5, 0.001 at N = 8, and falls as N⁶ 2^−3N.
    """
    if length <= FEW:
        every = np.arange(2 ** (2**length), dtype=np.uint64)[:, None]
        return float(np.mean(sensitivity(every, length).zeros > 0))
    second, third = _factorial_moments(length)
    k2, k3 = second - 1, third - 3 * second + 2
    return float(-np.expm1(-1 + k2 / 2 - k3 / 6))


def _factorial_moments(N: int) -> tuple[float, float]:
    """E Z(Z−1) and E Z(Z−1)(Z−2), over the ordered pairs and triples that hold a given string.

    Neighbourhoods of strings at distance 1 or 2 share two strings, three of them share one.
    """
    V, near = 2**N, N * (N + 1) // 2
    triangles = N * (N - 1) * (N + 1)
    paths = 3 * (near * (near - 1) - triangles)
    pairs = 3 * (near * (V - 2 * near) + triangles)
    triples = (V - 1) * (V - 2)
    second = (V - 1 + near) / V
    third = (triples + 7 * triangles + 3 * paths + pairs) / V**2
    return second, third
