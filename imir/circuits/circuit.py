"""A circuit: the directions that a model needs, in words, and how well they do without the rest."""

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from imir.basis import Element
from imir.circuits.ablation import Effort
from imir.circuits.words import Role
from imir.ties import Tie


class Measure(NamedTuple):
    """Expected loss and accuracy (share of prompts whose most probable token is right)."""

    loss: float
    accuracy: float

    def __str__(self) -> str:
        return f"loss {self.loss:.4g}, accuracy {self.accuracy:.3f}"


@dataclass(frozen=True)
class Unit:
    """A direction of a circuit.

    `without`: the circuit when this one goes too. `aided`: the canonical units with this one, for
    an aiding direction.
    """

    name: str
    words: str
    role: Role
    coordinate: float
    without: Measure
    aided: Measure | None = None


@dataclass(frozen=True)
class Removal:
    """A direction that was ablated, and the model without it and all before it."""

    name: str
    left: Measure


@dataclass(frozen=True)
class Circuit:
    """What elimination left of a model.

    `whole` is the model, `alone` the circuit without the rest, `canonical` its canonical units
    without those that aid; `coordinates` are zero outside of the circuit. `removals` go on below
    the circuit, down to nothing; the first `removed` of them stayed within the `budget`.
    """

    tie: Tie
    coordinates: Float[np.ndarray, " C"]
    units: tuple[Unit, ...]
    budget: float
    whole: Measure
    alone: Measure
    canonical: Measure
    removals: tuple[Removal, ...]
    removed: int
    effort: Effort

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(unit.name for unit in self.units)

    @property
    def canonical_units(self) -> tuple[Unit, ...]:
        return tuple(unit for unit in self.units if unit.role != "aiding")

    @property
    def aiding_units(self) -> tuple[Unit, ...]:
        return tuple(unit for unit in self.units if unit.role == "aiding")

    @property
    def unfaithfulness(self) -> float:
        """Loss of the circuit alone minus the model's."""
        return self.alone.loss - self.whole.loss

    @property
    def minimal(self) -> bool:
        """Does the loss pass the budget when any one more goes?"""
        return all(unit.without.loss > self.budget for unit in self.units)

    def element(self, unit: Unit) -> Element:
        """The first of the basis elements that move with a unit."""
        members = self.tie.members[self.tie.names.index(unit.name)]
        return self.tie.basis.elements[members[0]]

    def as_dict(self) -> dict[str, Any]:
        """Everything but the basis, as JSON."""
        return {
            "units": [_plain(unit) for unit in self.units],
            "canonical_units": [unit.name for unit in self.canonical_units],
            "aiding_units": [unit.name for unit in self.aiding_units],
            "budget": self.budget,
            "whole": self.whole._asdict(),
            "alone": self.alone._asdict(),
            "canonical": self.canonical._asdict(),
            "unfaithfulness": self.unfaithfulness,
            "minimal": self.minimal,
            "directions": len(self.tie.names),
            "removals": [{"name": r.name, **r.left._asdict()} for r in self.removals],
            "removed": self.removed,
            "evaluations": asdict(self.effort),
        }

    def __str__(self) -> str:
        heading = (
            f"{len(self.units)} of {len(self.tie.names)} directions within {self.budget:.4g} nats"
        )
        rows = [
            f"  {u.coordinate:+9.3f}  {u.name:<38} {u.role:<15} {u.words}"
            for u in self.canonical_units
        ]
        aiding = [
            f"  {u.coordinate:+9.3f}  {u.name:<38} to {u.aided}: {u.words}"
            for u in self.aiding_units
        ]
        measures = [
            f"model: {self.whole}",
            f"circuit alone: {self.alone}",
            f"canonical units alone: {self.canonical}",
        ]
        cost = f"{self.effort.losses} losses and {self.effort.gradients} gradients evaluated"
        parts = [heading, *rows, *(["aiding directions:"] if aiding else []), *aiding]
        return "\n".join([*parts, *measures, cost])


def _plain(unit: Unit) -> dict[str, Any]:
    aided = None if unit.aided is None else unit.aided._asdict()
    return {**asdict(unit), "without": unit.without._asdict(), "aided": aided}


@dataclass(frozen=True)
class Comparison:
    """Two circuits by the names of their units; precision and recall of the first one."""

    both: tuple[str, ...]
    first_only: tuple[str, ...]
    second_only: tuple[str, ...]

    @property
    def precision(self) -> float:
        return len(self.both) / max(1, len(self.both) + len(self.first_only))

    @property
    def recall(self) -> float:
        return len(self.both) / max(1, len(self.both) + len(self.second_only))

    def __str__(self) -> str:
        parts = {"both": self.both, "first only": self.first_only, "second only": self.second_only}
        return "\n".join(f"{title}: {', '.join(names) or 'none'}" for title, names in parts.items())


def compare(first: Circuit, second: Circuit) -> Comparison:
    """What two circuits share."""
    a, b = first.names, second.names
    return Comparison(
        tuple(n for n in a if n in b),
        tuple(n for n in a if n not in b),
        tuple(n for n in b if n not in a),
    )
