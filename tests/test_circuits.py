"""Circuits: planted ones come back, elimination is the plain greedy's, tickets, words."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fullmodel.confinement import weights
from fullmodel.frames import exact_frame
from fullmodel.mapping import mapping_of
from fullmodel.weights import coordinates_of
from imir import (
    Flow,
    Task,
    basis_of,
    exact,
    expectation,
    fixed,
    free,
    gradient_flow,
    sample,
)
from imir.circuits import (
    accuracy,
    compare,
    detect,
    edges,
    eliminate,
    eliminate_plainly,
    losses,
    restricted,
    select,
    subtie,
    ticket,
)
from imir.circuits.words import describe, role
from imir.readout import Logits
from imir.tasks.outcomes import odds

INDUCTION = {"layer1.head1 () M ()": 16, "layer2.head1 () I (1.1)": 32, "output I (2.1)": 16}
# The first place of a prompt can only attend to itself, so that it looks as if its own token stood
# before it: where the query's token may stand there, it must be avoided.
AVOID = {"layer2.head1 () I ()": -16}
# Hand-written circuits that solve each task alone: layers, and coordinates.
PLANTED = {
    "recall": (2, INDUCTION | AVOID),
    "2hop": (
        3,
        {
            "layer1.head1 () M ()": 16,
            "layer2.head1 () I (1.1)": 32,
            "layer3.head1 (2.1) I (1.1)": 32,
            "layer3.head1 (2.1) I ()": -16,
            "output I (3.1)": 16,
            **AVOID,
        },
    ),
    "3gram": (2, INDUCTION),
    "inversion": (
        2,
        {"layer1.head1 () I ()": 16, "layer2.head1 (1.1) M ()": 30, "output I (2.1)": 16},
    ),
    "retrieval": (
        2,
        {
            "layer1.head1 () M ()": 14,
            "layer1.head1 () M^2 ()": 14,
            "layer2.head1 () I (1.1)": 60,
            "layer2.head1 (1.1) I (1.1)": 40,
            "output I (2.1)": 16,
        },
    ),
    "ioi": (
        2,
        {
            "layer1.head1 () I ()": 16,
            "layer2.head1 (1.1) M ()": 30,
            "layer2.head1 (1.1) M^-1 ()": 30,
            "output I (2.1)": 16,
        },
    ),
}  # fmt: skip


@cache
def planted(name: str):
    """Population, and the coordinates of the circuit."""
    layers, circuit = PLANTED[name]
    task = Task(name, blocks=4, rare_fraction=1.0, rare_vocabulary=32)
    tie = free(basis_of(task, layers, 1))
    population = expectation("auto", tie, task, 64, jax.random.key(0))
    values = np.array([circuit.get(n, 0.0) for n in tie.names])
    return population, values


def with_noise(name: str, seed: int) -> np.ndarray:
    """The circuit and up to a tenth of its norm in random other directions."""
    population, values = planted(name)
    G, rng = population.tie.metric, np.random.default_rng(seed)
    noise = rng.normal(size=len(values)) / np.sqrt(np.diag(G))
    noise[values != 0] = 0.0
    return values + rng.uniform(0, 0.1) * noise * np.sqrt(
        (values @ G @ values) / (noise @ G @ noise)
    )


def found_again(name: str, coordinates: np.ndarray) -> bool:
    """Does a budget next to the model's loss leave what was planted, all of which it needs?"""
    population, values = planted(name)
    point, both = jnp.asarray(coordinates), np.arange(2)[:, None] * np.ones(len(values)) > 0
    nothing, whole = losses(population, point, both)
    found = eliminate(population, point, whole + 0.002 * (nothing - whole))
    return bool(np.array_equal(found.kept, values != 0))


@pytest.mark.parametrize("name", ["recall"])
def test_planted_directions_come_back(float64, name):
    assert all(found_again(name, with_noise(name, seed)) for seed in range(5))


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_planted_directions_come_back_from_a_hundred_seeds(float64, name):
    assert all(found_again(name, with_noise(name, seed)) for seed in range(100))


def full_model(name: str, seed: int, task: Task) -> tuple:
    """Arrays of a full model with the noisy circuit, in a randomly rotated residual space, and a
    tenth of its norm in directions off the manifold."""
    layers, _ = PLANTED[name]
    basis, rng = basis_of(task, layers, 1), np.random.default_rng(seed)
    W, frame = weights(basis, jnp.asarray(with_noise(name, seed))), exact_frame(basis)
    d = W.readout.shape[0]
    Q = np.linalg.qr(rng.normal(size=(d, d)))[0]

    def rotated(x):
        off = rng.normal(size=x.shape)
        return Q @ (x + 0.1 * off * np.linalg.norm(x) / np.linalg.norm(off)) @ Q.T

    arrays = {
        "tokens": np.asarray(frame.tokens) @ Q.T,
        "positions": np.asarray(frame.positions) @ Q.T,
        "output_value": Q @ np.asarray(frame.output_value) @ Q.T,
        "key_query": rotated(np.asarray(W.key_query)),
        "readout": rotated(np.asarray(W.readout)),
    }
    return arrays, basis


OWN_NAMES = {name: name for name in ("tokens", "positions", "output_value", "key_query", "readout")}


def rotated_is_found(name: str, seed: int) -> bool:
    population, _ = planted(name)
    assert population.task is not None
    arrays, basis = full_model(name, seed, population.task)
    read = coordinates_of(arrays, basis, mapping_of({**OWN_NAMES, "places": "ring"}))
    assert read.share > 0.9
    return found_again(name, read.coefficients)


