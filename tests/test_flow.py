"""Gradient flow, discrete optimisers and what they return, against closed forms and by hand."""

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import xarray as xr
from conftest import by_parts, close_to, plain_dense, plain_logits

from imir.basis import basis_of
from imir.canonical import canonical
from imir.flow import Flow, Optimizer, descend, gradient_flow, start_of
from imir.population import Population, exact, expected_loss, fixed_sample, fresh_sample
from imir.scores import Probes, probes
from imir.solution import RunFailure, Solution
from imir.tasks.task import Task
from imir.ties import Tie, tie

pytestmark = pytest.mark.usefixtures("float64")

SMALL = Task("recall", blocks=3, rare_fraction=1.0, rare_vocabulary=20)


@cache
def small() -> Population:
    """α, β, γ on three prompts of rare tokens."""
    return exact(canonical(SMALL), SMALL)


def plain_loss(population: Population, coordinates: np.ndarray, squared: bool = False) -> float:
    """The expected loss of an exact population from explicit matrices and the plain prompts."""
    assert population.listed is not None
    assert population.seen is not None
    prompts = jax.tree.map(np.asarray, population.listed.prompts)
    weight = np.asarray(population.seen.weight)
    tied = population.tie
    if not squared:
        return float(weight @ by_parts(tied, coordinates, prompts))
    out = plain_logits(tied.basis, tied.matrix @ coordinates, prompts)
    return float(weight @ ((out - np.eye(out.shape[1])[prompts.target]) ** 2).sum(1) / 2)


def plain_slope(population: Population, coordinates: np.ndarray, **options: Any) -> np.ndarray:
    """Central differences of the plain loss, of fourth order."""
    slopes = []
    for unit in np.eye(len(coordinates)):
        a, b = (
            plain_loss(population, coordinates + h * unit, **options)
            - plain_loss(population, coordinates - h * unit, **options)
            for h in (1e-3, 2e-3)
        )
        slopes.append((8 * a - b) / 12e-3)
    return np.array(slopes)


def plain_sizes(tied: Tie) -> np.ndarray:
    """Number of entries of the full weights that each one-hot coordinate moves."""
    orbitals = plain_dense(tied.basis.configuration)
    sizes = tied.basis.values @ orbitals.sum((1, 2))
    return np.array([sum(sizes[tied.basis.elements[i].selection] for i in m) for m in tied.members])


START = np.array([0.4, 0.3, 0.5])


OUTPUTS = Task("recall", blocks=2, rare_fraction=1.0, rare_vocabulary=20, context_fraction=0.5)


@cache
def outputs() -> Population:
    """One layer without scores: attention is uniform, the logits linear in (x, y, z)."""
    basis = basis_of(OUTPUTS, 1, 1, "onehot")
    names = {"x": "output I (1.1)", "y": "output I ()", "z": "output rest[rare] (1.1)"}
    return exact(tie(basis, {c: [name] for c, name in names.items()}), OUTPUTS)


def quadratic(population: Population) -> tuple[np.ndarray, np.ndarray]:
    """A and b of the squared error ½ zᵀAz − bᵀz + ½ in linear output coordinates."""

    def loss(z: np.ndarray) -> float:
        return plain_loss(population, z, squared=True)

    units = np.eye(len(population.tie.names))
    b = np.array([(loss(-u) - loss(u)) / 2 for u in units])
    A = np.array([[loss(u + v) - loss(u) - loss(v) + 0.5 for v in units] for u in units])
    assert loss(0 * units[0]) == 0.5
    return A, b


# Discrete optimisers


def test_sgd_is_explicit_euler_on_the_natural_gradient():
    """φ ← φ − η (G⁻¹ ∇L + λφ), the gradient by finite differences and G by counting entries."""
    found = descend(small(), jnp.array(START), Optimizer("sgd", 50.0, weight_decay=0.003), 2)
    expected = [START]
    for _ in range(2):
        here = expected[-1]
        velocity = plain_slope(small(), here) / plain_sizes(small().tie) + 0.003 * here
        expected.append(here - 50.0 * velocity)
    assert np.abs(expected[2] - START).min() > 1e-2
    assert np.allclose(found.coordinates, expected, rtol=0, atol=1e-9)
    losses = [plain_loss(small(), c) for c in expected]
    assert np.allclose(found.loss, losses, rtol=0, atol=1e-9)
    assert found.times.tolist() == [0, 1, 2]


