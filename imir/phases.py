"""Phase diagrams: in-context against in-weights learning over any two parameters.

Each cell is one gradient flow. Cells that differ only in probabilities, initial point or weight
decay share one compiled program and one list of prompts.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, Key
from tqdm import tqdm

from imir.canonical import canonical
from imir.flow import Flow, Trace, check, integrate, inverse
from imir.population import Expectation, Population, expectation, with_odds
from imir.scores import REGIMES, Probes, best_iwl, probes, regime, reweighted
from imir.tasks.outcomes import odds
from imir.tasks.task import Task
from imir.ties import Tie

CHUNK = 8
COUNTS = ("blocks", "burstiness", "vocabulary", "rare_vocabulary")
PROBABILITIES = ("rare_fraction", "variability", "context_fraction")
RUN = ("start", "weight_decay")


@dataclass(frozen=True)
class Axis:
    """Values of one parameter: a statistic of the task, or `start`, or `weight_decay`."""

    name: str
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.name not in (*PROBABILITIES, *COUNTS, *RUN):
            known = ", ".join((*PROBABILITIES, *COUNTS, *RUN))
            raise ValueError(f"Argument `axis` must vary one of {known}, but is {self.name!r}.")
        if not self.values or not np.all(np.isfinite(self.values)):
            raise ValueError(
                f"Argument `axis` must have finite values, but {self.name} has {self.values}."
            )


def axis(text: str) -> Axis:
    """Read `name=LOW:HIGH:COUNT`, or `…:log` for log spacing; numbers of things are rounded."""
    name, _, numbers = text.partition("=")
    parts = numbers.split(":")
    spacing = np.geomspace if parts[3:] == ["log"] else np.linspace
    try:
        low, high, count = float(parts[0]), float(parts[1]), int(parts[2])
        good = np.isfinite([low, high]).all() and count >= 1 and low <= high
        good = good and len(parts) == 3 + (spacing is np.geomspace)
        good = good and (spacing is np.linspace or low > 0)
    except (ValueError, IndexError):
        good = False
    if not good:
        raise ValueError(
            "Argument `axis` must be name=LOW:HIGH:COUNT with LOW ≤ HIGH and COUNT ≥ 1 "
            f"(log spacing from LOW > 0), but is {text!r}."
        )
    values = spacing(low, high, count)
    values = np.unique(np.round(values)) if name in COUNTS else values
    return Axis(name, tuple(values.tolist()))


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    task: Task
    start: float
    weight_decay: float

    @property
    def counts(self) -> tuple[int | None, ...]:
        """The statistics that decide shapes."""
        return tuple(getattr(self.task, name) for name in COUNTS)


def cells(task: Task, x: Axis, y: Axis, start: float, weight_decay: float) -> list[Cell]:
    """All cells, row by row in y; every one is checked before anything runs."""
    if x.name == y.name:
        raise ValueError(f"Argument `y` must vary another parameter than x, but is {y.name!r}.")
    return [
        _cell(task, {"start": start, "weight_decay": weight_decay, y.name: b, x.name: a})
        for b in y.values
        for a in x.values
    ]


def _cell(task: Task, values: Mapping[str, float]) -> Cell:
    own = {f.name for f in fields(Task)}
    statistics = {k: int(v) if k in COUNTS else v for k, v in values.items() if k in own}
    cell = Cell(replace(task, **statistics), values["start"], values["weight_decay"])
    if not (np.isfinite(cell.start) and np.isfinite(cell.weight_decay) and cell.weight_decay >= 0):
        raise ValueError(
            "Argument `weight_decay` must be at least 0 and `start` finite, but they are "
            f"{cell.weight_decay} and {cell.start}."
        )
    return cell


def phase_diagram(
    task: Task,
    x: Axis,
    y: Axis,
    flow: Flow = Flow(rtol=1e-4, saves=48),
    *,
    tie_of: Callable[[Task], Tie] = canonical,
    start: float = 1e-3,
    weight_decay: float = 0.0,
    kind: Expectation = "auto",
    samples: int = 512,
    seed: int = 0,
    progress: bool = False,
) -> xr.Dataset:
    """Run every cell of x × y and report where it ends.

    Per cell: final coordinates, loss, ICL and IWL score, the times at which each emerged (NaN
    where it never did), their regime (−1 where the solver failed). The expectation of `kind` auto
    is exact where the prompts can be listed, otherwise over `samples` prompts drawn with `seed`.
    Raises `ValueError` for cells that cannot be; a cell whose solver fails is recorded, not raised.
    """
    todo = cells(task, x, y, start, weight_decay)
    results: list[dict[str, np.ndarray]] = [{} for _ in todo]
    names: tuple[str, ...] = ()
    with tqdm(total=len(todo), unit="cell", disable=not progress) as bar:
        for numbers in _alike(todo):
            alike = [todo[i] for i in numbers]
            sweep = _sweep(alike, flow, tie_of, kind, samples, jax.random.key(seed))
            names = sweep.population.tie.names
            for chunk in _chunks(numbers, alike):
                results_of_chunk = _run_chunk(sweep, flow, [cell for _, cell in chunk])
                for (i, _), result in zip(chunk, results_of_chunk, strict=True):
                    results[i] = result
                bar.update(len(chunk))
    stacked = {name: np.stack([r[name] for r in results]) for name in results[0]}
    return _dataset(task, x, y, names, stacked)


class Sweep(eqx.Module):
    """What cells of one shape share: prompts, probes and the metric's inverse."""

    shape: Task = eqx.field(static=True)
    population: Population
    probes: Probes
    inverse_metric: Float[Array, "C C"]


