"""A sweep's store: Zarr, one status for each cell, written block by block.

Results of a block are written first and its statuses last, so that what has a status is whole
whenever the writer stops. Files are replaced, never changed in place.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
from filelock import FileLock, Timeout
from jaxtyping import Bool, Int
from zarr.storage import MemoryStore

from imir.flow import FAILURES
from imir.phases.grid import Grid
from imir.scores import REGIMES

VERSION = 1
MISSING, COMPUTED, FAILED, INTERPOLATED = range(4)
UNITS = {
    "coordinates": "1",
    "loss": "nats or squared logits",
    "icl_score": "probability",
    "iwl_score": "probability",
    "icl_time": "gradient-flow time",
    "iwl_time": "gradient-flow time",
    "icl_peak": "probability",
    "icl_peak_time": "gradient-flow time",
    "icl_end": "gradient-flow time",
    "regime": "index of regimes; -1 where the solver failed",
    "failure": "index of failures",
    "steps": "solver steps",
    "end": "gradient-flow time",
    "icl_over_time": "probability",
    "iwl_over_time": "probability",
    "status": "0 missing, 1 computed, 2 failed, 3 interpolated",
}
INTEGERS = {"regime": "i1", "failure": "i1", "steps": "i4", "status": "i1"}
EXTRA = {"coordinates": "coordinate", "icl_over_time": "time", "iwl_over_time": "time"}
Store = MemoryStore | Path


@contextmanager
def opened(
    store: Store, grid: Grid, names: tuple[str, ...], times: np.ndarray, configuration: dict
) -> Iterator[zarr.Group]:
    """The store of exactly this sweep, made where there is none, closed to other runs.

    Raises `ValueError` where another sweep's store, or something else, is there.
    """
    if isinstance(store, MemoryStore):
        yield _create(store, grid, names, times, configuration)
        return
    with _alone(store):
        if not store.exists():
            unfinished = store.with_name(f"{store.name}.new")
            shutil.rmtree(unfinished, ignore_errors=True)
            _create(unfinished, grid, names, times, configuration)
            unfinished.rename(store)
        group = checked(store, configuration)
        for leftover in store.rglob("*.partial"):
            leftover.unlink()
        yield group


@contextmanager
def _alone(store: Path) -> Iterator[None]:
    """A lock beside the store, which the system lifts when its holder dies."""
    store.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(f"{store}.lock", timeout=0):
            yield
    except Timeout:
        raise ValueError(
            f"Argument `store` must be used by one run at a time, but {str(store)!r} is in use."
        ) from None


def checked(store: Path, configuration: Mapping[str, Any]) -> zarr.Group:
    """The group of an existing store; refuses another version or configuration."""
    try:
        group = zarr.open_group(store, mode="r+")
        version = group.attrs["imir_store"]
    except (OSError, KeyError, ValueError):
        raise ValueError(
            f"Argument `store` must be a sweep's store or a new folder, but {str(store)!r} is not."
        ) from None
    if version != VERSION:
        raise ValueError(f"Argument `store` must have version {VERSION}, but has {version}.")
    found: Any = group.attrs["configuration"]
    if other := difference(found, configuration):
        raise ValueError(f"Argument `store` must hold this sweep, but {str(store)!r} has {other}.")
    return group


def difference(found: Mapping[str, Any], configuration: Mapping[str, Any]) -> str | None:
    """The first key in which a configuration read from a file differs from a wanted one."""
    wanted = json.loads(json.dumps(configuration))
    for key in sorted({*found, *wanted}):
        if found.get(key) != wanted.get(key):
            there, here = _short(found.get(key)), _short(wanted.get(key))
            return f"{key} = {there} where this one has {here}"
    return None


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _create(store: Store, grid: Grid, names, times, configuration: dict) -> zarr.Group:
    """Every array without data."""
    group = zarr.create_group(store)
    sizes = {"coordinate": len(names), "time": len(times)}
    for name, units in UNITS.items():
        extra = [EXTRA[name]] if name in EXTRA else []
        kind = INTEGERS.get(name, "f8")
        group.create_array(
            name,
            shape=(*grid.shape, *(sizes[d] for d in extra)),
            chunks=(*grid.block_shape, *(sizes[d] for d in extra)),
            dtype=kind,
            fill_value=np.nan if kind == "f8" else 0,
            dimension_names=(*grid.dims, *extra),
            attributes={"units": units},
        )
    for axis in grid.axes:
        group.create_array(axis.name, data=np.array(axis.values), dimension_names=(axis.name,))
    group.create_array("time", data=times, dimension_names=("time",))
    group.attrs.update(
        {
            "task": str(grid.task),
            "regimes": list(REGIMES),
            "failures": list(FAILURES),
            "coordinates": list(names),
            "configuration": configuration,
            "imir_store": VERSION,
        }
    )
    return group


def write(group: zarr.Group, cells: Int[np.ndarray, "n d"], results: Mapping[str, Any]) -> None:
    """Results of the cells at these indices, then their statuses."""
    status = np.where(results["failure"] > 0, FAILED, COMPUTED)
    for name, values in (*results.items(), ("status", status)):
        extra = [np.arange(n) for n in values.shape[1:]]
        places = np.broadcast_arrays(*(x.reshape(-1, *[1] * len(extra)) for x in cells.T), *extra)
        _array(group, name).set_coordinate_selection(tuple(places), values)


def _array(group: zarr.Group, name: str) -> zarr.Array[Any]:
    found = group[name]
    assert isinstance(found, zarr.Array)
    return found


def known(group: zarr.Group) -> Bool[np.ndarray, "..."]:
    """Which cells were computed, whatever came of it."""
    return np.isin(np.asarray(_array(group, "status")[...]), (COMPUTED, FAILED))


def scalars(group: zarr.Group) -> dict[str, np.ndarray]:
    """Every result that is one number for each cell."""
    names = [n for n in UNITS if n not in EXTRA and n not in ("status", "failure")]
    return {name: np.asarray(_array(group, name)[...], float) for name in names}


def write_interpolated(group: zarr.Group, fields: Mapping[str, np.ndarray]) -> None:
    """Numbers between the computed ones, then their statuses."""
    status = np.where(known(group), np.asarray(_array(group, "status")[...]), INTERPOLATED)
    for name, values in (*fields.items(), ("status", status)):
        array = _array(group, name)
        array[...] = values.astype(array.dtype)


def read(store: Store) -> xr.Dataset:
    """A sweep as a Dataset, its arrays read when they are used."""
    diagram = xr.open_zarr(store, chunks=None, consolidated=False)
    return diagram.assign_coords(coordinate=diagram.attrs["coordinates"])


def regime_counts(diagram: xr.Dataset) -> dict[str, int]:
    """Number of cells in each regime; `failed` counts those whose solver gave up."""
    known = diagram["status"].values != MISSING
    values = diagram["regime"].values[known]
    counts = {name: int(np.sum(values == i)) for i, name in enumerate(REGIMES)}
    failed, absent = int(np.sum(values == -1)), int(np.sum(~known))
    others = {"failed": failed, "missing": absent}
    return counts | {name: count for name, count in others.items() if count}
