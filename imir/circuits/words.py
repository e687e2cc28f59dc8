"""Directions in words, and the roles that are known.

What a head brings depends on the circuit around it: a path through a head that attends j places
back is "the token j places before".
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from imir.basis import Basis, Element, Path

Role = Literal["previous-token", "matching", "shifting", "copying", "memorising", "aiding"]
# For each head that attends by position alone: how many places back.
Shifts = Mapping[tuple[int, int], int]
NONE: Shifts = MappingProxyType({})


def role(basis: Basis, element: Element) -> Role:
    """What a direction does, by its form alone."""
    selection = basis.selections[element.selection]
    same = selection.name.split("[")[0] == "I"
    if element.head is None:
        return "copying" if same and element.key_path else "memorising"
    if selection.shift is None:
        return "matching"
    first = not element.query_path and not element.key_path
    return "previous-token" if first and selection.shift > 0 else "shifting"


def describe(basis: Basis, element: Element, coordinate: float, shifts: Shifts = NONE) -> str:
    """One direction as a sentence."""
    selection = basis.selections[element.selection]
    if element.head is None:
        return _output(basis, element, coordinate, shifts)
    where = f"layer {element.layer}" + (f", head {element.head}" if basis.heads > 1 else "")
    if selection.shift is not None:
        return f"{where}: {_attend(element, selection.shift, coordinate, shifts)}"
    verb = "find" if coordinate > 0 else "avoid"
    theirs = _content(element.key_path, shifts, "token")
    mine = _content(element.query_path, shifts, None)
    relation = _relation(basis, selection.name)
    return f"{where}: {verb} the place whose {theirs} is {relation.format(mine)}"


def _output(basis: Basis, element: Element, coordinate: float, shifts: Shifts) -> str:
    verb = "predict" if coordinate > 0 else "do not predict"
    name = basis.selections[element.selection].name
    token = _content(element.key_path, shifts, "the query's own token")
    if element.key_path:
        token = f"the {token}" if not token.startswith("what") else token
    return f"output: {verb} {_relation(basis, name).format(token).rstrip(',')}"


def _attend(element: Element, shift: int, coordinate: float, shifts: Shifts) -> str:
    verb = "attend to" if coordinate > 0 else "avoid"
    mine = "mine" if not element.query_path else f"the one that {_layers(element.query_path)} found"
    place = f"the place {_places(shift)} {mine}" if shift else f"{mine} itself"
    if not shift and not element.query_path:
        place = "my own place"
    if not element.key_path:
        return f"{verb} {place}, in the same block"
    found = _layers(element.key_path)
    return f"{verb} places whose {found} found {place}, in the same block"


def _places(shift: int) -> str:
    if not shift:
        return "at the same place"
    side = "before" if shift > 0 else "after"
    return f"just {side}" if abs(shift) == 1 else f"{abs(shift)} places {side}"


def _content(path: Path, shifts: Shifts, own: str | None) -> str:
    """The token that a path has brought; `own` names that of the empty path (`None`: mine)."""
    if not path:
        return "mine" if own is None else own
    brought = _layers(path)
    if all(step in shifts for step in path):
        token = f"token {_places(sum(shifts[step] for step in path))}, written by {brought},"
        return token if own is not None else f"the {token[:-1]}"
    if own is None:
        return f"what {brought} brought me"
    return f"token brought by {brought}" if own == "token" else f"what {brought} read"


def _layers(path: Path) -> str:
    heads = len({head for _, head in path}) > 1
    names = [f"layer {layer}" + (f".{head}" if heads else "") for layer, head in path]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _relation(basis: Basis, name: str) -> str:
    """What a selection says of two tokens, with a place for the other one."""
    symbol, _, side = name.partition("[")
    owner = f" ({side.rstrip(']')} tokens)" if side else ""
    if symbol == "I":
        return "{}" + owner
    if symbol == "C" or symbol.startswith("C^"):
        power = int(symbol[2:] or 1) if "^" in symbol else 1
        pairs = max(relation.motif.size for relation in basis.classes) == 2
        which = "associate" if pairs else f"associate (C^{power})"
        return f"the {which} of {{}}{owner}"
    return f"{symbol}-related to {{}}{owner}"
