"""Explicit weights on every string, and the boxes around them."""

import jax
import numpy as np
import pytest

from fullmodel.boolean.functions import function, table
from fullmodel.boolean.needle import NEEDLES, architecture, radius
from fullmodel.boolean.recognizer import truth_table

LENGTHS = (1, 2, 5, 8)


@pytest.mark.parametrize("name", NEEDLES)
def test_explicit_weights_compute_their_function_on_every_string(name: str) -> None:
    for length in LENGTHS:
        found = truth_table(architecture(length), NEEDLES[name](length))
        assert np.array_equal(found.words, table(function(name, length)))
        assert found.margin > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["post", "pre", "none"])
@pytest.mark.parametrize("name", NEEDLES)
def test_they_do_so_with_every_norm_up_to_fourteen_bits(name: str, norm) -> None:
    for length in (3, 6, 11, 14):
        found = truth_table(architecture(length, norm), NEEDLES[name](length))
        assert np.array_equal(found.words, table(function(name, length)))


@pytest.mark.slow
def test_the_box_of_parity_shrinks_fastest() -> None:
    """The worst direction is worse than any corner, and PARITY's box is the smallest."""
    found = {
        (name, N): radius(architecture(N), NEEDLES[name](N), function(name, N), jax.random.key(0))
        for name in NEEDLES
        for N in (2, 8)
    }
    assert all(0 < r.worst < r.corners < np.inf for r in found.values())
    shrinking = {name: found[name, 8].worst / found[name, 2].worst for name in NEEDLES}
    assert shrinking["parity"] < min(shrinking["majority"], shrinking["first"])
    assert found["parity", 8].worst < 0.25 * found["majority", 8].worst


def test_a_radius_needs_weights_that_compute_the_function() -> None:
    with pytest.raises(ValueError, match="must compute zero on all strings"):
        radius(
            architecture(1), NEEDLES["first"](1), function("zero", 1), jax.random.key(0), corners=1
        )