def test_momentum_accumulates_past_gradients():
    A, b = quadratic(outputs())
    optimizer = Optimizer("momentum", 3.0, momentum=0.8, weight_decay=0.01)
    found = descend(outputs(), 0.3, optimizer, 4, loss="squared_error")
    here, memory = np.full(3, 0.3), np.zeros(3)
    for expected in found.coordinates[1:]:
        memory = 0.8 * memory + (A @ here - b) / plain_sizes(outputs().tie) + 0.01 * here
        here = here - 3.0 * memory
        assert np.allclose(here, expected, rtol=0, atol=1e-12)
    assert np.abs(here - 0.3).min() > 0.05


def test_adam_is_that_of_the_entries_of_the_weights():
    """In the one-hot frame every entry of an orbital has the same gradient, 1/size of the sum."""
    optimizer = Optimizer("adam", 0.1, weight_decay=0.2, epsilon=1e-3)
    found = descend(small(), jnp.array(START), optimizer, 3)
    sizes = plain_sizes(small().tie).astype(int)
    entries = [np.full(size, value) for size, value in zip(sizes, START, strict=True)]
    transform = optax.adamw(0.1, eps=1e-3, weight_decay=0.2)
    state = transform.init(entries)
    for expected in found.coordinates[1:]:
        slope = plain_slope(small(), np.array([e[0] for e in entries]))
        gradient = [np.full(n, s / n) for n, s in zip(sizes, slope, strict=True)]
        update, state = transform.update(gradient, state, entries)
        moved: Any = optax.apply_updates(entries, update)
        entries = [np.asarray(x) for x in moved]
        assert all(np.ptp(e) == 0 for e in entries)
        assert np.allclose([e[0] for e in entries], expected, rtol=0, atol=1e-8)


def test_small_steps_of_sgd_follow_the_flow_to_first_order():
    """Half the learning rate, half the difference; cross-entropy and weight decay in both."""
    start, decay = jnp.array([0.9, 0.4, 0.1]), 0.01
    flow = Flow(until=128.0, rtol=1e-10, atol=1e-12)
    exact_end = gradient_flow(outputs(), start, flow, weight_decay=decay).coordinates[-1]
    errors = []
    for rate, steps in ((1.0, 128), (0.5, 256)):
        run = descend(outputs(), start, Optimizer("sgd", rate, weight_decay=decay), steps)
        errors.append(run.coordinates[-1] - exact_end)
    assert np.abs(exact_end - start).min() > 0.02
    assert np.abs(errors[0]).max() < 1e-2
    assert np.allclose(errors[0] / errors[1], 2, rtol=0, atol=0.05)


def test_a_fresh_sample_changes_from_step_to_step_and_repeats_with_its_key():
    tied, task = outputs().tie, OUTPUTS
    here = jnp.array([0.9, 0.4, 0.1])
    runs = [
        descend(fresh_sample(tied, task, 2), here, Optimizer("sgd", 0.0), 40, key=jax.random.key(k))
        for k in (0, 0, 1)
    ]
    assert (runs[0].loss == runs[1].loss).all()
    # The loss depends on whether each of the two answers is in the context.
    values, counts = np.unique(np.round(runs[0].loss[:-1], 12), return_counts=True)
    assert len(values) == 3
    assert counts.min() > 1
    assert not (runs[0].loss == runs[2].loss).all()
    assert close_to(runs[0].loss[:-1], plain_loss(outputs(), np.asarray(here)))


def test_diverging_steps_raise_with_the_finite_part():
    with pytest.raises(RunFailure, match=r"^The optimiser failed at step \d+: coord") as error:
        descend(outputs(), 1.0, Optimizer("sgd", 1e100), 12, loss="squared_error")
    solution = error.value.solution
    assert solution.failed
    assert 1 < len(solution.times) < 12
    assert np.isfinite(solution.coordinates).all()
    assert solution.outcome == f"failed at step {len(solution.times)}"


# Gradient flow


