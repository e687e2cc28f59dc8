"""`imir phase`: a phase diagram with real text marked on it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import xarray as xr

from imir import plot
from imir.cli.configuration import save_configuration
from imir.cli.options import RunOptions, flow_of, precision, task_of, tie_of
from imir.cli.processes import join
from imir.cli.report import Report
from imir.cli.sweeps import sweeping
from imir.corpus import Corpus as Measured
from imir.corpus import Tokenization, measure
from imir.phases import Axis, axis, phase_diagram, regime_counts
from imir.scores import REGIMES


@dataclass(frozen=True)
class Phase(RunOptions):
    """Draw a phase diagram of in-context against in-weights learning, real text marked on it.

    Example: imir phase --x rare_fraction=0.01:1:16 --y variability=0:0.98:16 --corpus book.txt
    """

    x: str = "rare_fraction=0.01:1:12"
    """Horizontal axis NAME=LOW:HIGH:COUNT (:log for log spacing): a statistic, weight_decay,
    start, seed, or start.NAME and clamp.NAME for one coordinate."""
    y: str = "variability=0:0.98:12"
    """Vertical axis."""
    more: tuple[str, ...] = ()
    """Further axes; figures show the first value of each."""
    refine: int | None = None
    """Stride of a coarse lattice; then only what a boundary passes through is computed."""
    corpus: tuple[Path, ...] = ()
    """Text files to measure and mark."""
    tokenization: Tokenization = "words"
    """How to split those files."""
    rtol: float = 1e-4
    """Relative tolerance of the solver."""
    samples: int = 256
    """Prompts in a sample, where the expectation is not exact."""
    out: Path | None = Path("imir-phase")
    """Folder for files; made if it does not exist."""

    coordinator: str | None = None
    """HOST:PORT of process 0 where several processes share the work, or auto on a cluster."""
    processes: int | None = None
    """How many processes share it."""
    process_id: int | None = None
    """Which of them this is, from 0."""

    def report(self) -> Report:
        join(self.coordinator, self.processes, self.process_id)
        began = time.perf_counter()
        axes = [axis(text) for text in (self.x, self.y, *self.more)]
        with precision(self):
            task = task_of(self)
            corpora = [
                measure(f, tokenization=self.tokenization, context=task.length) for f in self.corpus
            ]
            diagram = self._run(axes)
        plane = diagram.isel({a.name: 0 for a in axes[2:]})
        places = _places(corpora, axes[0].name, axes[1].name)
        first = self.out is not None and jax.process_index() == 0
        files = self._write(plane, places, self.out) if first and self.out else []
        counts = regime_counts(diagram)
        located = {name: _locate(plane, *place) for name, place in places.items()}
        data = {
            "cells": int(diagram["regime"].size),
            "seconds": time.perf_counter() - began,
            "regimes": counts,
            "files": files,
            "corpora": located,
        }
        summary = ", ".join(f"{name} {count}" for name, count in counts.items())
        lines = [f"{data['cells']} cells in {data['seconds']:.0f} s: {summary}"]
        lines += [_describe(name, place) for name, place in located.items()]
        return Report("\n".join([*lines, *files]), data)

    def _run(self, axes: list[Axis]) -> xr.Dataset:
        store = None if self.out is None else self.out / "phase.zarr"
        with sweeping(self, store) as arguments:
            flow = flow_of(self, saves=48)
            return phase_diagram(
                task_of(self), axes, flow, tie_of=lambda shape: tie_of(self, shape), **arguments
            )

    def _write(self, diagram: xr.Dataset, places, out: Path) -> list[str]:
        figures = plot.save(plot.phase_figure(diagram, places), str(out / "phase"))
        return [str(out / "phase.zarr"), *figures, save_configuration(self, out)]


def _places(corpora: Sequence[Measured], x: str, y: str) -> dict[str, tuple[float, float]]:
    """Where each text lies on the axes; texts have no place on axes that they cannot measure."""
    measured = {c.text.name: c.as_dict() for c in corpora}
    return {
        name: (c[x], c[y])
        for name, c in measured.items()
        if c.get(x) is not None and c.get(y) is not None
    }


def _locate(diagram, x: float, y: float) -> dict[str, Any]:
    """A text's statistics and the regime of the nearest cell."""
    vertical, horizontal = (str(d) for d in diagram["regime"].dims)
    cell = diagram["regime"].sel({horizontal: x, vertical: y}, method="nearest")
    name = "failed" if int(cell) < 0 else REGIMES[int(cell)]
    return {horizontal: x, vertical: y, "regime": name}


def _describe(name: str, place: dict[str, Any]) -> str:
    numbers = ", ".join(f"{k} {v:.3f}" for k, v in place.items() if k != "regime")
    return f"{name}: {numbers}; nearest cell: {place['regime']}"
