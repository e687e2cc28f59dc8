"""A volume as log₁₀ with its standard error, or as an upper bound where it was not resolved."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from scipy import stats

from fullmodel.boolean.volume.splitting import Descent

CONFIDENCE = 0.95
# Hits below which a count has no useful symmetric error.
FEWEST = 10

Method = Literal["plain", "splitting"]


@dataclass(frozen=True)
class Volume:
    """A share of the space. Logarithms are decimal; errors are standard errors, in decades."""

    method: Method
    log10_volume: float | None
    """None where the budget did not resolve the volume."""
    error: float | None
    upper_bound: float | None
    """Where it did not: with probability `confidence` the volume's logarithm is below this."""
    confidence: float = CONFIDENCE
    ideal_error: float | None = None
    """Of splitting: the error were the population independent at every stage."""

    def __str__(self) -> str:
        if self.log10_volume is None:
            return f"log10 volume < {self.upper_bound:.2f} ({self.confidence:.0%}, {self.method})"
        return f"log10 volume = {self.log10_volume:.3f} ± {self.error:.3f} ({self.method})"


@dataclass(frozen=True)
class Count:
    """What plain Monte Carlo found."""

    hits: int
    draws: int


@dataclass(frozen=True)
class Repeat:
    """What one population of splitting found; see `Descent`."""

    log_probability: float
    variance: float
    arrived: bool

    @classmethod
    def of(cls, descent: Descent) -> "Repeat":
        values: tuple[Any, ...] = (descent.log_probability, descent.variance, descent.arrived)
        return cls(float(values[0]), float(values[1]), bool(values[2]))


def from_count(count: Count) -> Volume:
    """hits / draws with its binomial error; from few hits the upper end of Clopper–Pearson.

    Without a hit the bound is 1 − 0.05^(1/draws), about 3 / draws.
    """
    h, n = count.hits, count.draws
    if h >= FEWEST:
        share = h / n
        error = np.sqrt((1 - share) / h) / np.log(10)
        return Volume("plain", float(np.log10(share)), float(error), None)
    bound = stats.beta.ppf(CONFIDENCE, h + 1, n - h) if h < n else 1.0
    return Volume("plain", None, None, float(np.log10(bound)))


def from_repeats(repeats: Sequence[Repeat]) -> Volume:
    """The mean over independent populations, with the error that their scatter gives.

    Scatter of a few may be small by chance: the error is never below the ideal one.
    Where a population did not arrive, what it reached contains the set: the volume is below the
    mean, by Student's t with the confidence stated. Raises `ValueError` for fewer than two.
    """
    if len(repeats) < 2:
        raise ValueError(f"Argument `repeats` must be at least 2, but is {len(repeats)}.")
    logs = np.array([r.log_probability for r in repeats])
    mean, relative = _mean(logs)
    variances = np.array([r.variance for r in repeats])
    ideal = float(np.sqrt(np.mean(variances) / len(repeats)) / np.log(10))
    if all(r.arrived for r in repeats):
        error = max(relative / np.log(10), ideal)
        return Volume("splitting", mean, error, None, ideal_error=ideal)
    t = stats.t.ppf(CONFIDENCE, len(repeats) - 1)
    bound = min(0.0, mean + float(np.log10(1 + t * relative)))
    return Volume("splitting", None, None, bound, ideal_error=ideal)


def _mean(logs: Float[np.ndarray, " R"]) -> tuple[float, float]:
    """log₁₀ of the mean of exponentials, and its relative standard error."""
    shares = np.exp(logs - logs.max())
    error = np.std(shares, ddof=1) / np.sqrt(len(shares)) / np.mean(shares)
    return float((logs.max() + np.log(np.mean(shares))) / np.log(10)), float(error)
