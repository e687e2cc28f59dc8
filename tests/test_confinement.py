"""Weights against dense basis matrices; Theorem 1 for the named tasks; training on the manifold."""

import json
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import plain_dense, small_basis

from fullmodel import confinement
from fullmodel.confinement import (
    MonteCarlo,
    Verification,
    monte_carlo,
    orbit_of,
    orbit_residual,
    residual,
    smallest,
    trajectories,
    verify,
)
from fullmodel.confinement.measures import _fit, gradient
from fullmodel.confinement.orbits import _canonical
from fullmodel.confinement.verification import SAMPLES, _sample
from fullmodel.model import Weights
from imir.basis import Basis, Frame, basis_of
from imir.flow import Optimizer
from imir.population import Loss
from imir.prompts import Prompts, orbit
from imir.relations import Motif, Relation, cycle, single
from imir.tasks.task import Task

pytestmark = pytest.mark.usefixtures("float64")

NAMED = ["recall", "inversion", "ioi", "2hop", "3gram", "retrieval"]
MIXED = (Relation("rare", single(), 3), Relation("names", Motif(2, frozenset({(0, 1)})), 2))


@cache
def orbit_for(name: str) -> tuple[Task, Prompts, bool]:
    """The smallest task, and an orbit of it in NumPy arrays that no precision has seen."""
    task = smallest(Task(name))
    prompts, whole = orbit_of(task, jax.random.key(4))
    return task, jax.tree.map(np.asarray, prompts), whole


def random(basis: Basis, seed: int = 0):
    return 0.5 * jax.random.normal(jax.random.key(seed), (len(basis.elements),))


# Weights and coordinates


@cache
def matrices(basis: Basis) -> list[np.ndarray]:
    """B_e = V_u S V_vᵀ as explicit d × d matrices."""
    paths, orbitals = basis.paths(basis.layers + 1), plain_dense(basis.configuration)
    selections = np.tensordot(basis.values, orbitals, 1)
    unit = np.eye(len(paths))
    places = [(paths.index(e.query_path), paths.index(e.key_path)) for e in basis.elements]
    return [
        np.kron(np.outer(unit[u], unit[v]), selections[e.selection])
        for e, (u, v) in zip(basis.elements, places, strict=True)
    ]


