"""Blowup and influence against their bounds."""

import jax
import numpy as np
import pytest

from fullmodel.boolean.blowup import (
    blowup_bound,
    exponent,
    influence_bound,
    measure,
    packing_bound,
)
from fullmodel.boolean.recognizer import Architecture, Initialization, initial

RULE = Initialization("xavier_uniform")


def test_blowup_and_influence_stay_within_their_bounds() -> None:
    small = Architecture(6, layers=2, heads=1, width=8, feedforward=None, epsilon=0.1)
    found = measure(small, RULE, 4, 8, jax.random.key(0))
    assert found.blowup.shape == (4, 8)
    assert np.all(found.blowup > 1)
    assert np.all(found.blowup <= blowup_bound(small))
    assert np.all(found.influence <= found.largest)
    assert np.all(found.largest <= found.bound)


def test_without_epsilon_nothing_bounds_the_blowup() -> None:
    exact = Architecture(6, epsilon=0.0)
    assert blowup_bound(exact) == np.inf
    assert influence_bound(exact, initial(exact, RULE, jax.random.key(0))) == np.inf
    assert blowup_bound(Architecture(6, norm="none", epsilon=0.0)) == 1
    assert blowup_bound(Architecture(6, layers=3, epsilon=0.25)) == 27


def test_the_bound_on_influence_falls_as_one_over_the_length() -> None:
    weak, bounds = Initialization("xavier_uniform", 0.2), []
    for N in (2**12, 2**16):
        short = Architecture(N, 2, 1, 4, None, epsilon=1.0, positions="fixed")
        bounds.append(influence_bound(short, initial(short, weak, jax.random.key(0))))
    assert bounds[0] / bounds[1] == pytest.approx(16, rel=0.01)


def test_the_exponent_of_a_power_is_found() -> None:
    lengths = np.array([16, 32, 64])
    rows = 3 * lengths[:, None] ** -1.5 * np.ones(4)
    assert exponent(lengths, rows) == pytest.approx((-1.5, 0))


def test_the_packing_bound_is_its_formula() -> None:
    assert packing_bound(3.0, 6.0, 2.0, 5) == pytest.approx(5)
    with pytest.raises(ValueError, match="`margin` must be positive, but is 0"):
        packing_bound(3.0, 6.0, 0.0, 5)


def test_too_few_models_are_refused() -> None:
    with pytest.raises(ValueError, match="must be at least 2 and 1, but are 1 and 0"):
        measure(Architecture(3), RULE, 1, 0, jax.random.key(0))


@pytest.mark.slow
def test_influence_falls_as_one_over_the_length() -> None:
    lengths, rows = (16, 32, 64, 128, 256), []
    for N in lengths:
        found = measure(
            Architecture(N, 2, 2, 16, 32, epsilon=1e-2), RULE, 128, 16, jax.random.key(N)
        )
        rows.append(found.influence)
    assert exponent(lengths, rows)[0] == pytest.approx(-1, abs=0.1)
