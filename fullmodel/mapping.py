"""Which array of a file is which part of a model: a small TOML file.

    tokens = "embed.weight"                     token × model
    positions = "pos.weight"                    place × model
    places = "consecutive"                      or "ring": rows are block · ring + offset
    vocabulary = [1, 2, 3]                      rows of the basis' tokens; by default all, in order
    query = "blocks.{layer}.q.weight"           layer × head × model × inner
    key = "blocks.{layer}.k.weight"             layer × head × model × inner
    value = "blocks.{layer}.v.weight"           layer × head × model × inner
    output = "blocks.{layer}.o.weight"          layer × head × inner × model
    unembedding = "head.weight"                 token × model
    scale = 0.25                                of scores; by default 1/√inner, or 1 for `key_query`
    first = 0                                   number of the first layer and head in names

`key_query` (layer × head × query × key) stands for a merged product of `query` and `key`, where the
score is query · W · key; `output_value` (layer × head × write × read) for one of `value` and
`output`; `readout` (token's model × model) for logits token · R · x.

Arrays with other axes say so: `{array = "blocks.{layer}.q.weight", axes = "(head inner) model"}`
splits the first axis into heads. Axes that names count, `{layer}` and `{head}`, are left out.
"""

import re
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

Places = Literal["consecutive", "ring"]

AXES = {
    "tokens": "token model",
    "positions": "place model",
    "key_query": "layer head query key",
    "query": "layer head model inner",
    "key": "layer head model inner",
    "output_value": "layer head write read",
    "value": "layer head model inner",
    "output": "layer head inner model",
    "unembedding": "token model",
    "readout": "query key",
}
ALTERNATIVES = {
    "scores": (("key_query",), ("query", "key")),
    "writing": (("output_value",), ("value", "output")),
    "logits": (("unembedding",), ("readout",)),
}


@dataclass(frozen=True)
class Place:
    """Name of an array, or of one for each `{layer}` or `{head}`, and its axes."""

    array: str
    axes: str


@dataclass(frozen=True)
class Mapping:
    """Where the parts of a model stand in a file; those that are not there are not in `arrays`."""

    arrays: dict[str, Place]
    places: Places = "consecutive"
    vocabulary: tuple[int, ...] | None = None
    scale: float | None = None
    first: int = 0


# How this package names its own arrays.
OWN = Mapping(
    {
        name: Place(name, AXES[name])
        for name in ("tokens", "positions", "key_query", "output_value", "readout")
    },
    places="ring",
)


def read_mapping(path: Path) -> Mapping:
    """Read a mapping file.

    Raises `ValueError` for a file that is no TOML, has unknown keys, or leaves a part out.
    """
    try:
        given = tomllib.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"Argument `map` must be a TOML file, but {path}: {error}.") from None
    return mapping_of(given)


def mapping_of(given: dict[str, Any]) -> Mapping:
    """A mapping from the keys of its file."""
    settings = [f.name for f in fields(Mapping) if f.name != "arrays"]
    if unknown := [key for key in given if key not in (*AXES, *settings)]:
        known = ", ".join([*AXES, *settings])
        raise _wrong(f"have keys among {known}, but has {unknown[0]!r}")
    arrays = {name: _place(name, given[name]) for name in AXES if name in given}
    _check_parts(arrays)
    rest = {key: value for key, value in given.items() if key in settings}
    _check_settings(rest)
    if "vocabulary" in rest:
        rest["vocabulary"] = tuple(rest["vocabulary"])
    return Mapping(arrays, **rest)


def _place(name: str, given: Any) -> Place:
    entry = {"array": given} if isinstance(given, str) else given
    if not (isinstance(entry, dict) and isinstance(entry.get("array"), str)):
        raise _wrong(f"name an array for `{name}`, but has {given!r}")
    if unknown := sorted(set(entry) - {"array", "axes"}):
        raise _wrong(f"have `array` and `axes` for `{name}`, but has {unknown[0]!r}")
    counted = re.findall(r"\{(layer|head)\}", entry["array"])
    wanted = [axis for axis in AXES[name].split() if axis not in counted]
    axes = entry.get("axes", " ".join(wanted))
    if sorted(re.findall(r"\w+", str(axes))) != sorted(wanted):
        raise _wrong(f"give `{name}` the axes {' '.join(wanted)} in some order, but has {axes!r}")
    return Place(entry["array"], axes)


def _check_parts(arrays: dict[str, Place]) -> None:
    if missing := [name for name in ("tokens", "positions") if name not in arrays]:
        raise _wrong(f"name an array for `{missing[0]}`, but has none")
    for part, choices in ALTERNATIVES.items():
        if sum(all(name in arrays for name in names) for names in choices) != 1:
            either = " or ".join(" and ".join(f"`{n}`" for n in names) for names in choices)
            has = [n for names in choices for n in names if n in arrays]
            raise _wrong(f"name arrays for {part}, either {either}, but has {has or 'none'}")


def _check_settings(given: dict[str, Any]) -> None:
    places, rows = given.get("places", "consecutive"), given.get("vocabulary", [0])
    if places not in get_args(Places):
        raise _wrong(f"have `places` consecutive or ring, but has {places!r}")
    if type(given.get("scale", 1.0)) not in (int, float):
        raise _wrong(f"have a number for `scale`, but has {given['scale']!r}")
    if not (isinstance(rows, list) and rows and all(type(x) is int and x >= 0 for x in rows)):
        raise _wrong(f"have a list of row numbers for `vocabulary`, but has {rows!r}")
    first = given.get("first", 0)
    if not (type(first) is int and first >= 0):
        raise _wrong(f"have a number from 0 on for `first`, but has {first!r}")


def _wrong(what: str) -> ValueError:
    return ValueError(f"Argument `map` must {what}.")
