"""How departures from the theorem's assumptions fall with the batch and with the width."""

import jax
import numpy as np
import pytest

from fullmodel.depart.laws import batch_law, gradient_law, law_of, width_law


def test_a_power_law_is_found_whatever_each_repeat_is_multiplied_by():
    x, factors = [1.0, 2.0, 4.0, 8.0], np.array([1.0, 30.0])
    found = law_of("", x, np.array(x)[:, None] ** -0.7 * factors, -0.7)
    assert found.exponent == pytest.approx(-0.7, abs=1e-12)
    assert found.error < 1e-12


@pytest.mark.slow
def test_noise_of_batches_falls_with_the_root_of_the_batch():
    with jax.enable_x64(True):
        assert batch_law().exponent == pytest.approx(-0.5, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("embedding", ["gaussian", "sinusoidal"])
def test_logits_in_random_frames_approach_the_reduced_ones(embedding):
    with jax.enable_x64(True):
        assert width_law(embedding, repeats=12).exponent == pytest.approx(-0.5, abs=0.1)
        assert gradient_law(embedding, widths=(64, 256, 1024)).exponent < 0