def dense(basis: Basis, coefficients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Σ θ_e B_e with explicit d × d matrices."""
    d = basis.configuration.size * len(basis.paths(basis.layers + 1))
    key_query, readout = np.zeros((basis.layers, basis.heads, d, d)), np.zeros((d, d))
    for e, B, theta in zip(basis.elements, matrices(basis), coefficients, strict=True):
        part = readout if e.head is None else key_query[e.layer - 1, e.head - 1]
        part += theta * B
    return key_query, readout


CASES = [
    small_basis(2, 1),
    small_basis(1, 2, frame="onehot", classes=MIXED),
    small_basis(2, 1, classes=MIXED, shifts="literal"),
    small_basis(1, 1, frame="onehot", classes=(Relation("triples", cycle(3), 2),), shifts="all"),
]


@pytest.mark.parametrize("basis", CASES)
def test_weights_are_sums_of_the_dense_basis(basis: Basis):
    theta = random(basis)
    found = confinement.weights(basis, theta)
    key_query, readout = dense(basis, np.asarray(theta))
    np.testing.assert_allclose(found.key_query, key_query, atol=1e-14)
    np.testing.assert_allclose(found.readout, readout, atol=1e-14)
    np.testing.assert_allclose(confinement.project(basis, found), theta, atol=1e-13)
    assert confinement.off_manifold(basis, found) < 1e-13


@pytest.mark.parametrize("basis", CASES)
def test_projection_is_orthogonal(basis: Basis):
    d = basis.configuration.size * len(basis.paths(basis.layers + 1))
    rng = np.random.default_rng(0)
    shapes = (basis.layers, basis.heads, d, d), (d, d)
    given = Weights(*(jnp.asarray(rng.normal(size=shape)) for shape in shapes))
    rest = confinement.off_span(basis, given)
    assert np.max(np.abs(confinement.inner_products(basis, rest))) < 1e-11
    nearest = confinement.weights(basis, confinement.project(basis, given))
    squares = [
        sum(np.sum(np.square(x)) for x in jax.tree.leaves(w)) for w in (nearest, rest, given)
    ]
    assert squares[0] + squares[1] == pytest.approx(squares[2], rel=1e-12)
    assert confinement.off_manifold(basis, given) == pytest.approx(squares[1] ** 0.5, rel=1e-12)


@pytest.mark.parametrize("basis", CASES)
def test_inner_products_are_those_of_the_dense_basis(basis: Basis):
    d = basis.configuration.size * len(basis.paths(basis.layers + 1))
    rng = np.random.default_rng(0)
    key_query, readout = rng.normal(size=(basis.layers, basis.heads, d, d)), rng.normal(size=(d, d))
    expected = [
        np.sum(B * (readout if e.head is None else key_query[e.layer - 1, e.head - 1]))
        for e, B in zip(basis.elements, matrices(basis), strict=True)
    ]
    found = confinement.inner_products(basis, Weights(jnp.asarray(key_query), jnp.asarray(readout)))
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_residual_is_the_largest_share_of_a_layer():
    basis = small_basis(2, 1)
    on = confinement.weights(basis, random(basis))
    off = np.zeros_like(on.key_query)
    off[1, 0, :21, 63:] = np.diag(np.arange(21.0))  # no selection tells single elements apart
    off = confinement.off_span(basis, Weights(jnp.asarray(off), jnp.zeros_like(on.readout)))
    part = np.linalg.norm(off.key_query[1])
    whole = np.linalg.norm(on.key_query[1] + off.key_query[1])
    found = residual(basis, jax.tree.map(jnp.add, on, off))
    assert found == pytest.approx(part / whole, rel=1e-12)


# Orbits


@pytest.mark.parametrize(
    ("name", "classes", "prompts", "whole"),
    [
        ("recall", [("common", 4)], 200, True),
        ("inversion", [("common", 4)], 200, True),
        ("ioi", [("common", 4)], 200, True),
        ("2hop", [("common", 6)], 900, False),
        ("3gram", [("common", 6)], 588, True),
        ("retrieval", [("rare", 7)], 8232, False),
    ],
)
def test_smallest_tasks_and_their_orbits(name: str, classes: list, prompts: int, whole: bool):
    task, images, all_of_it = orbit_for(name)
    assert [(r.name, r.size) for r in task.classes] == classes
    assert task.distractors == 0
    assert (len(images), all_of_it) == (prompts, whole)
    assert np.sum(images.weight) == pytest.approx(1)


def test_smallest_keeps_the_classes():
    task = Task("recall", rare_fraction=0.2, variability=0.9, burstiness=3, context_fraction=0.5)
    small = smallest(task)
    assert (small.blocks, small.burstiness, small.context_fraction) == (1, 1, 1.0)
    assert [(r.name, r.size) for r in small.classes] == [("rare", 2), ("common", 4)]
    binned = smallest(Task("3gram", frequency_bins=((0.5, 30), (0.5, 60))))
    assert [(r.name, r.size) for r in binned.classes] == [("common1", 6), ("common2", 6)]


def same_gradient(task: Task, *prompts: Prompts) -> bool:
    basis = basis_of(task, layers=2, heads=1)
    first, second = (gradient(basis, random(basis), p) for p in prompts)
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(np.max(np.abs(x - y)) < 1e-14 for x, y in pairs)


def test_a_part_of_an_orbit_has_the_gradient_of_the_whole():
    task, part, _ = orbit_for("2hop")
    whole, all_of_it = orbit_of(task, jax.random.key(4), most=10_000)
    assert all_of_it
    assert (len(whole), len(part)) == (4500, 900)
    assert same_gradient(task, whole, part)


@pytest.mark.slow
def test_one_slope_for_each_symmetry_of_places_has_the_gradient_of_all():
    task, part, _ = orbit_for("retrieval")
    canonical = _canonical(task, jax.random.key(4))
    every = orbit(canonical, task.classes, task.positions, whole=False)
    assert len(every) == 6 * len(part)
    assert same_gradient(task, every, part)


@pytest.mark.parametrize("name", NAMED)
def test_the_expected_gradient_stays_in_the_reachable_span_only(name: str):
    task, prompts, _ = orbit_for(name)
    basis = basis_of(task, layers=2, heads=1)
    literal = replace(basis, shifts="literal")
    expected = gradient(literal, random(literal), prompts)
    assert residual(basis, expected) < 1e-12
    assert 0.01 < residual(literal, expected) < 0.5


def test_reachable_shifts_suffice_at_every_point_of_the_manifold():
    task, prompts, _ = orbit_for("recall")
    basis = basis_of(task, layers=2, heads=1)
    assert orbit_residual(basis, random(basis), prompts) < 1e-12
    onehot = replace(basis, frame="onehot")
    assert orbit_residual(onehot, random(onehot), prompts) < 1e-12


# Training


SGD, ADAM = Optimizer("sgd", 0.1, weight_decay=1e-3), Optimizer("adam", 0.01, epsilon=1e-3)


# Momentum with weight decay is what `verify` takes.
@pytest.mark.parametrize(
    ("frame", "optimizer", "loss"),
    [("centered", SGD, "squared_error"), ("onehot", ADAM, "cross_entropy")],
)
def test_full_training_is_training_in_coordinates(frame: Frame, optimizer: Optimizer, loss: Loss):
    task, prompts, _ = orbit_for("recall")
    basis = basis_of(task, layers=2, heads=1, frame=frame)
    found = trajectories(basis, random(basis), prompts, optimizer, 500, every=50, loss=loss)
    assert found.error < 1e-8
    assert found.drift < 1e-9


def test_training_on_less_than_an_orbit_leaves_the_manifold():
    task, prompts, _ = orbit_for("recall")
    few = replace(prompts, weight=np.eye(200)[0])
    basis = basis_of(task, layers=2, heads=1)
    found = trajectories(basis, random(basis), few, SGD, 500, every=50, loss="squared_error")
    assert found.drift > 0.1


# Random prompts


def test_fit_finds_the_floor_and_the_slope():
    rng = np.random.default_rng(0)
    samples = 64 * 2 ** np.arange(7)
    noise = 1 + 0.1 * rng.normal(size=(7, 8))
    falling = _fit(samples, 3 / np.sqrt(samples)[:, None] * np.sqrt(noise))
    assert falling.slope == pytest.approx(-0.5, abs=3 * falling.slope_error)
    assert falling.floor < np.sqrt(3) * falling.floor_error
    floored = _fit(samples, np.sqrt(0.2**2 + 9 / samples[:, None] * noise))
    assert floored.floor == pytest.approx(0.2, rel=0.01)
    assert floored.floor > 5 * floored.floor_error
    assert floored.slope > -0.3
    assert (falling.samples, falling.repeats) == ((64, 128, 256, 512, 1024, 2048, 4096), 8)


def test_sampled_gradients_level_off_outside_the_literal_span():
    task, prompts, _ = orbit_for("recall")
    literal = basis_of(task, layers=2, heads=1, shifts="literal")
    theta = 2 * random(literal, 7)
    expected = gradient(literal, theta, prompts)
    off, whole = (
        np.sqrt(sum(np.sum(np.square(x)) for x in jax.tree.leaves(w)))
        for w in (confinement.off_span(literal, expected), expected)
    )
    found = monte_carlo(literal, theta, _sample(task, jax.random.key(0), SAMPLES[0]))
    assert found.floor > 3 * found.floor_error
    assert found.floor**2 == pytest.approx((off / whole) ** 2, abs=3 * found.floor_error**2)


def test_too_few_random_prompts_are_refused():
    task, prompts, _ = orbit_for("recall")
    basis = basis_of(task, layers=2, heads=1)
    with pytest.raises(ValueError, match="`prompts` must be at least 3584, but are 200"):
        monte_carlo(basis, random(basis), prompts)


# Verification


SAMPLED = MonteCarlo((64, 128, 256), (0.4, 0.28, 0.2), 8, -0.5, 0.01, 0.0, 0.02)
GOOD = Verification("recall", 1e-16, 1e-16, 1e-15, 0.1, 1e-15, 1e-15, SAMPLED, 500, 200, True)


def test_recall_passes_every_check():
    found = verify("recall")
    assert found.passed
    assert max(found.logit_error, found.gradient_error, found.orbit_residual) < 1e-12
    assert found.orbit_residual_literal > 0.01
    assert found.trajectory_error < 1e-8
    assert found.drift < 1e-9
    assert found.monte_carlo.samples == (64, 128, 256, 512, 1024, 2048)
    first = "a b | a -> b (N = 1, n = 3): 500 steps over 200 prompts (whole orbit)"
    assert str(found).splitlines()[0] == first


def test_verification_is_ready_for_json_and_for_reading():
    data = json.loads(json.dumps(GOOD.as_dict()))
    wanted = (
        "logit_error gradient_error orbit_residual orbit_residual_literal trajectory_error drift"
    )
    assert {*wanted.split(), "monte_carlo", "passed"} <= set(data)
    assert data["passed"] is True
    assert set(data["monte_carlo"]) >= {"samples", "residuals", "slope", "floor"}
    lines = str(GOOD).splitlines()
    assert sum(line.startswith("ok ") for line in lines) == len(GOOD.checks) == 7
    assert "with the literal shifts" in lines[4]


@pytest.mark.parametrize(
    "change",
    [
        {"logit_error": 1e-11},
        {"gradient_error": float("nan")},
        {"orbit_residual": 1e-10},
        {"trajectory_error": 1e-7},
        {"drift": 1e-8},
        {"monte_carlo": replace(SAMPLED, slope=-0.3)},
        {"monte_carlo": replace(SAMPLED, floor=0.04)},
    ],
)
def test_one_number_too_large_fails(change: dict):
    failed = replace(GOOD, **change)
    assert GOOD.passed
    assert not failed.passed
    changed = [a.measured != b.measured for a, b in zip(GOOD.checks, failed.checks, strict=True)]
    assert [not check.ok for check in failed.checks] == changed
    assert str(failed).count("FAILED") == 1


@pytest.mark.slow
@pytest.mark.parametrize("frame", ["centered", "onehot"])
@pytest.mark.parametrize("name", NAMED)
def test_every_named_task_passes_every_check(name: str, frame: Frame):
    found = verify(name, frame=frame)
    assert found.passed, str(found)
    assert found.steps == (500 if name != "retrieval" else 9)


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (1, 2), (3, 1), (2, 2)])
def test_other_depths_and_widths_pass_every_check(layers: int, heads: int):
    found = verify("recall", layers=layers, heads=heads)
    assert found.passed, str(found)
    assert (found.orbit_residual_literal < 1e-12) == (layers == 1)