def exponential(
    times: np.ndarray, rate: np.ndarray, drift: np.ndarray, start: np.ndarray
) -> np.ndarray:
    """z(t) of ż = drift − rate z, for a rate of the form D⁻¹ × symmetric."""
    values, vectors = np.linalg.eig(rate)
    end, amplitude = np.linalg.solve(rate, drift), np.linalg.inv(vectors)
    moving = np.exp(-np.outer(times, values)) * (amplitude @ (start - end))
    return end + moving @ vectors.T


def test_linear_flow_with_weight_decay_is_an_exponential():
    """G ż = b − (A + λG) z."""
    A, b = quadratic(outputs())
    sizes, start = plain_sizes(outputs().tie), np.array([0.3, -0.2, 0.1])
    assert sizes.tolist() == [20, 20, 20 * 19]
    flow = Flow("squared_error", until=100.0, rtol=1e-9, atol=1e-11, saves=20)
    found = gradient_flow(outputs(), jnp.array(start), flow, weight_decay=0.01)
    rate = A / sizes[:, None] + 0.01 * np.eye(3)
    expected = exponential(found.times, rate, b / sizes, start)
    assert np.abs(expected[-1] - start).min() > 0.05
    assert np.allclose(found.coordinates, expected, rtol=0, atol=1e-8)
    losses = 0.5 - expected @ b + np.einsum("ti,ij,tj->t", expected, A, expected) / 2
    assert np.allclose(found.loss, losses, rtol=0, atol=1e-8)
    assert found.times[0] == 0
    assert found.times[-1] == 100
    assert len(found.times) == 20


def test_clamped_coordinates_are_held_or_driven_and_the_rest_follows():
    """ẋ = −(A₀₀ x + A₀₁ t/100 + A₀₂ 0.7 − b₀)/3 under a metric of 3: a line and an exponential."""
    A, b = quadratic(outputs())
    clamps = (("y", lambda t: t / 100), ("z", 0.7))
    flow = Flow("squared_error", until=50.0, rtol=1e-9, atol=1e-11, saves=20, clamps=clamps)
    found = gradient_flow(outputs(), {"x": 0.5}, flow, metric=jnp.diag(jnp.array([3.0, 5.0, 7.0])))
    t, a, slope = found.times, A[0, 0], -A[0, 1] / 100 / A[0, 0]
    line = (b[0] - A[0, 2] * 0.7 - 3 * slope) / a
    expected = line + slope * t + (0.5 - line) * np.exp(-a * t / 3)
    assert np.abs(A[0]).min() > 1e-2
    assert np.allclose(found.coordinates[:, 1], t / 100, rtol=0, atol=1e-15)
    assert (found.coordinates[:, 2] == 0.7).all()
    assert np.allclose(found.coordinates[:, 0], expected, rtol=0, atol=1e-8)


def rare_recall(blocks: int) -> tuple[Population, Probes]:
    task = Task("recall", blocks=blocks, rare_fraction=1.0, rare_vocabulary=10**6)
    tied = canonical(task)
    return exact(tied, task), probes(tied, task, 100, jax.random.key(0))


@cache
def emergence(blocks: int, until: float) -> Solution:
    """From zero with squared error and the identity as metric (arXiv 2511.01033)."""
    population, asked = rare_recall(blocks)
    flow = Flow("squared_error", until=until, rtol=1e-8, atol=1e-12, saves=300)
    return gradient_flow(population, 0.0, flow, probes=asked, metric=jnp.eye(3))


