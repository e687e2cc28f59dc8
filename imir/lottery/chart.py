"""Maps of the initial point: which circuit wins, and when learning emerges."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Float

from imir.flow import Flow
from imir.lottery.race import Circuits, rival_circuits, rivals, winners
from imir.phases import Axis, phase_diagram
from imir.population import Expectation, Population, expectation
from imir.tasks.task import Task
from imir.ties import Tie


def lottery_map(
    task: Task,
    axes: Sequence[Axis],
    flow: Flow = Flow(until=1e5, rtol=1e-4, saves=24),
    *,
    layers: int = 3,
    circuits: Circuits | None = None,
    tie_of: Callable[[Task], Tie] | None = None,
    kind: Expectation = "auto",
    samples: int = 512,
    seed: int = 0,
    **sweep: Any,
) -> xr.Dataset:
    """A sweep over directions of the initial point with the `winner` of each cell.

    Axes are `start.NAME` for any coordinates, `start` for the value of all others, `seed` for
    random ones, and whatever else `phase_diagram` takes (as `sweep` are its other arguments, a
    resumable `store` among them). `winner` is a number into the attribute `circuits`, −1 where
    nothing was learned. By default the coordinates are those of `rivals`, and the circuits one for
    each pair of layers.
    """
    choose = tie_of or (lambda shape: rivals(shape, layers))
    circuits = rival_circuits(layers) if circuits is None else circuits
    drawn = {"kind": kind, "samples": samples, "seed": seed}
    diagram = phase_diagram(task, axes, flow, tie_of=choose, **drawn, **sweep)
    population = population_of(task, choose(task), **drawn)
    values = diagram["coordinates"].transpose(..., "coordinate").values
    found = winners(population, circuits, values.reshape(-1, values.shape[-1]), flow.loss)
    dims = diagram["regime"].dims
    winner = (dims, found.reshape(values.shape[:-1]), {"units": "index of circuits"})
    return diagram.assign(winner=winner).assign_attrs(circuits=list(circuits))


def starts_of(diagram: xr.Dataset, start: float) -> Float[np.ndarray, "N C"]:
    """The initial points of a map's cells, in the order of its flattened winners."""
    dims = [str(d) for d in diagram["winner"].dims]
    names = list(diagram.attrs["coordinates"])
    grids = np.meshgrid(*(diagram[d].values for d in dims), indexing="ij")
    value = {d: g.ravel() for d, g in zip(dims, grids, strict=True)}
    cells = diagram["winner"].size
    begin = np.repeat(value.get("start", np.full(cells, start))[:, None], len(names), axis=1)
    if "seed" in value:
        random = {s: _normal(s, len(names)) for s in np.unique(value["seed"])}
        begin *= np.stack([random[s] for s in value["seed"]])
    for i, name in enumerate(names):
        if f"start.{name}" in value:
            begin[:, i] = value[f"start.{name}"]
    return begin


def _normal(seed: float, count: int) -> Float[np.ndarray, " C"]:
    return np.random.default_rng(int(seed)).normal(size=count)


def neighbours(diagram: xr.Dataset) -> list[tuple[int, int]]:
    """Pairs of cells, side by side on the last dimension, that different circuits win."""
    won = diagram["winner"].values
    flat = np.arange(won.size).reshape(won.shape)
    differ = (won[..., 1:] != won[..., :-1]) & (won[..., 1:] >= 0) & (won[..., :-1] >= 0)
    pairs = zip(flat[..., :-1][differ].tolist(), flat[..., 1:][differ].tolist(), strict=True)
    return list(pairs)


def population_of(task: Task, tie: Tie, kind: Expectation, samples: int, seed: int) -> Population:
    """The population that a map's winners were judged on."""
    return expectation(kind, tie, task, samples, jax.random.key(seed))
