"""The command line: `imir basis | simulate | phase | corpus | verify`.

Each command is a dataclass whose fields are its options and whose `report` does the work. Other
packages register commands under the entry point group `imir.commands`.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, Protocol

import jax
import matplotlib
import numpy as np
import tyro
from tqdm import tqdm

from imir import plot
from imir.basis import basis_of
from imir.configuration import arguments_from, save_configuration
from imir.corpus import Corpus as Measured
from imir.corpus import Tokenization, measure
from imir.flow import Optimizer, check, descend, gradient_flow
from imir.options import (
    ModelOptions,
    RunOptions,
    check_folder,
    flow_of,
    folder,
    precision,
    start_of_run,
    task_of,
    tie_of,
)
from imir.phases import axis, phase_diagram, regime_counts
from imir.population import expectation
from imir.scores import REGIMES, probes
from imir.solution import RunFailure, Solution

# Attention entries in one gradient from which a run is long.
LONG = 1_000_000


@dataclass(frozen=True)
class Report:
    """What a command says: for people, for programs, and its exit status."""

    text: str
    data: Any
    status: int = 0


class Command(Protocol):
    json: bool
    out: Path | None

    def report(self) -> Report: ...


@dataclass(frozen=True)
class Basis(ModelOptions):
    """List the basis of the invariant manifold: every direction that a gradient can reach.

    Example: imir basis --task recall --layers 2 --heads 1
    """

    def report(self) -> Report:
        basis = basis_of(task_of(self), self.layers, self.heads, self.frame)
        literal = replace(basis, shifts="literal")
        elements = [
            {
                "layer": "output" if e.head is None else e.layer,
                "head": e.head,
                "query_path": [list(step) for step in e.query_path],
                "selection": basis.selections[e.selection].name,
                "key_path": [list(step) for step in e.key_path],
                "latex": basis.latex(e),
            }
            for e in basis.elements
        ]
        counts = {"count": len(elements), "count_literal": len(literal.elements)}
        named = zip(basis.names, basis.elements, strict=True)
        lines = [f"{name:<44} {basis.latex(e)}" for name, e in named]
        total = f"{len(elements)} elements (the paper's literal set: {len(literal.elements)})"
        report = Report("\n".join([*lines, total]), {**counts, "elements": elements})
        return save_report(self, report)


@dataclass(frozen=True)
class Simulate(RunOptions):
    """Integrate the learning dynamics in coordinates: a training run in seconds.

    Example: imir simulate --task recall --blocks 16 --rare-fraction 0.3 --variability 0.2
    """

    optimizer: Literal["flow", "sgd", "momentum", "adam"] = "flow"
    """flow: gradient flow; otherwise discrete steps (adam needs the one-hot frame)."""
    learning_rate: float = 1.0
    """Of discrete steps."""
    steps: int = 1000
    """Number of discrete steps."""
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
            "icl_score": _number(solution.icl[-1]),
            "iwl_score": _number(solution.iwl[-1]),
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
        if self.optimizer == "flow":
            # A bar needs a callback, which keeps a program out of the cache: only for long work.
            flow = replace(flow, progress=population.size * task.length**2 > LONG)
            return gradient_flow(
                population, start, flow, probes=found, weight_decay=self.weight_decay
            )
        chosen = Optimizer(self.optimizer, self.learning_rate, weight_decay=self.weight_decay)
        return descend(population, start, chosen, self.steps, loss=self.loss, probes=found)

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


@dataclass(frozen=True)
class Corpus:
    """Measure real text: the same statistics that the phase diagrams have as axes.

    Example: imir corpus book.txt --tokenization words --context 64
    """

    files: tyro.conf.Positional[tuple[Path, ...]]
    """Text files."""
    tokenization: Tokenization = "words"
    """words, characters or bytes."""
    context: int = 64
    """Tokens of context."""
    rare_count: int = 10
    """A token that occurs fewer times is rare."""
    seed: int = 0
    """Seed of the shuffled baseline."""
    out: Path | None = None
    """Folder for files; made if it does not exist."""
    json: bool = False
    """JSON on standard output (one object, or a list of them for several files)."""

    def report(self) -> Report:
        if not self.files:
            raise ValueError("Argument `files` must name at least one text, but is empty.")
        measured = [
            measure(
                file,
                tokenization=self.tokenization,
                context=self.context,
                rare_count=self.rare_count,
                seed=self.seed,
                progress=True,
            )
            for file in self.files
        ]
        data = [corpus.as_dict() for corpus in measured]
        data = data[0] if len(data) == 1 else data
        report = Report("\n\n".join(map(_table, measured)), data)
        return save_report(self, report)


def _table(corpus: Measured) -> str:
    """Statistics of a text beside those of its shuffled copy."""
    text, shuffled = corpus.text.as_dict(), corpus.shuffled.as_dict()
    rows = [f"{corpus.text.name:<22} {'text':>12} {'shuffled':>12}"]
    for name, value in text.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            other = shuffled[name]
            rows.append(f"{name:<22} {value:>12.5g} {other:>12.5g}")
    return "\n".join(rows)


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def save_report(command: Any, report: Report) -> Report:
    """Write what the command says as report.json, beside its configuration."""
    if command.out is None:
        return report
    out = folder(command.out)
    (out / "report.json").write_text(json.dumps(report.data, indent=2) + "\n")
    files = [str(out / "report.json"), save_configuration(command, out)]
    return replace(report, text="\n".join([report.text, *files]))


def commands(name: str) -> dict[str, Any]:
    """All commands; those of other packages are loaded where `name` is none of imir's own."""
    own = {"basis": Basis, "simulate": Simulate, "phase": Phase, "corpus": Corpus}
    others = [] if name in own else entry_points(group="imir.commands")
    return {**own, **{entry.name: entry.load() for entry in others}}


def _parse(arguments: Sequence[str]) -> Command:
    """Options from a TOML file (--config) come first, those of the command line override them."""
    name, *rest = arguments or ["--help"]
    if "--config" in rest:
        place = rest.index("--config")
        file = rest[place + 1] if place + 1 < len(rest) else ""
        rest = [*arguments_from(Path(file)), *rest[:place], *rest[place + 2 :]]
    return tyro.extras.subcommand_cli_from_dict(
        commands(name),
        prog="imir",
        description="Learning dynamics of transformers on the manifold of inductive reasoning. "
        "Every command takes --config FILE with options as TOML, such as the config.toml that "
        "runs write into --out.",
        args=[name, *rest],
    )


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns its exit status."""
    matplotlib.use("agg")
    try:
        command = _parse(arguments)
        check_folder(command.out)
        report = command.report()
    except KeyboardInterrupt:
        tqdm.write("imir: interrupted.", file=sys.stderr)
        return 130
    except Exception as error:
        sentence = " ".join(str(error).split()) or type(error).__name__
        tqdm.write(f"imir: {sentence}", file=sys.stderr)
        return 2
    print(json.dumps(report.data) if command.json else report.text)
    return report.status


def remember_programs(folder: Path) -> None:
    """Keep compiled programs on disk, so that a second run starts at once."""
    if jax.config.jax_compilation_cache_dir is None:  # pyright: ignore[reportAttributeAccessIssue]
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def main() -> None:
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    remember_programs(caches / "imir")
    sys.exit(run(sys.argv[1:]))