EMERGENCE = [
    (4, 200.0, 146),
    pytest.param(8, 300.0, 247, marks=pytest.mark.slow),
    pytest.param(16, 700.0, 584, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("blocks", "until", "time"), EMERGENCE)
def test_induction_emerges_when_the_law_says(blocks: int, until: float, time: float):
    """Time to half of the loss, and to half of the best ICL score, within 1 %."""
    found = emergence(blocks, until)
    assert found.loss[0] == 0.5
    half = np.interp(-0.25, -found.loss, found.times)
    assert half == pytest.approx(time, rel=0.01)
    assert found.icl_time == pytest.approx(time, rel=0.01)
    assert found.iwl_time is None


def test_gamma_emerges_first_then_beta_then_alpha():
    """From zero γ ~ t drives β ~ t², and both drive α ~ t⁴: they pass every level in this order."""
    found = emergence(4, 200.0)
    alpha, beta, gamma = found.coordinates.T
    early = (found.times > 1e-3) & (found.times < 2e-2)
    for values, power in ((gamma, 1), (beta, 2), (alpha, 4)):
        slope = np.polyfit(np.log(found.times[early]), np.log(values[early]), 1)[0]
        assert slope == pytest.approx(power, abs=0.05)
    for level in (0.01, 0.1, 0.3, 0.6):
        first = [float(found.times[np.argmax(x > level)]) for x in (gamma, beta, alpha)]
        assert 0 < first[0] < first[1] < first[2]


@cache
def near_zero(blocks: int = 4) -> Solution:
    population, asked = rare_recall(blocks)
    return gradient_flow(population, 1e-3, Flow(until=1e9, stop="icl"), probes=asked)


@pytest.mark.parametrize("blocks", [4, pytest.param(32, marks=pytest.mark.slow)])
def test_emergence_takes_few_solver_steps(blocks: int):
    found = near_zero(blocks)
    assert found.outcome == "emergence of icl"
    assert found.stats["steps"] < 100
    assert found.icl[-1] > 0.5 > found.icl[-2]
    assert found.icl_time is not None
    assert found.times[-2] <= found.icl_time <= found.times[-1] < 1e9


def test_solutions_print_method_outcome_and_scores():
    text = str(near_zero()).splitlines()
    end = f"{near_zero().times[-1]:.6g}"
    assert text[0] == (
        f"gradient flow (Tsit5, rtol 1e-06): emergence of icl at {end} (gradient-flow time)"
    )
    assert {line.split()[0] for line in text[1:4]} == {"alpha", "beta", "gamma"}
    assert text[4] == f"loss {near_zero().loss[-1]:.6g}"
    assert text[5] == f"ICL score {near_zero().icl[-1]:.4f}, emerged at {near_zero().icl_time:.6g}"
    assert text[6] == "IWL has no query in this task"
    assert text[7] == f"steps {near_zero().stats['steps']}"


def test_solutions_survive_a_file_with_names_and_units(tmp_path):
    found = near_zero()
    found.to_xarray().to_netcdf(tmp_path / "run.nc", engine="h5netcdf")
    with xr.open_dataset(tmp_path / "run.nc", engine="h5netcdf", decode_times=False) as read:
        assert read["coordinates"].dims == ("time", "coordinate")
        assert read["coordinate"].values.tolist() == ["alpha", "beta", "gamma"]
        assert np.array_equal(read["coordinates"], found.coordinates)
        assert np.array_equal(read["time"], found.times)
        for name, values in {"loss": found.loss, "icl_score": found.icl}.items():
            assert np.array_equal(read[name], values)
        assert np.isnan(read["iwl_score"]).all()
        units = {name: read[name].attrs["units"] for name in ("time", "icl_score", "coordinates")}
        assert units == {"time": "gradient-flow time", "icl_score": "probability",
                         "coordinates": "1"}  # fmt: skip
        assert read.attrs["icl_time"] == found.icl_time
        assert np.isnan(read.attrs["iwl_time"])
        assert read.attrs["outcome"] == "emergence of icl"
        assert read.attrs["steps"] == found.stats["steps"]


def test_a_solver_without_steps_left_raises_with_the_finite_part():
    with pytest.raises(
        RunFailure,
        match=r"^The solver failed at time \S+ after 5 steps: its step limit was reached\.$",
    ) as e:
        gradient_flow(outputs(), 0.3, Flow(until=1e6, max_steps=5))
    solution = e.value.solution
    assert solution.failed
    assert 0 < solution.times[-1] < 1e6
    assert f"{solution.times[-1]:.6g}" in str(e.value)
    assert (np.diff(solution.times) >= 0).all()
    assert np.isfinite(solution.coordinates).all()
    for at in (0, -1):
        expected = plain_loss(outputs(), solution.coordinates[at])
        assert solution.loss[at] == pytest.approx(expected, abs=1e-12)
    assert solution.coordinates[0].tolist() == [0.3] * 3
    assert (solution.coordinates[-1] != 0.3).all()


def test_single_precision_reaches_the_same_end():
    """Prompts, population and flow in the precision that is switched on."""
    A, b = quadratic(outputs())
    sizes, start = plain_sizes(outputs().tie), np.array([0.3, -0.2, 0.1])
    with jax.enable_x64(False):
        task = replace(OUTPUTS, rare_vocabulary=20)
        population = exact(outputs().tie, task)
        flow = Flow("squared_error", until=100.0, rtol=1e-4, atol=1e-6, saves=20)
        found = gradient_flow(population, jnp.array(start, float), flow)
    assert found.coordinates.dtype == np.float32
    expected = exponential(found.times, A / sizes[:, None], b / sizes, start)
    assert np.allclose(found.coordinates, expected, rtol=0, atol=1e-3)


def test_both_precisions_draw_the_same_prompts_in_one_process():
    losses = []
    for double in (False, True):
        with jax.enable_x64(double):
            drawn = fixed_sample(outputs().tie, OUTPUTS, 4, jax.random.key(0))
            assert drawn.seen is not None
            losses.append(expected_loss(drawn, jnp.array([0.9, 0.4, 0.1])))
    assert [x.dtype.itemsize for x in losses] == [4, 8]
    assert float(losses[0]) == pytest.approx(float(losses[1]), abs=1e-6)


# What is refused


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ({"delta": 1.0}, "must name coordinates among alpha, beta, gamma, but has 'delta'."),
        (float("nan"), "must be finite, but is [nan nan nan]."),
        (np.array([0.0, np.inf, 0.0]), "must be finite, but is [ 0. inf  0.]."),
    ],
)
def test_impossible_starts_are_refused(start: Any, message: str):
    for run in (
        lambda: gradient_flow(small(), start),
        lambda: descend(small(), start, Optimizer(), 1),
    ):
        with pytest.raises(ValueError, match=r"^Argument `start` ") as error:
            run()
        assert str(error.value) == f"Argument `start` {message}"


