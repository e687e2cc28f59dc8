"""The lottery: winners, boundaries, predictors, and who chooses the winner from outside."""

import jax
import numpy as np
import pytest

from imir import Flow, Task, exact
from imir.lottery import (
    NOBODY,
    boundary,
    ends,
    influence,
    lottery_map,
    moved,
    neighbours,
    predict,
    rival_circuits,
    rivals,
    starts_of,
    winners,
)
from imir.phases import Axis

TASK = Task("recall", blocks=4, rare_fraction=1.0)
CIRCUITS = rival_circuits(3)
FLOW = Flow(until=1e5, rtol=1e-4, saves=8)


@pytest.fixture(scope="module")
def race():
    """Population, and random initial values of every coordinate."""
    with jax.enable_x64(True):
        tie = rivals(TASK, 3)
        start = 0.3 * np.random.default_rng(1).normal(size=len(tie.names))
        yield exact(tie, TASK), start


def at(race, **values: float) -> np.ndarray:
    population, start = race
    point = start.copy()
    for name, value in values.items():
        point[population.tie.names.index(name)] = value
    return point


def test_a_coordinate_outside_both_circuits_chooses_the_winner(race):
    population, _ = race
    start = at(race, beta12=0.2667, beta13=-0.8)
    won = moved(population, CIRCUITS, start, "beta13", np.array([-2.0, -0.2667]), FLOW)
    first, second = (list(CIRCUITS)[i] for i in won)
    assert (first, second) == ("2>3", "1>2")
    assert "beta13" not in (*CIRCUITS[first], *CIRCUITS[second])


def test_names_of_circuits_and_coordinates():
    tie = rivals(TASK, 3)
    assert list(CIRCUITS) == ["1>2", "1>3", "2>3"]
    assert CIRCUITS["1>3"] == ("alpha1", "beta13", "gamma3")
    assert {name for names in CIRCUITS.values() for name in names} <= set(tie.names)
    with pytest.raises(ValueError, match="`layers` must be at least 2"):
        rivals(TASK, 1)


def test_nobody_wins_where_nothing_was_learned(race):
    population, start = race
    assert winners(population, CIRCUITS, np.zeros((1, len(start)))).tolist() == [NOBODY]
    with pytest.raises(ValueError, match="`circuits` must name coordinates"):
        winners(population, {"x": ("omega",)}, np.zeros((1, len(start))))
    with pytest.raises(ValueError, match="must have winners"):
        predict(population, CIRCUITS, start[None], np.array([NOBODY]))


@pytest.mark.slow
def test_a_boundary_is_sharp(race):
    population, _ = race
    low, high = (at(race, beta12=1.3333, beta13=x) for x in (-2.4, -1.8667))
    found = boundary(population, CIRCUITS, low, high, FLOW)
    assert (found.first, found.second) == ("2>3", "1>2")
    # Half a unit on an axis of eight.
    assert found.width * 0.5333 / 8 < 0.01
    with pytest.raises(ValueError, match="must be won by different circuits"):
        boundary(population, CIRCUITS, low, low, FLOW)


@pytest.mark.slow
def test_a_map_is_its_runs_and_predictors_are_scored(race):
    population, _ = race
    axes = [Axis("start.beta13", (-3.0, 0.5, 3.0)), Axis("start.beta12", (-3.0, 3.0))]
    diagram = lottery_map(TASK, [*axes, Axis("seed", (1.0,))], FLOW, start=0.3)
    assert diagram["winner"].dims == ("seed", "start.beta12", "start.beta13")
    starts = starts_of(diagram, 0.3)
    alone = ends(population, starts, FLOW)
    assert np.allclose(alone, diagram["coordinates"].values.reshape(alone.shape), atol=1e-4)
    won = diagram["winner"].values.ravel()
    assert len(set(won.tolist())) > 1
    assert all(won[a] != won[b] for a, b in neighbours(diagram))
    scored = predict(population, CIRCUITS, starts, won)
    assert set(scored.accuracy) == {"size", "gradient", "linearised flow"}
    assert all(0 <= share <= 1 for share in scored.accuracy.values())


@pytest.mark.slow
def test_partners_stimulate_each_other(race):
    """Within a circuit the gradient of each coordinate grows with the others."""
    population, start = race
    found = influence(population, np.full(len(start), 0.3), Flow(until=3e3, rtol=1e-4, saves=12))
    names = list(found.names)
    assert found.mean[names.index("beta12"), names.index("alpha1")] > 0
    assert found.strength.shape == (len(found.times), len(start), len(start))
