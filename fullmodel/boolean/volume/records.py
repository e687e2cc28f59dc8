"""Records of volumes in a file, so that the same command goes on where it stopped."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fullmodel.boolean.volume.estimate import Count, Repeat
from fullmodel.boolean.volume.measure import Record
from imir.phases.store import difference

Records = dict[int, Record]


def load(file: Path | None, configuration: Mapping[str, Any]) -> Records:
    """What an earlier run of the same configuration found, by length.

    Raises `ValueError` where the file holds another configuration or something else.
    """
    if file is None or not file.exists():
        return {}
    try:
        found = json.loads(file.read_text())
        records = {int(n): _record(values) for n, values in found["records"].items()}
        there = found["configuration"]
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"Argument `out` must be a folder for volumes, but {str(file)!r} is another file."
        ) from None
    if other := difference(there, configuration):
        raise ValueError(
            f"Argument `out` must hold this measurement, but {str(file)!r} has {other}."
        )
    return records


def _record(values: dict[str, Any]) -> Record:
    count = values["count"] and Count(**values["count"])
    return Record(count, tuple(Repeat(**r) for r in values["repeats"]))


def save(file: Path | None, configuration: Mapping[str, Any], records: Records) -> None:
    """Replace the file as a whole, so that it can be read at any time."""
    if file is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    found = {n: asdict(record) for n, record in records.items()}
    unfinished = file.with_suffix(".new")
    unfinished.write_text(json.dumps({"configuration": configuration, "records": found}) + "\n")
    unfinished.replace(file)
