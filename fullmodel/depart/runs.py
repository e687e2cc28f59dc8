"""Full runs beside the reduced one, each kept in a file of its own.

A run is a function of its setting, so that a file with that setting is the run: whoever asks again
reads it.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xarray as xr

from fullmodel.architecture import Architecture
from fullmodel.confinement.span import captured_by, span_of
from fullmodel.model import Transformer
from fullmodel.train.predicted import emergence, predicted
from fullmodel.train.run import Run, Setting, TrainingFailure, run
from fullmodel.weights import network_of
from imir.canonical import induction
from imir.scores import best_iwl

# Points of a run that are measured after the first.
RECORDS = 40
ENGINE: Any = "h5netcdf"

Bar = Callable[[Iterable[Setting]], Iterable[Setting]]


def over_seeds(setting: Setting, seeds: int) -> list[Setting]:
    """The same setting from each of so many seeds."""
    return [replace(setting, seed=seed) for seed in range(seeds)]


def all_measured(
    settings: Sequence[Setting], out: Path | None = None, bar: Bar = iter
) -> list[xr.Dataset]:
    """`measured` for each setting, in order.

    Compiled programs are dropped between runs that share none: those of some dozens of settings
    would exhaust the memory maps of a process.
    """
    found, before = [], None
    for setting in bar(settings):
        if before is not None and replace(before, seed=setting.seed) != setting:
            jax.clear_caches()
        found.append(measured(setting, out))
        before = setting
    return found


def measured(setting: Setting, out: Path | None = None) -> xr.Dataset:
    """A `Departure` as a Dataset, and in its attributes what the reduced run foretold.

    `icl_step`, `predicted_icl_step`: when ICL emerged, NaN where it did not; `predicted_icl`,
    `predicted_iwl`: the reduced scores at the end, NaN where the steps have no reduced run;
    `best_iwl`; `assumed`: 1 for the theorem's transformer from a point of the manifold;
    `canonical`, `canonical_chance`: the share of the movement in the directions of
    (α, β, γ) alone, and in as many random ones. A run whose loss stopped being finite has nothing
    but its `failure` in words. With `out` it is read from a file there, or written to it.
    """
    configuration = json.dumps(setting.as_dict(), sort_keys=True)
    name = hashlib.sha256(configuration.encode()).hexdigest()[:16]
    file = out and out / "runs" / f"{name}.nc"
    if file and file.exists():
        return xr.load_dataset(file, engine=ENGINE)
    found = _beside_reduced(setting).assign_attrs(setting=configuration)
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(".new")
        found.to_netcdf(unfinished, engine=ENGINE)
        unfinished.replace(file)
    return found


def _beside_reduced(setting: Setting) -> xr.Dataset:
    try:
        found = run(setting, RECORDS)
    except TrainingFailure as failure:
        return xr.Dataset(attrs={"failure": str(failure)})
    assumed = (setting.architecture, setting.origin, setting.off) == (Architecture(), "manifold", 0)
    attributes = {**_foretold(setting, found), **_canonical(setting, found.model)}
    attributes["assumed"] = int(assumed)
    return found.departure.to_xarray().assign_attrs(attributes)


def _canonical(setting: Setting, end: Transformer) -> dict[str, float]:
    """What an induction head's own directions captured of the way, at its end."""
    basis, start = setting.basis, setting.model()
    ways = (
        np.asarray(b, np.float64) - np.asarray(a, np.float64)
        for a, b in ((start.merged, end.merged), (start.readout[...], end.readout[...]))
    )
    span = span_of(basis, network_of(end, basis))
    share, chance = captured_by(span, induction(basis), *ways)
    return {"canonical": share, "canonical_chance": chance}


def _foretold(setting: Setting, found: Run) -> dict[str, float]:
    with jax.enable_x64(True):
        reduced = predicted(setting, found.departure.coordinates[0])
    if reduced is None:
        reached, when = (np.nan, np.nan), None
    else:
        reached, when = (reduced.icl[-1], reduced.iwl[-1]), reduced.icl_time
    steps = {"icl_step": emergence(found), "predicted_icl_step": when}
    return {
        **{name: np.nan if step is None else step for name, step in steps.items()},
        "predicted_icl": reached[0],
        "predicted_iwl": reached[1],
        "best_iwl": best_iwl(setting.task),
        "has_prediction": int(reduced is not None),
    }
