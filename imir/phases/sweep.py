"""Phase diagrams: in-context against in-weights learning over any parameters.

Each cell is one gradient flow. Cells that differ only in probabilities, initial point, clamps or
weight decay share one compiled program and one list of prompts. Cells are computed in blocks, and
what was computed is never lost: the same call on the same store goes on where it stopped.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xarray as xr
import zarr
from jax.experimental import multihost_utils
from tqdm import tqdm
from zarr.storage import MemoryStore

from imir.canonical import canonical
from imir.flow import Flow, save_times
from imir.phases import grid as grids
from imir.phases import store as stores
from imir.phases.batch import Batch, batch_of, run_cells, shape_of
from imir.phases.grid import COUNTS, Axis, Cells, Grid
from imir.phases.refine import interpolated, is_on, lattice, near_boundaries
from imir.population import Expectation
from imir.tasks.task import Task
from imir.ties import Tie

Counts = tuple[tuple[str, int], ...]


def phase_diagram(
    task: Task,
    axes: Sequence[Axis],
    flow: Flow = Flow(rtol=1e-4, saves=48),
    *,
    tie_of: Callable[[Task], Tie] = canonical,
    start: float = 1e-3,
    weight_decay: float = 0.0,
    kind: Expectation = "auto",
    samples: int = 512,
    seed: int = 0,
    store: Path | None = None,
    refine: int | None = None,
    progress: bool = False,
) -> xr.Dataset:
    """Run every cell of the grid that these axes span and report where it ends.

    Per cell: final coordinates, loss, ICL and IWL score (also over time), when each emerged (NaN
    where it never did), the peak of ICL and when it was lost again, the regime (−1 where the solver
    failed), the reason of a failure, and a status. The expectation of `kind` auto is exact where
    the prompts can be listed, otherwise over `samples` prompts drawn with `seed`.

    With a `store` (a Zarr folder) blocks are written as they are finished, a second call goes on,
    and processes that share the store through `jax.distributed` share the blocks. With `refine`,
    every so many-th cell of the first two axes is computed, then only what a boundary of regimes or
    a steep emergence time passes through; the others are interpolated, which their status says.
    Raises `ValueError` for cells that cannot be and for the store of another sweep; a cell whose
    solver fails is recorded, not raised.
    """
    grid = Grid(task, tuple(axes), start, weight_decay)
    batch = cache(partial(_batch, grid, flow, tie_of, kind, samples, seed))
    tie = tie_of(shape_of(grid, dict(_counts(grid, [0] * len(grid.shape)))))
    _check_names(grid, tie)
    if refine is not None and (refine < 2 or len(grid.shape) < 2):
        raise ValueError(
            "Argument `refine` must be a stride of at least 2 on two axes or more, "
            f"but is {refine} on {len(grid.shape)}."
        )
    settings = {"expectation": kind, "samples": samples, "seed": seed}
    configuration = _configuration(grid, flow, tie, settings)
    place = MemoryStore() if store is None else store
    times = np.asarray(save_times(flow))
    first = jax.process_index() == 0
    with ExitStack() as stack:
        if first:
            make = stores.opened(place, grid, tie.names, times, configuration)
            group = stack.enter_context(make)
        _together("opened")
        if not first:
            assert store is not None
            group = stores.checked(store, configuration)
        with tqdm(total=0, unit="cell", disable=not (progress and first)) as bar:
            compute = partial(_compute, group, grid, flow, batch, bar)
            if refine is None:
                compute(np.argwhere(np.ones(grid.shape, bool)))
            else:
                _refine(group, grid, refine, compute)
    return stores.read(place)


def _check_names(grid: Grid, tie: Tie) -> None:
    cell = grid.cell([0] * len(grid.shape))
    for name in (name for name, _ in (*cell.own, *cell.clamps) if name not in tie.names):
        raise ValueError(
            f"Argument `axis` must name a coordinate among {', '.join(tie.names[:8])}, "
            f"but has {name!r}."
        )


def _together(point: str) -> None:
    """Wait until every process is here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(point)


