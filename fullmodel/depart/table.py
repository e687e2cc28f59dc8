"""The table of departures: what each costs, over several seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xarray as xr
from jaxtyping import Float

from fullmodel.depart.rows import rows
from fullmodel.depart.runs import Bar, all_measured, over_seeds
from fullmodel.train.run import Setting


@dataclass(frozen=True)
class Row:
    """One departure: means over the seeds whose loss stayed finite, medians of steps.

    `weights`, `movement` and `gradient` are shares in the span at the end, `chance` that of as many
    random directions, `scatter` the standard deviation of `movement` over seeds; `canonical` is the
    movement's share in the directions of (α, β, γ) alone. `icl_step` and `predicted_icl_step` are
    `None` where ICL did not emerge in most of the runs, or nothing is predicted.
    """

    name: str
    seeds: int
    failed: int
    weights: float
    movement: float
    scatter: float
    gradient: float
    chance: float
    canonical: float
    canonical_chance: float
    loss: float
    icl: float
    icl_step: float | None
    predicted_icl_step: float | None


def table(
    seeds: int, out: Path | None = None, bar: Bar = iter
) -> tuple[list[Row], list[xr.Dataset]]:
    """Every row, and the runs behind all of them."""
    return rows_of(rows(), seeds, out, bar)


def rows_of(
    settings: Mapping[str, Setting], seeds: int, out: Path | None, bar: Bar
) -> tuple[list[Row], list[xr.Dataset]]:
    """A row for each setting, over several seeds, and the runs behind all of them."""
    runs = all_measured([s for x in settings.values() for s in over_seeds(x, seeds)], out, bar)
    each = [runs[i : i + seeds] for i in range(0, len(runs), seeds)]
    return [row_of(name, some) for name, some in zip(settings, each, strict=True)], runs


def row_of(name: str, runs: Sequence[xr.Dataset]) -> Row:
    """The row of one departure's runs."""
    good = finished(runs)

    def mean(key: str) -> float:
        return float(np.mean(_last(good, key))) if good else np.nan

    return Row(
        name,
        seeds=len(runs),
        failed=len(runs) - len(good),
        weights=mean("weights"),
        movement=mean("movement"),
        scatter=float(np.std(_last(good, "movement"))) if good else np.nan,
        gradient=mean("gradient"),
        chance=mean("chance"),
        canonical=mean("canonical"),
        canonical_chance=mean("canonical_chance"),
        loss=mean("loss"),
        icl=mean("icl"),
        icl_step=_median([r.attrs["icl_step"] for r in good]),
        predicted_icl_step=_median([r.attrs["predicted_icl_step"] for r in good]),
    )


def finished(runs: Sequence[xr.Dataset]) -> list[xr.Dataset]:
    """Those whose loss stayed finite."""
    return [run for run in runs if "failure" not in run.attrs]


def _last(runs: Sequence[xr.Dataset], key: str) -> Float[np.ndarray, " R"]:
    """At the end of each run, of all matrices together where there are several."""
    if key in runs[0].attrs:
        return np.array([run.attrs[key] for run in runs], float)
    values = (r[key].sel(matrix="all") if "matrix" in r[key].dims else r[key] for r in runs)
    return np.array([float(v[-1]) for v in values])


def _median(steps: Sequence[float]) -> float | None:
    """The middle one, counting runs without as later than all others."""
    middle = np.median([np.inf if np.isnan(s) else s for s in steps]) if steps else np.inf
    return float(middle) if np.isfinite(middle) else None
