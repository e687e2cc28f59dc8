"""Volumes against known probabilities, and what is said where the budget does not suffice."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import once
from scipy import stats

from fullmodel.boolean.functions import function
from fullmodel.boolean.recognizer import (
    Architecture,
    Initialization,
    every_string,
    initial,
    margins,
    placed,
    spread,
)
from fullmodel.boolean.volume import (
    Budget,
    Count,
    Record,
    Repeat,
    Space,
    Splitting,
    descend,
    from_count,
    from_repeats,
    gaussian_move,
    hits,
    models,
    pieces,
    uniform_move,
    volume,
    volume_of,
)

DIMENSIONS = 12


def half_space(bound: float) -> Space:
    """z_1 > bound, of probability Φ(−bound)."""
    return Space(_gaussian, gaussian_move, lambda z: z[0] - bound)


def _gaussian(key):
    return jax.random.normal(key, (DIMENSIONS,))


def signs(count: int) -> Space:
    """A linear threshold with `count` given signs on orthogonal strings: 2^−count."""

    def score(z):
        wrong = jnp.sum(z <= 0)
        behind = jnp.sum(jnp.maximum(-z, 0)) / jnp.maximum(wrong, 1)
        return jnp.where(wrong == 0, 1.0, 1 - wrong - behind / (1 + behind))

    return Space(lambda key: jax.random.normal(key, (count,)), gaussian_move, score)


def cube(side: float) -> Space:
    """All of six uniform entries in the top share `side`: side^6."""
    draw = lambda key: jax.random.uniform(key, (6,), minval=-1.0)  # noqa: E731
    return Space(draw, uniform_move, lambda u: jnp.min(u) - (1 - 2 * side))


def repeats(space: Space, effort: Splitting, count: int) -> list[Repeat]:
    keys = jax.random.split(jax.random.key(3), count)
    found = once(lambda k: jax.lax.map(lambda one: descend(space, effort, one), k), keys)
    values = zip(found.log_probability, found.variance, found.arrived, strict=True)
    return [Repeat(float(p), float(v), bool(a)) for p, v, a in values]


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        pytest.param(
            half_space(7.034),
            stats.norm.logsf(7.034) / np.log(10),
            marks=pytest.mark.slow,
            id="half-space",
        ),
        pytest.param(signs(40), -40 * np.log10(2), marks=pytest.mark.slow, id="signs"),
        pytest.param(cube(0.01), -12.0, id="cube"),
    ],
)
def test_splitting_finds_known_probabilities_of_1e_12(space: Space, expected: float) -> None:
    found = from_repeats(repeats(space, Splitting(population=128, batch=128), 24))
    assert found.log10_volume is not None
    assert found.error is not None
    assert found.ideal_error is not None
    assert found.log10_volume == pytest.approx(expected, abs=3 * found.error)
    assert found.error < 0.1
    assert found.error > 0.7 * found.ideal_error


@pytest.mark.slow
def test_error_bars_of_splitting_cover_the_truth_as_often_as_they_say() -> None:
    expected, effort = stats.norm.logsf(3.09) / np.log(10), Splitting(population=64, batch=64)
    found = repeats(half_space(3.09), replace(effort, moves=10), 1000)
    estimates = [from_repeats(found[10 * i : 10 * i + 10]) for i in range(100)]
    covered = [abs(e.log10_volume - expected) < 2 * e.error for e in estimates]  # type: ignore
    assert 0.85 <= np.mean(covered) <= 0.99


def test_uniform_moves_keep_the_uniform_distribution() -> None:
    key = jax.random.key(0)
    points = jax.random.uniform(key, (4000,), minval=-1.0)
    for i in range(5):
        points = uniform_move(jax.random.fold_in(key, i), points, jnp.asarray(0.7))
    assert np.all(np.abs(points) <= 1)
    assert stats.kstest(points, stats.uniform(-1, 2).cdf).pvalue > 0.01


def test_a_population_that_does_not_arrive_gives_an_upper_bound() -> None:
    found = from_repeats(repeats(signs(40), Splitting(population=64, batch=64, stages=10), 4))
    assert found.log10_volume is None
    assert found.error is None
    assert found.upper_bound is not None
    assert -40 * np.log10(2) < found.upper_bound < -2
    assert found.confidence == 0.95
    assert "<" in str(found)


def test_a_population_that_cannot_get_better_ends() -> None:
    never = Space(_gaussian, gaussian_move, lambda z: jnp.where(z[0] > 9, 1.0, -1.0))
    found = descend(never, Splitting(population=8, moves=1, batch=8), jax.random.key(0))
    assert not found.arrived
    assert found.log_probability == 0
    assert from_repeats([Repeat.of(found)] * 2).upper_bound == 0


def test_few_hits_give_an_upper_bound_and_many_an_error() -> None:
    none, some, many = (from_count(Count(h, 1000)) for h in (0, 5, 100))
    assert none.upper_bound == pytest.approx(np.log10(1 - 0.05 ** (1 / 1000)))
    assert some.upper_bound is not None
    assert stats.binom.cdf(5, 1000, 10**some.upper_bound) == pytest.approx(0.05)
    assert many.log10_volume == pytest.approx(-1)
    assert many.error == pytest.approx(np.sqrt(0.9 / 100) / np.log(10))
    assert from_count(Count(7, 7)).upper_bound == 0


def test_pieces_go_on_where_they_stopped() -> None:
    space = half_space(2.0)
    budget = Budget("splitting", repeats=3, splitting=Splitting(32, 2, batch=32))
    whole = list(pieces(space, budget, jax.random.key(1)))
    rest = list(pieces(space, budget, jax.random.key(1), whole[0]))
    assert [len(r.repeats) for r in whole] == [1, 2, 3]
    assert rest == whole[1:]
    assert volume_of(rest[-1], budget) == volume(space, budget, jax.random.key(1))


def test_auto_takes_the_plain_count_where_it_suffices() -> None:
    budget = Budget(draws=1000, splitting=Splitting(32, 2, batch=32))
    found = list(pieces(half_space(0.5), budget, jax.random.key(1)))
    assert len(found) == 1
    assert volume_of(found[0], budget).method == "plain"
    rare = Record(Count(3, 1000), (Repeat(-7.0, 0.1, True), Repeat(-7.1, 0.1, True)))
    assert volume_of(rare, budget).method == "splitting"


SMALL = Architecture(3, layers=1, heads=1, width=4, feedforward=None)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["xavier_gaussian", "uniform"])
def test_splitting_agrees_with_plain_sampling_on_transformers(rule) -> None:
    space = models(SMALL, Initialization(rule), function("majority", 3))
    plain = from_count(Count(int(hits(space, 60_000, 128, jax.random.key(0))), 60_000))
    found = from_repeats(repeats(space, Splitting(128, 10, batch=128), 8))
    for estimate in (plain, found):
        assert estimate.log10_volume is not None
        assert estimate.error is not None
    assert plain.error < 0.1 / np.log(10)  # type: ignore
    apart = abs(plain.log10_volume - found.log10_volume)  # type: ignore
    assert apart < 2 * np.hypot(plain.error, found.error)  # type: ignore


def test_a_model_scores_above_zero_where_it_computes_the_function() -> None:
    rule = Initialization("gaussian", 0.5)
    space = models(SMALL, rule, function("majority", 3))
    units = jax.vmap(space.draw)(jax.random.split(jax.random.key(0), 2000))
    scores = np.asarray(once(jax.vmap(space.score), units))
    bits = every_string(3)
    wanted = np.asarray(bits).sum(1) >= 2
    place = jax.vmap(partial(placed, SMALL, spread(SMALL, rule)))(units)
    logits = np.asarray(once(jax.vmap(lambda p: margins(SMALL, p, bits)), place))
    wrong = np.sum((logits > 0) != wanted, axis=1)
    assert np.array_equal(scores > 0, wrong == 0)
    assert np.any(scores > 0)
    assert np.array_equal(np.maximum(np.ceil(-scores), 0), wrong)


def test_points_spread_as_the_initialisation_draws() -> None:
    rule = Initialization("xavier_uniform", 0.7)
    space = models(SMALL, rule, function("or", 3))
    wide = spread(SMALL, rule)
    found = placed(SMALL, wide, space.draw(jax.random.key(4)))
    drawn = initial(SMALL, rule, jax.random.key(4))
    assert jax.tree.map(jnp.shape, found) == jax.tree.map(jnp.shape, drawn)
    assert np.all(np.abs(found.tokens) <= wide.tokens)
    assert np.max(np.abs(found.tokens)) > 0.7 * wide.tokens
    assert found.bias == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Budget(draws=0), "`draws` must be at least 1, but is 0"),
        (lambda: Budget(repeats=1), "`repeats` must be at least 2, but is 1"),
        (lambda: Splitting(population=1), "`population` must be at least 2, but is 1"),
        (lambda: Splitting(survivors=1.0), "`survivors` must be between 0 and 1, but is 1.0"),
        (lambda: Splitting(moves=0), "`moves` must be at least 1, but is 0"),
        (
            lambda: models(SMALL, Initialization(), function("or", 3), -0.1),
            "`margin` must not be negative, but is -0.1",
        ),
        (
            lambda: models(SMALL, Initialization(), function("or", 4)),
            "`function` must be one of 3 bits, but has 4",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
