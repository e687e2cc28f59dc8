"""What departures from the theorem's assumptions cost, and how they fall with batch and width."""

from dataclasses import replace

import jax
import numpy as np
import pytest
import xarray as xr

from fullmodel.depart.adam import Confinement, adam
from fullmodel.depart.laws import batch_law, gradient_law, law_of, width_law
from fullmodel.depart.regimes import scatter
from fullmodel.depart.rows import THEOREM, rows
from fullmodel.depart.runs import measured
from fullmodel.depart.table import rows_of
from fullmodel.train.recipe import Recipe
from imir.cli import run as command
from imir.tasks.task import Task

TASK = Task("recall", 3, rare_fraction=1.0, rare_vocabulary=11)
SHORT = replace(THEOREM, task=TASK, recipe=Recipe("momentum", 1.0, 40, 64))
WILD = replace(SHORT, recipe=Recipe("sgd", 1e4, 40, 64, loss="squared_error"))


def test_every_departure_is_another_setting():
    found = rows()
    assert len(found) == len({str(setting.as_dict()) for setting in found.values()}) == 35


def test_rows_are_means_over_the_runs_that_stayed_finite():
    (good, bad), runs = rows_of({"short": SHORT, "wild": WILD}, 2, None, iter)
    assert (good.seeds, good.failed, bad.failed) == (2, 0, 2)
    assert good.movement == np.mean([run["movement"][-1, -1] for run in runs[:2]])
    assert 0.5 < good.movement <= 1
    assert good.chance < 1e-2 < good.canonical <= good.movement + 1e-9
    assert np.isnan(bad.movement)
    assert "must have finite losses" in runs[2].attrs["failure"]


def test_a_run_in_a_file_is_not_made_again(tmp_path, monkeypatch):
    first = measured(SHORT, tmp_path)
    monkeypatch.setattr("fullmodel.depart.runs.run", None)
    xr.testing.assert_identical(measured(SHORT, tmp_path), first)
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_emergence_is_compared_where_both_emerged():
    steps = [(100, 110), (200, 190), (400, 400), (np.nan, 50), (50, np.nan)]
    runs = [
        xr.Dataset(attrs={"icl_step": x, "predicted_icl_step": y, "has_prediction": 1})
        for x, y in steps
    ]
    found = scatter(runs)
    assert found.median_error == pytest.approx(0.05)
    assert found.correlation == pytest.approx(1)
    assert (found.only_full, found.only_reduced) == (1, 1)


def test_adam_is_confined_from_the_least_epsilon_above_all_that_are_not():
    def found(*drift):
        return Confinement("float64", (1e-8, 1e-4, 1e-2), drift, 1e-9).holds_from

    assert found(1e-12, 1e-12, 1e-12) == 1e-8
    assert found(1e-12, 1e-3, 1e-12) == 1e-2
    assert found(1e-12, 1e-12, np.inf) is None


def test_adam_with_a_tiny_epsilon_leaves_the_manifold():
    found = adam("float64", (1e-16, 1e-2), steps=20)
    assert found.drift[0] > 0.1
    assert found.drift[1] < 1e-12


def test_no_seeds_are_refused(capsys):
    assert command(["depart", "--seeds", "0"]) == 2
    assert "Argument `seeds` must be at least 1, but is 0." in capsys.readouterr().err


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
