"""Parsing, running and reporting commands."""

import json
import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import jax
import matplotlib
import tyro
from tqdm import tqdm

from imir.cli.basis import Basis
from imir.cli.configuration import arguments_from
from imir.cli.corpus import Corpus
from imir.cli.lottery import Lottery
from imir.cli.options import check_folder
from imir.cli.phase import Phase
from imir.cli.report import Command
from imir.cli.simulate import Simulate
from imir.cli.theory import Theory


def commands(name: str) -> dict[str, Any]:
    """All commands; those of other packages are loaded where `name` is none of imir's own."""
    own = {
        "basis": Basis,
        "simulate": Simulate,
        "phase": Phase,
        "corpus": Corpus,
        "theory": Theory,
        "lottery": Lottery,
    }
    others = [] if name in own else entry_points(group="imir.commands")
    return {**own, **{entry.name: entry.load() for entry in others}}


def _parse(arguments: Sequence[str]) -> Command:
    """Options from a TOML file (--config) come first, those of the command line override them."""
    name, *rest = arguments or ["--help"]
    if "--config" in rest:
        place = rest.index("--config")
        file = rest[place + 1] if place + 1 < len(rest) else ""
        del rest[place : place + 2]
        # A command of a command comes before all options.
        first = next((i for i, a in enumerate(rest) if a.startswith("-")), len(rest))
        rest[first:first] = arguments_from(Path(file))
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
    except KeyboardInterrupt as stop:
        tqdm.write(f"imir: {str(stop) or 'interrupted.'}", file=sys.stderr)
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


def use_all_cores() -> None:
    """One JAX device for each core, so that sweeps run on all of them."""
    if jax.config.jax_num_cpu_devices < 0:  # pyright: ignore[reportAttributeAccessIssue]
        jax.config.update("jax_num_cpu_devices", os.cpu_count())


def main() -> None:
    use_all_cores()
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    remember_programs(caches / "imir")
    sys.exit(run(sys.argv[1:]))
