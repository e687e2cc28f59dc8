"""Predictions of the reduced run against full runs: when ICL emerges, and which regime is reached.

The regime of a run is what it ends in: ICL above half of the best possible, IWL too, or neither.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import xarray as xr
from jaxtyping import Float, Int
from scipy.stats import rankdata

from fullmodel.depart.rows import PEOPLE, THEOREM
from fullmodel.depart.runs import Bar, all_measured
from fullmodel.depart.table import finished
from fullmodel.train.run import Setting
from imir.scores import REGIMES
from imir.tasks.task import Task

RARE_FRACTIONS = (0.02, 0.1, 0.3, 0.6, 0.9)
VARIABILITIES = (0.0, 0.3, 0.6, 0.9)
STEPS = 600
ENDS = REGIMES[:4]


@dataclass(frozen=True)
class Scatter:
    """Emergence steps of full runs beside those of the reduced ones, where both emerged.

    `median_error` is the median of |predicted/observed − 1|; `correlation` is Spearman's, of ranks.
    `only_full` and `only_reduced` count runs where ICL emerged in one of the two alone.
    """

    observed: Float[np.ndarray, " R"]
    predicted: Float[np.ndarray, " R"]
    correlation: float
    median_error: float
    only_full: int
    only_reduced: int


def scatter(runs: Sequence[xr.Dataset]) -> Scatter:
    """All runs that stayed finite and whose steps have a reduced run."""
    good = [r.attrs for r in finished(runs) if r.attrs["has_prediction"]]
    observed, predicted = (
        np.array([r[key] for r in good], float) for key in ("icl_step", "predicted_icl_step")
    )
    here, there = np.isfinite(observed), np.isfinite(predicted)
    x, y = observed[here & there], predicted[here & there]
    return Scatter(
        x,
        y,
        float(np.corrcoef(rankdata(x), rankdata(y))[0, 1]) if len(x) > 2 else np.nan,
        float(np.median(np.abs(y / x - 1))) if len(x) else np.nan,
        int(np.sum(here & ~there)),
        int(np.sum(there & ~here)),
    )


@dataclass(frozen=True)
class Confusion:
    """How many runs ended in a regime (row) where the reduced run ended in one (column)."""

    name: str
    counts: Int[np.ndarray, "4 4"]

    @property
    def agreement(self) -> float:
        """Share of runs whose regime was predicted."""
        return float(np.trace(self.counts) / np.sum(self.counts))


def confusions(
    out: Path | None = None, bar: Bar = iter
) -> tuple[list[Confusion], list[xr.Dataset]]:
    """One for each of the two starting points of the table, and the runs behind all."""
    of = {"the theorem's assumptions": THEOREM, "AdamW in a Gaussian frame": PEOPLE}
    grids = {name: _grid(setting) for name, setting in of.items()}
    runs = all_measured([s for grid in grids.values() for s in grid], out, bar)
    half = len(runs) // 2
    each = runs[:half], runs[half:]
    return [_confusion(n, some) for n, some in zip(grids, each, strict=True)], runs


def _grid(setting: Setting) -> list[Setting]:
    recipe = replace(setting.recipe, steps=STEPS)
    return [
        replace(setting, task=_task(rare, variability), recipe=recipe)
        for rare in RARE_FRACTIONS
        for variability in VARIABILITIES
    ]


def _task(rare: float, variability: float) -> Task:
    return Task(
        "recall", 4, rare_fraction=rare, variability=variability, vocabulary=16, rare_vocabulary=16
    )


def _confusion(name: str, runs: Sequence[xr.Dataset]) -> Confusion:
    counts = np.zeros((4, 4), int)
    for run in finished(runs):
        full = _regime(float(run["icl"][-1]), float(run["iwl"][-1]), run.attrs["best_iwl"])
        reached = (run.attrs[key] for key in ("predicted_icl", "predicted_iwl", "best_iwl"))
        counts[full, _regime(*reached)] += 1
    return Confusion(name, counts)


def _regime(icl: float, iwl: float, best_iwl: float) -> int:
    """Index into `ENDS`."""
    return int(icl > 0.5) + 2 * int(iwl > best_iwl / 2)