def _compute(
    group: zarr.Group, grid: Grid, flow: Flow, batch: Callable[..., Batch], bar: tqdm, cells: Cells
) -> None:
    """This process' share of these cells, in writes of about one block, unless they are known."""
    mine = grid.by_blocks(cells)[jax.process_index() :: jax.process_count()]
    known = stores.known(group)
    todo = [left for block in mine if len(left := block[~known[tuple(block.T)]])]
    total = sum(map(len, mine))
    bar.total, bar.n = bar.total + total, bar.n + total - sum(map(len, todo))
    for counts, portion in _portions(grid, todo):
        runs = [grid.cell(index) for index in portion.tolist()]
        _write(group, portion, run_cells(batch(counts), flow, runs))
        bar.update(len(portion))
    _together("computed")


def _portions(grid: Grid, blocks: list[Cells]) -> Iterator[tuple[Counts, Cells]]:
    """Blocks of the same shape together, as long as they do not exceed one whole block."""
    for counts, alike in groupby(blocks, lambda block: _counts(grid, block[0].tolist())):
        portion: list[Cells] = []
        for block in alike:
            if portion and sum(map(len, portion)) + len(block) > grids.BLOCK:
                yield counts, np.concatenate(portion)
                portion = []
            portion.append(block)
        yield counts, np.concatenate(portion)


def _refine(group: zarr.Group, grid: Grid, stride: int, compute: Callable[[Cells], None]) -> None:
    """Lattices of half the stride, again and again, near boundaries; at last interpolation."""
    coarse = lattice(grid.shape, stride)
    compute(np.argwhere(is_on(grid.shape, coarse)))
    filled = stores.scalars(group)
    while stride > 1:
        stride = -(-stride // 2)
        fine = lattice(grid.shape, stride)
        compute(np.argwhere(near_boundaries(filled, coarse) & is_on(grid.shape, fine)))
        known, found = stores.known(group), stores.scalars(group)
        merged = {name: np.where(known, found[name], filled[name]) for name in found}
        filled = {n: interpolated(v, known, coarse, fine, n) for n, v in merged.items()}
        coarse = fine
    if jax.process_index() == 0:
        stores.write_interpolated(group, filled)
    _together("interpolated")


def _write(group: zarr.Group, cells: Cells, results: dict[str, np.ndarray]) -> None:
    try:
        stores.write(group, cells, results)
    except OSError as error:
        raise OSError(
            f"Argument `store` must stay writable, but {error}; its finished cells can be read."
        ) from error


def _counts(grid: Grid, index: Sequence[int]) -> Counts:
    """The statistics that decide shapes, where they are axes."""
    axes = zip(reversed(grid.axes), index, strict=True)
    return tuple((axis.name, int(axis.values[i])) for axis, i in axes if axis.name in COUNTS)


def _batch(grid, flow, tie_of, kind, samples, seed, counts: Counts) -> Batch:
    shape = shape_of(grid, dict(counts))
    return batch_of(shape, flow, tie_of, kind, samples, jax.random.key(seed))


def _configuration(grid: Grid, flow: Flow, tie: Tie, settings: dict[str, Any]) -> dict[str, Any]:
    """Everything that the results depend on, as JSON."""
    solver = {
        "loss": flow.loss,
        "until": flow.until,
        "rtol": flow.rtol,
        "atol": flow.atol,
        "solver": type(flow.solver).__name__,
        "max_steps": flow.max_steps,
        "saves": flow.saves,
        "stop": flow.stop,
        "clamps": [[n, "a function" if callable(v) else v] for n, v in flow.clamps],
    }
    axes = {f"axis {axis.name}": list(axis.values) for axis in grid.axes}
    run = {"start": grid.start, "weight_decay": grid.weight_decay, "coordinates": list(tie.names)}
    precision = {"precision": str(np.asarray(save_times(flow)).dtype)}
    order = {"axes": [axis.name for axis in grid.axes]}
    return {**asdict(grid.task), **solver, **order, **axes, **run, **settings, **precision}
