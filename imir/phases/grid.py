"""Grids of runs: any number of axes over a task's statistics and a run's parameters."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from math import prod

import numpy as np
from jaxtyping import Int

from imir.tasks.task import Task

COUNTS = ("blocks", "burstiness", "vocabulary", "rare_vocabulary")
PROBABILITIES = ("rare_fraction", "variability", "context_fraction")
RUN = ("start", "seed", "weight_decay")
# Followed by the name of a coordinate: its own initial value, or the value that it is held at.
COORDINATE = ("start.", "clamp.")
MOST_CELLS = 10_000_000
# Cells of one block: small enough to lose at an interruption, large enough to write at once.
BLOCK = 256
Cells = Int[np.ndarray, "n d"]


@dataclass(frozen=True)
class Axis:
    """Values of one parameter of a sweep.

    A statistic of the task; `start`, the initial value of every coordinate; `seed` of random
    initial values of that scale; `weight_decay`; `start.NAME` or `clamp.NAME` for one coordinate.
    """

    name: str
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        known = (*PROBABILITIES, *COUNTS, *RUN)
        if self.name not in known and not self.name.startswith(COORDINATE):
            raise ValueError(
                f"Argument `axis` must vary one of {', '.join(known)}, start.NAME or clamp.NAME, "
                f"but is {self.name!r}."
            )
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
        good = np.isfinite([low, high]).all() and 1 <= count <= MOST_CELLS and low <= high
        good = good and len(parts) == 3 + (spacing is np.geomspace)
        good = good and (spacing is np.linspace or low > 0)
    except (ValueError, IndexError):
        good = False
    if not good:
        raise ValueError(
            "Argument `axis` must be name=LOW:HIGH:COUNT with LOW ≤ HIGH and COUNT from 1 to "
            f"{MOST_CELLS} (log spacing from LOW > 0), but is {text!r}."
        )
    values = spacing(low, high, count)
    values = np.unique(np.round(values)) if name in (*COUNTS, "seed") else values
    return Axis(name, tuple(values.tolist()))


@dataclass(frozen=True)
class Cell:
    """One run of a sweep: `own` initial values and `clamps` by coordinate."""

    task: Task
    start: float
    weight_decay: float
    seed: int | None = None
    own: tuple[tuple[str, float], ...] = ()
    clamps: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        decay = self.weight_decay
        if not (np.isfinite(self.start) and np.isfinite(decay) and decay >= 0):
            raise ValueError(
                "Argument `weight_decay` must be at least 0 and `start` finite, but they are "
                f"{decay} and {self.start}."
            )


@dataclass(frozen=True)
class Grid:
    """Axes (the first one varies fastest) around a task, an initial value and a weight decay."""

    task: Task
    axes: tuple[Axis, ...]
    start: float = 1e-3
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        names = [axis.name for axis in self.axes]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise ValueError(
                f"Argument `axes` must vary different parameters, but has {repeated[0]} twice."
            )
        if not 1 <= self.size <= MOST_CELLS:
            raise ValueError(
                f"Argument `axes` must span 1 to {MOST_CELLS} cells, but has "
                f"{' × '.join(map(str, self.shape)) or 'none'} = {self.size}."
            )
        for corner in self._extremes():
            self._cell(corner)

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(axis.name for axis in reversed(self.axes))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(axis.values) for axis in reversed(self.axes))

    @property
    def size(self) -> int:
        return prod(self.shape) if self.axes else 0

    def cell(self, index: Sequence[int]) -> Cell:
        """The cell at an index into `dims`."""
        axes = zip(reversed(self.axes), index, strict=True)
        return self._cell({axis.name: axis.values[i] for axis, i in axes})

    def _cell(self, values: Mapping[str, float]) -> Cell:
        own = {f.name for f in fields(Task)}
        statistics = {k: int(v) if k in COUNTS else v for k, v in values.items() if k in own}
        named = {
            kind: tuple((k[len(kind) :], v) for k, v in values.items() if k.startswith(kind))
            for kind in COORDINATE
        }
        return Cell(
            replace(self.task, **statistics),
            values.get("start", self.start),
            values.get("weight_decay", self.weight_decay),
            int(values["seed"]) if "seed" in values else None,
            named["start."],
            named["clamp."],
        )

    def _extremes(self) -> Iterator[dict[str, float]]:
        """Cells that are all valid only if every cell is: every count, the ends of the others."""
        choices = [
            a.values if a.name in COUNTS else (min(a.values), max(a.values))
            for a in reversed(self.axes)
        ]
        for corner in product(*choices):
            yield dict(zip(self.dims, corner, strict=True))

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Cells of one block along `dims`; those of one block have the same shapes."""
        smooth = [d for d in range(len(self.dims)) if self.dims[d] not in COUNTS]
        side = max(1, int(BLOCK ** (1 / max(1, len(smooth))) + 1e-9))
        return tuple(min(n, side) if d in smooth else 1 for d, n in enumerate(self.shape))

    def by_blocks(self, cells: Cells) -> list[Cells]:
        """The cells of each block that has any, one block after the other."""
        block = np.ravel_multi_index(
            tuple((cells // self.block_shape).T),
            tuple(-(-n // b) for n, b in zip(self.shape, self.block_shape, strict=True)),
        )
        order = np.argsort(block, kind="stable")
        return np.split(cells[order], np.flatnonzero(np.diff(np.asarray(block)[order])) + 1)
