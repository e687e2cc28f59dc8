"""`imir phase`: a phase diagram with real text marked on it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imir import plot
from imir.cli.configuration import save_configuration
from imir.cli.options import RunOptions, flow_of, folder, precision, task_of, tie_of
from imir.cli.report import Report
from imir.corpus import Corpus as Measured
from imir.corpus import Tokenization, measure
from imir.phases import axis, phase_diagram, regime_counts
from imir.scores import REGIMES


@dataclass(frozen=True)
class Phase(RunOptions):
    """Draw a phase diagram of in-context against in-weights learning, real text marked on it.

    Example: imir phase --x rare_fraction=0.01:1:16 --y variability=0:0.98:16 --corpus book.txt
    """

    x: str = "rare_fraction=0.01:1:12"
    """Horizontal axis NAME=LOW:HIGH:COUNT (:log for log spacing): a statistic, start, or
    weight_decay."""
    y: str = "variability=0:0.98:12"
    """Vertical axis."""
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

    def report(self) -> Report:
        began = time.perf_counter()
        with precision(self):
            task, x, y = task_of(self), axis(self.x), axis(self.y)
            flow = flow_of(self, saves=48)
            corpora = [
                measure(f, tokenization=self.tokenization, context=task.length) for f in self.corpus
            ]
            diagram = phase_diagram(
                task,
                x,
                y,
                flow,
                tie_of=lambda shape: tie_of(self, shape),
                start=self.start,
                weight_decay=self.weight_decay,
                kind=self.expectation,
                samples=self.samples,
                seed=self.seed,
                progress=True,
            )
        places = _places(corpora, x.name, y.name)
        files = [] if self.out is None else self._write(diagram, places, folder(self.out))
        counts = regime_counts(diagram)
        located = {name: _locate(diagram, *place) for name, place in places.items()}
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

    def _write(self, diagram, places, out: Path) -> list[str]:
        diagram.to_netcdf(out / "phase.nc", engine="h5netcdf")
        figures = plot.save(plot.phase_figure(diagram, places), str(out / "phase"))
        return [str(out / "phase.nc"), *figures, save_configuration(self, out)]


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
