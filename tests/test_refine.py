"""Refined diagrams: what is computed, what is interpolated, and how little differs."""

import jax
import numpy as np
import pytest

from imir import Flow, Task, axis, phase_diagram
from imir.phases.refine import interpolated, is_on, lattice, near_boundaries
from imir.phases.store import COMPUTED, INTERPOLATED

TASK = Task("recall", blocks=2, vocabulary=64)
FLOW = Flow(until=3e3, rtol=1e-4, saves=24)


def plane(size: int):
    return [axis(f"rare_fraction=0.01:1:{size}"), axis(f"variability=0:0.9:{size}")]


def disc(size: int) -> dict[str, np.ndarray]:
    """A disc of one regime in another, and a time that never changes much."""
    y, x = np.mgrid[:size, :size] / (size - 1)
    inside = (x - 0.5) ** 2 + (y - 0.4) ** 2 < 0.1
    return {"regime": inside * 1.0, "icl_time": 1 + 0.1 * x, "iwl_time": np.full_like(x, np.nan)}


def refined(truth: dict[str, np.ndarray], stride: int):
    """Refinement of a known function, and what it looked at."""
    shape = truth["regime"].shape
    coarse = lattice(shape, stride)
    known = is_on(shape, coarse)
    filled = {name: np.where(known, values, 0.0) for name, values in truth.items()}
    while stride > 1:
        stride = -(-stride // 2)
        fine = lattice(shape, stride)
        known |= near_boundaries(filled, coarse) & is_on(shape, fine)
        merged = {name: np.where(known, truth[name], filled[name]) for name in truth}
        filled = {n: interpolated(v, known, coarse, fine, n) for n, v in merged.items()}
        coarse = fine
    return filled, known


@pytest.mark.parametrize(("size", "stride"), [(257, 16), (250, 16), (100, 7)])
def test_a_disc_is_found_by_looking_near_its_edge(size: int, stride: int):
    truth = disc(size)
    filled, known = refined(truth, stride)
    assert np.mean(known) < 0.25
    assert np.mean(filled["regime"] != truth["regime"]) < 0.002
    assert np.allclose(filled["icl_time"], truth["icl_time"], rtol=1e-3)
    assert np.isnan(filled["iwl_time"]).all()


def test_steep_times_are_computed_and_flat_ones_are_not():
    y, x = np.mgrid[:65, :65] / 64
    truth = {"regime": 0 * x, "icl_time": np.exp(8 * np.tanh(20 * (x - 0.5))), "iwl_time": 0 * y}
    truth["iwl_time"] += np.nan
    filled, known = refined(truth, 8)
    assert known[:, 32].all()
    assert not known[1:8, 1:8].any()
    assert np.allclose(np.log(filled["icl_time"]), np.log(truth["icl_time"]), atol=0.1)


def test_times_are_interpolated_in_their_logarithms_and_regimes_not_at_all():
    shape, known = (3, 3), np.zeros((3, 3), bool)
    known[::2, ::2] = True
    values = np.array([[1.0, 0, 100.0], [0, 0, 0], [1.0, 0, 100.0]])
    coarse, fine = lattice(shape, 2), lattice(shape, 1)
    times = interpolated(values, known, coarse, fine, "icl_time")
    assert np.allclose(times[1], [1.0, 10.0, 100.0])
    assert np.allclose(interpolated(values, known, coarse, fine, "loss")[1], [1.0, 50.5, 100.0])
    assert set(interpolated(values, known, coarse, fine, "regime").ravel()) == {1.0, 100.0}


def both(size: int, stride: int, tmp_path):
    with jax.enable_x64(True):
        few = phase_diagram(TASK, plane(size), FLOW, refine=stride, store=tmp_path / "few")
        every = phase_diagram(TASK, plane(size), FLOW, store=tmp_path / "every")
    return few, every


def test_a_refined_diagram_marks_what_it_interpolated(tmp_path):
    few, every = both(17, 8, tmp_path)
    computed = few["status"].values == COMPUTED
    assert set(np.unique(few["status"])) == {COMPUTED, INTERPOLATED}
    assert np.array_equal(few["icl_time"].values[computed], every["icl_time"].values[computed],
                          equal_nan=True)  # fmt: skip
    assert np.mean(few["regime"] != every["regime"]) < 0.03
    with jax.enable_x64(True):
        again = phase_diagram(TASK, plane(17), FLOW, store=tmp_path / "few")
    assert again.drop_attrs().identical(every.drop_attrs())


def test_strides_need_a_plane():
    with pytest.raises(ValueError, match="stride of at least 2 on two axes or more, but is 4 on 1"):
        phase_diagram(TASK, plane(5)[:1], FLOW, refine=4)


@pytest.mark.slow
def test_few_cells_tell_a_diagram_of_128_by_128(tmp_path):
    few, every = both(128, 16, tmp_path)
    assert np.mean(few["status"] == COMPUTED) < 0.2
    assert np.mean(few["regime"] != every["regime"]) <= 0.005
