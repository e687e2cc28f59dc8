"""How sharp the boundary between two winners is."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from imir.flow import Flow
from imir.lottery.ends import ends
from imir.lottery.race import NOBODY, Circuits, leads, winners
from imir.population import Population

# Points side by side in each round of the search, and rounds: the interval shrinks by 15 each time.
POINTS, ROUNDS = 16, 4
# The boundary is where the lead goes through the middle of this share of its change.
MIDDLE = 0.8


@dataclass(frozen=True)
class Boundary:
    """Between two initial points on a line, at `place` (0 the first point, 1 the second).

    `width`, also as a share of the line: over it the lead of the first winner over the second falls
    from 90 % to 10 % of the way between its values at the two points.
    """

    first: str
    second: str
    place: float
    width: float

    def __str__(self) -> str:
        return f"{self.first} | {self.second} at {self.place:.6f}, width {self.width:.2g}"


def boundary(
    population: Population,
    circuits: Circuits,
    start: Float[np.ndarray, " C"],
    end: Float[np.ndarray, " C"],
    flow: Flow,
) -> Boundary:
    """Find where the lead changes on the line from one initial point to another, by bisection.

    Raises `ValueError` where the two points have the same winner, or none.
    """
    line = np.stack([np.asarray(start, float), np.asarray(end, float)])
    first, second = winners(population, circuits, ends(population, line, flow), flow.loss).tolist()
    if first == second or NOBODY in (first, second):
        raise ValueError(
            "Arguments `start` and `end` must be won by different circuits, but are won by "
            f"{_name(circuits, first)} and {_name(circuits, second)}."
        )

    def lead(shares: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
        points = line[0] + shares[:, None] * (line[1] - line[0])
        found = leads(population, circuits, ends(population, points, flow), flow.loss)
        return found[:, first] - found[:, second]

    high, low = lead(np.array([0.0, 1.0]))
    middle, half = (high + low) / 2, MIDDLE * (high - low) / 2
    upper, lower = (_crossing(lead, level) for level in (middle + half, middle - half))
    return Boundary(
        _name(circuits, first), _name(circuits, second), _crossing(lead, middle), lower - upper
    )


def _crossing(lead, level: float) -> float:
    """First share of the line at which the lead falls below a level."""
    low, high = 0.0, 1.0
    for _ in range(ROUNDS):
        shares = np.linspace(low, high, POINTS)
        below = np.flatnonzero(lead(shares) < level)
        k = max(1, int(below[0]) if below.size else POINTS - 1)
        low, high = float(shares[k - 1]), float(shares[k])
    return (low + high) / 2


def _name(circuits: Circuits, number: int) -> str:
    return "nobody" if number == NOBODY else list(circuits)[number]
