"""`imir simulate`: one run in coordinates."""

import time
from dataclasses import dataclass
from typing import Literal

import jax

from imir import plot
from imir.cli.configuration import save_configuration
from imir.cli.options import flow_of, folder, precision, start_of_run, task_of, tie_of
from imir.cli.report import Report, number
from imir.cli.training import TrainingOptions, trained
from imir.flow import check
from imir.population import expectation
from imir.scores import probes
from imir.solution import RunFailure, Solution


@dataclass(frozen=True)
class Simulate(TrainingOptions):
    """Integrate the learning dynamics in coordinates: a training run in seconds.

    Example: imir simulate --task recall --blocks 16 --rare-fraction 0.3 --variability 0.2
    """

    stop: Literal["icl", "iwl"] | None = None
    """End the flow where this score emerges."""
    clamp: tuple[str, ...] = ()
    """Coordinates to hold, as NAME=VALUE."""

    def report(self) -> Report:
        with precision(self):
            began = time.perf_counter()
            try:
                solution = self._solve()
            except RunFailure as failure:
                self._write(failure.solution)
                raise
            seconds = time.perf_counter() - began
        files = self._write(solution)
        data = {
            "coordinates": solution.final,
            "loss": float(solution.loss[-1]),
            "icl_score": number(solution.icl[-1]),
            "iwl_score": number(solution.iwl[-1]),
            "icl_time": solution.icl_time,
            "iwl_time": solution.iwl_time,
            "steps": solution.stats["steps"],
            "seconds": seconds,
            "outcome": solution.outcome,
            "files": files,
        }
        return Report("\n".join([str(solution), *files]), data)

    def _solve(self) -> Solution:
        task = task_of(self)
        tie = tie_of(self, task)
        start, flow = start_of_run(self, tie), flow_of(self, stop=self.stop, clamps=self._clamps())
        check(tie, flow)
        sampled, asked = jax.random.split(jax.random.key(self.seed))
        population = expectation(self.expectation, tie, task, self.samples, sampled)
        found = probes(tie, task, self.samples, asked)
        return trained(self, population, start, flow, found)

    def _clamps(self) -> tuple[tuple[str, float], ...]:
        try:
            return tuple((n, float(v)) for n, _, v in (c.rpartition("=") for c in self.clamp))
        except ValueError:
            raise ValueError(
                f"Argument `clamp` must be NAME=VALUE pairs, but is {' '.join(self.clamp)!r}."
            ) from None

    def _write(self, solution: Solution) -> list[str]:
        if self.out is None:
            return []
        out = folder(self.out)
        solution.to_xarray().to_netcdf(out / "solution.nc", engine="h5netcdf")
        figures = plot.save(plot.trajectory_figure(solution), str(out / "trajectory"))
        return [str(out / "solution.nc"), *figures, save_configuration(self, out)]