def test_a_rotated_full_model_shows_its_circuit(float64):
    assert rotated_is_found("recall", 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_rotated_full_models_show_their_circuits(float64, name):
    assert all(rotated_is_found(name, seed) for seed in range(100))


def test_elimination_agrees_with_plain_greedy_and_asks_less(float64):
    population, _ = planted("recall")
    point = jnp.asarray(with_noise("recall", 7))
    fast, plain = (f(population, point, 0.01) for f in (eliminate, eliminate_plainly))
    assert np.array_equal(fast.kept, plain.kept)
    assert plain.effort.losses > 3 * fast.effort.losses
    forward = select(population, point, 0.01)
    assert set(np.flatnonzero(plain.kept)) <= set(forward.order)


def test_a_circuit_says_what_it_does(float64):
    population, _ = planted("recall")
    circuit = detect(population, jnp.asarray(with_noise("recall", 7)), 1.0)
    assert circuit.minimal
    assert circuit.whole.loss <= circuit.budget
    assert circuit.alone.loss <= circuit.budget
    assert [u.role for u in circuit.units] == ["previous-token", "matching", "copying"]
    words = [u.words for u in circuit.units]
    assert words[0] == "layer 1: attend to the place just before mine, in the same block"
    assert words[1] == (
        "layer 2: find the place whose token just before, written by layer 1, is mine"
    )
    assert words[2] == "output: predict what layer 2 read"
    assert len(circuit.removals) == len(population.tie.names)
    assert np.isclose(circuit.removals[circuit.removed - 1].left.loss, circuit.alone.loss)
    assert np.isclose(circuit.removals[-1].left.loss, np.log(32))
    assert circuit.removals[-1].left.accuracy == pytest.approx(1 / 32)
    assert compare(circuit, circuit).recall == 1
    sides = [(e.source, e.target, e.side) for e in edges(circuit)]
    assert ((1, 1), (2, 1), "key") in sides
    assert ((2, 1), (3, 0), "output") in sides
    assert circuit.as_dict()["canonical_units"] == list(circuit.names)


def test_budgets_and_points_that_cannot_be_are_refused(float64):
    population, values = planted("recall")
    with pytest.raises(ValueError, match="`budget` must be at least the whole model's loss"):
        eliminate(population, jnp.asarray(values), 1e-9)
    with pytest.raises(ValueError, match="`coordinates` must be finite"):
        eliminate(population, jnp.asarray(values * np.nan), 1.0)


def test_accuracy_shares_ties():
    values = jnp.array([[1.0, 1.0, 0.0], [0.0, 2.0, 3.0], [0.0, 0.0, 5.0]])
    counts = jnp.array([[1.0, 1.0, 6.0], [1.0, 1.0, 6.0], [1.0, 1.0, 0.0]])
    out = Logits(values, counts, jnp.array([0, 1, 1]))
    assert np.allclose(accuracy(out), [0.5, 0.0, 0.5])


@pytest.mark.parametrize(
    ("name", "coordinate", "words", "kind"),
    [
        (
            "layer2.head1 (1.1) M^-1 ()",
            1.0,
            "layer 2: attend to the place just after the one that layer 1 found, in the same block",
            "shifting",
        ),
        ("layer1.head1 () I ()", -1.0, "layer 1: avoid the place whose token is mine", "matching"),
        ("output C ()", 1.0, "output: predict the associate of the query's own token",
         "memorising"),
        ("output I (1.1)", -1.0, "output: do not predict what layer 1 read", "copying"),
        ("layer1.head1 () M^0 ()", 1.0, "layer 1: attend to my own place, in the same block",
         "shifting"),
    ],
)  # fmt: skip
def test_words_and_roles(name, coordinate, words, kind):
    basis = basis_of(Task("recall"), 2, 1)
    element = basis.elements[basis.names.index(name)]
    assert describe(basis, element, coordinate) == words
    assert role(basis, element) == kind


def test_words_know_where_heads_look():
    basis = basis_of(Task("2hop"), 2, 1)
    element = basis.elements[basis.names.index("output C (2.1)")]
    for shift, place in ((0, "at the same place"), (1, "just before"), (-2, "2 places after")):
        assert describe(basis, element, 1.0, {(2, 1): shift}) == (
            f"output: predict the associate (C^1) of the token {place}, written by layer 2"
        )


def test_given_prompts_have_no_restricted_population(float64):
    population, _ = planted("recall")
    task, tie = population.task, population.tie
    assert task is not None
    prompts = sample(task, jax.random.key(0), 2, odds(task))
    with pytest.raises(ValueError, match="must come from a task"):
        restricted(fixed(tie, prompts), tie)
    with pytest.raises(ValueError, match="must name coordinates among"):
        subtie(tie, ["omega"])
    assert restricted(population, subtie(tie, ["output I (2.1)"])).kind == "exact"


@pytest.mark.slow
def test_a_ticket_wins(float64):
    """The directions that training needs learn as fast alone."""
    task = Task("recall", blocks=6, rare_fraction=1.0)
    tie = free(basis_of(task, 2, 1))
    population, flow = exact(tie, task), Flow(until=1e6, rtol=1e-4, saves=400)
    start = 0.1 * np.random.default_rng(1).normal(size=len(tie.names))
    run = gradient_flow(population, jnp.asarray(start), flow)
    budget = run.loss[-1] + 0.02 * (run.loss[0] - run.loss[-1])
    names = detect(population, jnp.asarray(run.coordinates[-1]), float(budget)).names
    assert len(names) < len(tie.names) / 4
    assert ticket(population, jnp.asarray(start), names, flow, level=float(budget)).ratio < 1.1
