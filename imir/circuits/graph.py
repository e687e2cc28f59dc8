"""A circuit as a graph: embedding, heads and answer, joined by directions."""

from dataclasses import dataclass
from typing import Literal

from imir.basis import Path
from imir.circuits.circuit import Circuit, Unit

Side = Literal["query", "key", "output", "value"]
# (0, 0) is the embedding, (layer, head) a head, (L + 1, 0) the answer.
Node = tuple[int, int]


@dataclass(frozen=True)
class Edge:
    """One side of a direction: from where its path was last written to the head that compares it,
    or to the answer. `value` edges (without a unit) show what a path has come through."""

    source: Node
    target: Node
    side: Side
    unit: Unit | None


def edges(circuit: Circuit) -> tuple[Edge, ...]:
    """The sides of every direction, then the steps of the paths that they use."""
    found: list[Edge] = []
    steps: set[tuple[Node, Node]] = set()
    for unit in circuit.units:
        e = circuit.element(unit)
        target = e.layer, e.head or 0
        sides: dict[Side, Path] = {"query": e.query_path, "key": e.key_path}
        if e.head is None:
            sides = {"output": e.key_path}
        found += [Edge(_last(path), target, side, unit) for side, path in sides.items()]
        steps |= {step for path in sides.values() for step in _steps(path)}
    return (*found, *(Edge(a, b, "value", None) for a, b in sorted(steps)))


def _last(path: Path) -> Node:
    return path[-1] if path else (0, 0)


def _steps(path: Path) -> list[tuple[Node, Node]]:
    return list(zip(((0, 0), *path), path, strict=False))
