"""What a command says, for people and for programs."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from imir.cli.configuration import save_configuration
from imir.cli.options import folder


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


def number(value: Any) -> float | None:
    """`None` for what is not finite: JSON has neither infinity nor NaN."""
    return float(value) if np.isfinite(value) else None


def save_report(command: Any, report: Report) -> Report:
    """Write what the command says as report.json, beside its configuration."""
    if command.out is None:
        return report
    out = folder(command.out)
    (out / "report.json").write_text(json.dumps(report.data, indent=2) + "\n")
    files = [str(out / "report.json"), save_configuration(command, out)]
    return replace(report, text="\n".join([report.text, *files]))