def _sweep(alike: list[Cell], flow: Flow, tie_of, kind, samples: int, key: Key[Array, ""]) -> Sweep:
    shape = _shape([cell.task for cell in alike])
    tie = tie_of(shape)
    check(tie, flow)
    population = expectation(kind, tie, shape, samples, key)
    return Sweep(shape, population, probes(tie, shape, samples, key), inverse(tie.metric))


def _shape(tasks: list[Task]) -> Task:
    """A task with every class and kind of prompt that any of these has."""

    def between(name: str) -> float:
        values = {getattr(task, name) for task in tasks}
        return values.pop() if len(values) == 1 else 0.5

    variability = max(task.variability for task in tasks)
    return replace(
        tasks[0],
        variability=variability,
        **{n: between(n) for n in ("rare_fraction", "context_fraction")},
    )


def _alike(todo: list[Cell]) -> list[list[int]]:
    """Numbers of the cells of each shape."""
    groups: dict[tuple, list[int]] = {}
    for i, cell in enumerate(todo):
        groups.setdefault(cell.counts, []).append(i)
    return list(groups.values())


def _chunks(numbers: list[int], alike: list[Cell]) -> Iterator[list[tuple[int, Cell]]]:
    pairs = list(zip(numbers, alike, strict=True))
    return (pairs[i : i + CHUNK] for i in range(0, len(pairs), CHUNK))


def _run_chunk(sweep: Sweep, flow: Flow, chunk: list[Cell]) -> list[dict[str, np.ndarray]]:
    """The last chunk repeats its last cell, so that every chunk runs the same program."""
    filled = chunk + [chunk[-1]] * (CHUNK - len(chunk))
    columns = [
        (odds(c.task, sweep.shape), best_iwl(c.task, sweep.shape), c.start, c.weight_decay)
        for c in filled
    ]
    stacked = jax.tree.map(lambda *x: jnp.stack([jnp.asarray(v) for v in x]), *columns)
    ends = jax.tree.map(np.asarray, _run(sweep, flow, *stacked))
    return [{name: value[i] for name, value in ends.items()} for i in range(len(chunk))]


@eqx.filter_jit
def _run(sweep: Sweep, flow: Flow, odds_, best, start, decay) -> dict[str, Array]:
    return jax.lax.map(partial(_run_cell, sweep, flow), (odds_, best, start, decay))


def _run_cell(sweep: Sweep, flow: Flow, cell: tuple) -> dict[str, Array]:
    odds_, best, start, decay = cell
    population = with_odds(sweep.population, odds_)
    found = reweighted(sweep.probes, odds_, best)
    tie = population.tie
    begin = jnp.full(len(tie.names), start)
    trace = integrate(tie, flow, population.at(), found, begin, decay, sweep.inverse_metric)
    return _ending(trace, found)


def _ending(trace: Trace, found: Probes) -> dict[str, Array]:
    reached = jnp.stack([trace.icl[-1], trace.iwl[-1]])
    return {
        "coordinates": trace.coordinates[-1],
        "loss": trace.loss[-1],
        "icl_score": reached[0],
        "iwl_score": reached[1],
        "icl_time": trace.icl_time,
        "iwl_time": trace.iwl_time,
        "regime": jnp.where(trace.failed, -1, regime(reached, found)),
        "steps": trace.steps,
        "end": trace.end,
    }


UNITS = {
    "loss": "nats or squared logits",
    "icl_score": "probability",
    "iwl_score": "probability",
    "icl_time": "gradient-flow time",
    "iwl_time": "gradient-flow time",
    "regime": "index of regimes; -1 where the solver failed",
    "steps": "solver steps",
    "end": "gradient-flow time",
    "coordinates": "1",
}


def _dataset(task: Task, x: Axis, y: Axis, names, results: dict[str, np.ndarray]) -> xr.Dataset:
    shape = (len(y.values), len(x.values))
    data = {
        name: (
            (y.name, x.name, *(["coordinate"] if value.ndim == 2 else [])),
            value.reshape(*shape, *value.shape[1:]),
            {"units": UNITS[name]},
        )
        for name, value in results.items()
    }
    axes = {y.name: list(y.values), x.name: list(x.values), "coordinate": list(names)}
    return xr.Dataset(data, axes, {"task": str(task), "regimes": list(REGIMES)})


def regime_counts(diagram: xr.Dataset) -> dict[str, int]:
    """Number of cells in each regime; `failed` counts those whose solver gave up."""
    values = diagram["regime"].values
    counts = {name: int(np.sum(values == i)) for i, name in enumerate(REGIMES)}
    failed = int(np.sum(values == -1))
    return {**counts, "failed": failed} if failed else counts
