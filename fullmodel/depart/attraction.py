"""From random weights, does what is off the manifold shrink? (Observed in arXiv 2607.11875,
section 5, without proof.)

Two answers, over seeds and weight decays: the off-span part of the weights relative to its size at
the start, and relative to how far the weights have moved.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import xarray as xr
from jaxtyping import Float, Int

from fullmodel.depart.rows import THEOREM
from fullmodel.depart.runs import Bar, all_measured, over_seeds
from fullmodel.depart.table import finished
from fullmodel.train.recipe import Recipe

DECAYS = (0.0, 1e-2, 1e-1)


@dataclass(frozen=True)
class Attraction:
    """`T` records of `R` runs with one weight decay; `off` are norms off the span.

    `chance` is the share of a random direction in the span.
    """

    decay: float
    steps: Int[np.ndarray, " T"]
    off: Float[np.ndarray, "R T"]
    distance: Float[np.ndarray, "R T"]
    movement: Float[np.ndarray, "R T"]
    icl: Float[np.ndarray, "R T"]
    chance: float

    @property
    def of_start(self) -> Float[np.ndarray, "R T"]:
        """Off-span norm over that at the start: below 1 what was off is forgotten."""
        return self.off / self.off[:, :1]

    @property
    def of_movement(self) -> Float[np.ndarray, "R T-1"]:
        """Off-span norm over the way travelled, from the first record after the start."""
        return self.off[:, 1:] / self.distance[:, 1:]


def attraction(
    seeds: int, decays: Sequence[float] = DECAYS, out: Path | None = None, bar: Bar = iter
) -> list[Attraction]:
    """Runs by AdamW from random weights in the exact frame, for each weight decay."""
    settings = [s for decay in decays for s in over_seeds(_setting(decay), seeds)]
    runs = all_measured(settings, out, bar)
    each = [runs[i : i + seeds] for i in range(0, len(runs), seeds)]
    return [_of(decay, finished(some)) for decay, some in zip(decays, each, strict=True)]


def _setting(decay: float):
    recipe = Recipe("adamw", 3e-3, 800, 256, weight_decay=decay)
    return replace(THEOREM, recipe=recipe, origin="generic", start=1.0)


def _of(decay: float, runs: list[xr.Dataset]) -> Attraction:
    together = xr.concat(runs, "run")
    share = together["weights"].sel(matrix="all")
    return Attraction(
        decay,
        together["step"].values,
        (together["norm"] * np.sqrt(1 - share)).values,
        together["distance"].values,
        together["movement"].sel(matrix="all").values,
        together["icl"].values,
        float(together["chance"].sel(matrix="all")[0, -1]),
    )
