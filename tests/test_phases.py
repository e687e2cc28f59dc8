"""Phase diagrams: each cell is the run that its parameters describe."""

import jax
import numpy as np
import pytest

from imir import Axis, Flow, Task, axis, canonical, exact, gradient_flow, phase_diagram, probes
from imir.phases import Grid, regime_counts
from imir.scores import REGIMES

TASK = Task("recall", blocks=2, vocabulary=16)
FLOW = Flow(until=2e3, rtol=1e-6, saves=48)


@pytest.fixture(scope="module")
def diagram():
    with jax.enable_x64(True):
        return phase_diagram(TASK, [axis("rare_fraction=0:1:3"), axis("variability=0:0.8:2")], FLOW)


@pytest.mark.parametrize(("f_r", "f_v"), [(0.5, 0.8), (0.5, 0.0)])
def test_a_cell_is_its_single_run(diagram, f_r, f_v):
    task = Task("recall", blocks=2, vocabulary=16, rare_fraction=f_r, variability=f_v)
    with jax.enable_x64(True):
        tie = canonical(task)
        found = probes(tie, task, 64, jax.random.key(0))
        single = gradient_flow(exact(tie, task), 1e-3, FLOW, probes=found)
    cell = diagram.sel(rare_fraction=f_r, variability=f_v)
    assert np.allclose(cell["coordinates"], single.coordinates[-1], atol=1e-5)
    assert np.isclose(cell["icl_score"], single.icl[-1], atol=1e-6)
    for name, time in (("icl_time", single.icl_time), ("iwl_time", single.iwl_time)):
        assert np.isclose(cell[name], np.nan if time is None else time, rtol=1e-4, equal_nan=True)


def test_regimes_follow_from_scores_and_bests(diagram):
    q = [Task("recall", blocks=2, vocabulary=16, variability=v).unlinked[0] for v in (0.0, 0.8)]
    icl = diagram["icl_score"].values > 0.5
    iwl = diagram["iwl_score"].values > (1 - np.array(q)[:, None]) / 2
    assert np.array_equal(diagram["regime"].values, icl + 2 * iwl)
    assert sum(regime_counts(diagram).values()) == diagram["regime"].size


def test_only_rare_tokens_leave_nothing_to_memorise(diagram):
    assert REGIMES[int(diagram["regime"].sel(rare_fraction=1.0, variability=0.0))] == "ICL"
    assert np.allclose(diagram["coordinates"].sel(rare_fraction=1.0, coordinate="delta"), 1e-3)


def test_cells_that_cannot_be_are_refused_before_anything_runs():
    with pytest.raises(ValueError, match="`blocks` must be at least 3 for burstiness 3"):
        Grid(TASK, (axis("burstiness=1:3:3"), axis("start=0.1:1:2")))


def test_axes_over_shapes_and_over_the_run():
    with jax.enable_x64(True):
        swept = phase_diagram(
            TASK, [axis("blocks=1:2:2"), axis("weight_decay=0:0.1:2")], Flow(until=200.0, rtol=1e-4)
        )
    assert swept["regime"].dims == ("weight_decay", "blocks")
    size = np.abs(swept["coordinates"].values).max(axis=-1)
    assert (size[1] < size[0]).all()


def test_a_failed_cell_is_recorded_with_what_it_reached():
    with jax.enable_x64(True):
        failed = phase_diagram(TASK, [axis("start=0.1:0.1:1")], Flow(max_steps=12, rtol=1e-4))
    assert int(failed["regime"].item()) == -1
    assert 0 < failed["end"].item() < 1e6
    assert regime_counts(failed)["failed"] == 1


def test_log_axes_and_rounded_counts():
    assert np.allclose(axis("start=0.01:1:3:log").values, [0.01, 0.1, 1.0])
    assert axis("blocks=1:4:9").values == (1.0, 2.0, 3.0, 4.0)
    with pytest.raises(ValueError, match="must have finite values"):
        Axis("start", (np.nan,))


@pytest.mark.slow
def test_sampled_cells_share_their_random_numbers():
    with jax.enable_x64(True):
        pair = phase_diagram(
            TASK, [axis("rare_fraction=0.5:0.5:1"), Axis("start", (0.1, 0.1))], Flow(until=50.0),
            kind="sample", samples=16,
        )  # fmt: skip
    loss = pair["loss"].values.ravel()
    assert loss[0] == loss[1]


def test_icl_that_comes_and_goes_is_transient():
    """Attention is there from the start; memorisation takes over what γ copied, and γ decays."""
    task = Task("recall", blocks=2, vocabulary=64, rare_fraction=0.0206)
    formed = [Axis("start.alpha", (6.0,)), Axis("start.beta", (20.0,))]
    with jax.enable_x64(True):
        flow = Flow(until=1e6, rtol=1e-6, saves=48)
        swept = phase_diagram(task, [Axis("weight_decay", (5.3e-6, 1e-4)), *formed], flow)
    came, never = (swept.squeeze().isel(weight_decay=i) for i in range(2))
    assert [REGIMES[int(x["regime"])] for x in (came, never)] == ["transient", "IWL"]
    assert came["icl_time"] < came["icl_peak_time"] < came["icl_end"] < came["end"]
    assert came["icl_score"] < 0.5 < came["icl_peak"]
    assert came["icl_peak"] == np.max(came["icl_over_time"])
    assert np.isnan(never["icl_end"])


def test_a_large_constant_coordinate_ends_nothing():
    """An end has to come from a score or from the time, never from coordinates at rest."""
    task = Task("recall", blocks=2, vocabulary=16, rare_fraction=0.3)
    held = Flow(until=2e3, rtol=1e-4, stop="icl", clamps=(("delta", 1e3),))
    with jax.enable_x64(True):
        ended = phase_diagram(task, [Axis("start", (1e-3,))], held)
    assert ended["end"].item() == 2e3
    assert np.isnan(ended["icl_time"].item())
    assert ended["coordinates"].sel(coordinate="gamma").item() > 1e-3
