"""`imir lottery`: which circuit wins, over directions of the initial point."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from imir import lottery, plot
from imir.cli.configuration import save_configuration
from imir.cli.options import RunOptions, flow_of, precision, task_of
from imir.cli.report import Report
from imir.cli.sweeps import sweeping
from imir.phases import Axis, axis

# Boundaries whose widths are measured.
BOUNDARIES = 3


@dataclass(frozen=True)
class Lottery(RunOptions):
    """Map which of several induction circuits wins, over two directions of the initial point.

    In three layers and more, each pair of layers a > b can become an induction head: alpha_a (layer
    a attends to the token before), beta_ab (layer b finds what layer a wrote), gamma_b (the output
    copies). The map says which circuit does best alone at the end of the run, predictors say how
    far the initial point tells that in advance, and boundaries are measured by bisection.

    Example: imir lottery --x start.beta13=-4:4:32 --y start.beta12=-4:4:32 --out map
    """

    task: str = "recall"
    """recall, 2hop (any khop), 3gram (any kgram), inversion, retrieval, ioi, or a template."""
    blocks: int = 4
    """N, complete blocks in the context."""
    rare_fraction: float = 1.0
    """f_r, probability that a block's tokens are rare (without relations of their own)."""
    layers: int = 3
    """L, layers of attention; one circuit for each pair."""
    x: str = "start.beta13=-4:4:32"
    """Horizontal axis start.NAME=LOW:HIGH:COUNT: initial value of one coordinate."""
    y: str = "start.beta12=-4:4:32"
    """Vertical axis."""
    more: tuple[str, ...] = ("seed=1:1:1",)
    """Further axes or fixed values, as NAME=LOW:HIGH:COUNT: seed=1:1:1 for random initial values of
    the other coordinates, start.alpha2=0.5:0.5:1 to fix one; figures show the first of each."""
    refine: int | None = None
    """Stride of a coarse lattice; then only what a boundary passes through is computed."""
    start: float = 0.3
    """Initial value of the other coordinates, or the scale of random ones."""
    until: float = 1e5
    """End, in gradient-flow time."""
    rtol: float = 1e-4
    """Relative tolerance of the solver."""
    samples: int = 256
    """Prompts in a sample, where the expectation is not exact."""
    out: Path | None = Path("imir-lottery")
    """Folder for files; made if it does not exist."""

    def report(self) -> Report:
        self._check()
        began = time.perf_counter()
        axes = [axis(text) for text in (self.x, self.y, *self.more)]
        with precision(self):
            diagram = self._map(axes)
            seconds = time.perf_counter() - began
            predicted, sharp = self._explain(diagram, axes)
        plane = diagram.isel({a.name: 0 for a in axes[2:]})
        names = ["nobody", *diagram.attrs["circuits"]]
        counts = np.bincount(diagram["winner"].values.ravel() + 1, minlength=len(names)).tolist()
        files = self._write(plane, self.out) if self.out else []
        data = {
            "cells": int(diagram["winner"].size),
            "seconds": seconds,
            "winners": dict(zip(names, counts, strict=True)),
            "predictors": predicted and predicted.accuracy,
            "commonest": predicted and predicted.commonest,
            "boundaries": sharp,
            "files": files,
        }
        won = ", ".join(f"{n} {c}" for n, c in zip(names, counts, strict=True) if c)
        lines = [f"{data['cells']} cells in {seconds:.0f} s: {won}"]
        if predicted:
            lines += ["", "how often the initial point tells the winner:", str(predicted)]
        lines += [f"{b['first']} | {b['second']}: {b['share_of_axis']:.2g} of x" for b in sharp]
        return Report("\n".join([*lines, *files]), data)

    def _check(self) -> None:
        if self.coordinates != "auto" or self.heads != 1 or self.frame != "centered":
            raise ValueError(
                "Argument `coordinates`, `heads` and `frame` must be left out, as the lottery has "
                "coordinates of its own, but are given."
            )

    def _map(self, axes: list[Axis]) -> xr.Dataset:
        store = None if self.out is None else self.out / "lottery.zarr"
        with sweeping(self, store) as arguments:
            flow = flow_of(self, saves=24)
            return lottery.lottery_map(task_of(self), axes, flow, layers=self.layers, **arguments)

    def _explain(self, diagram: xr.Dataset, axes: list[Axis]) -> tuple[Any, list[dict]]:
        """Predictors' accuracy, and the width of a few boundaries along x."""
        tie, circuits = self._race()
        drawn = self.expectation, self.samples, self.seed
        population = lottery.population_of(task_of(self), tie, *drawn)
        starts, won = lottery.starts_of(diagram, self.start), diagram["winner"].values.ravel()
        if np.all(won == lottery.NOBODY):
            return None, []
        predicted = lottery.predict(population, circuits, starts, won, self.loss)
        pairs = lottery.neighbours(diagram.transpose(..., axes[0].name))
        flow, widths = flow_of(self, saves=24), []
        for a, b in pairs[:: max(1, len(pairs) // BOUNDARIES)][:BOUNDARIES]:
            found = lottery.boundary(population, circuits, starts[a], starts[b], flow)
            step = 1 / (len(axes[0].values) - 1)
            widths.append(
                {"first": found.first, "second": found.second, "share_of_axis": found.width * step}
            )
        return predicted, widths

    def _race(self):
        return lottery.rivals(task_of(self), self.layers), lottery.rival_circuits(self.layers)

    def _write(self, plane: xr.Dataset, out: Path) -> list[str]:
        figures = plot.save(plot.lottery_figure(plane), str(out / "lottery"))
        return [str(out / "lottery.zarr"), *figures, save_configuration(self, out)]