def test_starts_are_numbers_names_or_arrays():
    tied = small().tie
    assert start_of(tied, 0.5).tolist() == [0.5, 0.5, 0.5]
    assert start_of(tied, {"gamma": 2.0}).tolist() == [0, 0, 2]
    assert start_of(tied, jnp.array([1.0, 2.0, 3.0])).tolist() == [1, 2, 3]


@pytest.mark.parametrize("until", [0.0, -1.0, float("inf"), float("nan")])
def test_an_end_must_lie_ahead(until: float):
    with pytest.raises(ValueError, match=r"^Argument `until` must be positive and finite, but is"):
        Flow(until=until)


def test_adam_is_refused_in_the_centred_frame():
    centred = tie(basis_of(SMALL, 1, 1), {"x": ["output I ()"]})
    message = r"^Argument `optimizer` must be sgd or momentum in the centered frame, but is adam\.$"
    with pytest.raises(ValueError, match=message):
        descend(fresh_sample(centred, SMALL, 2), 0.0, Optimizer("adam"), 1, key=jax.random.key(0))


def test_a_fresh_population_has_no_flow_and_needs_a_key():
    population = fresh_sample(canonical(SMALL), SMALL, 2)
    message = r"^Argument `population` must be exact or fixed for a flow, but is fresh\.$"
    with pytest.raises(ValueError, match=message):
        gradient_flow(population, 0.0)
    message = r"^Argument `key` must be given for a fresh population, but is None\.$"
    with pytest.raises(ValueError, match=message):
        descend(population, 0.0, Optimizer(), 1)


def test_a_flow_stops_only_at_a_score_that_is_measured():
    message = r"^Argument `probes` must be given to stop at icl, but is None\.$"
    with pytest.raises(ValueError, match=message):
        gradient_flow(small(), 0.0, Flow(stop="icl"))


@pytest.mark.parametrize(
    ("double", "rtol", "least"),
    [(False, 1e-6, "1.2e-05 in float32"), (True, 1e-15, "2.2e-14 in float64")],
)
def test_tolerances_beyond_the_precision_are_refused(double: bool, rtol: float, least: str):
    population = small()
    with jax.enable_x64(double), pytest.raises(ValueError, match=r"^Argument `rtol`") as error:
        gradient_flow(population, 0.0, Flow(rtol=rtol))
    assert str(error.value) == f"Argument `rtol` must be at least {least}, but is {rtol}."


def test_an_exact_population_is_the_plain_expectation():
    found = float(expected_loss(small(), jnp.array(START)))
    assert found == pytest.approx(plain_loss(small(), START), abs=1e-13)
