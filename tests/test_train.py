"""Runs of full models: optimisers, resuming, and the way off the manifold."""

import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import jax
import numpy as np
import pytest

from fullmodel.architecture import Architecture
from fullmodel.confinement import at, project
from fullmodel.confinement.span import captured, span_of
from fullmodel.train import run as module
from fullmodel.train.initial import beside
from fullmodel.train.predicted import emergence, predicted
from fullmodel.train.recipe import Name, Recipe
from fullmodel.train.run import Setting, TrainingFailure, run
from fullmodel.weights import network_of
from imir.basis import basis_of
from imir.cli import run as command
from imir.tasks.task import Task

TASK = Task("recall", 3, rare_fraction=1.0, rare_vocabulary=9)
WIDE = Architecture(
    width=32, embedding="gaussian", positions="sinusoidal", output_value="orthogonal"
)
SHORT = Setting(TASK, WIDE, Recipe("adamw", 1e-2, 12, batch=16))


def test_captured_coordinates_are_those_of_the_exact_frame():
    with jax.enable_x64(True):
        basis = basis_of(TASK, 2, 1)
        theta = jax.random.normal(jax.random.key(0), (len(basis.elements),))
        on = at(basis, theta)
        span = span_of(basis, network_of(on, basis))
        found = captured(span, np.asarray(on.merged), np.asarray(on.readout[...]))
        np.testing.assert_allclose(found.coefficients, theta, rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.shares, 1, rtol=0, atol=1e-12)
        off = beside(on.weights, jax.random.key(1), 0.5)
        found = captured(span, np.asarray(off.key_query), np.asarray(off.readout))
        np.testing.assert_allclose(found.coefficients, project(basis, off), rtol=0, atol=1e-12)
        # Noise of half the norm: a share of 1/(1 + 1/4), up to its own overlap with the weights.
        assert found.share == pytest.approx(0.8, abs=0.05)
        assert found.expected_share < 0.01


def test_random_matrices_are_captured_as_chance_says():
    with jax.enable_x64(True):
        setting = replace(SHORT, architecture=replace(WIDE, width=16))
        span = span_of(setting.basis, network_of(setting.model(), setting.basis))
        rng = np.random.default_rng(0)
        shares = [
            captured(span, rng.normal(size=(2, 1, 16, 16)), rng.normal(size=(16, 16)))
            for _ in range(200)
        ]
        found = np.array([x.shares for x in shares])
        error = np.std(found, axis=0) / np.sqrt(len(found))
        assert np.all(np.abs(np.mean(found, axis=0) - shares[0].chances) < 4 * error)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adamw", "muon"])
def test_each_optimiser_lowers_the_loss(name: Name):
    rate = {"sgd": 1.0, "momentum": 0.3}.get(name, 0.02)
    steps = Recipe(name, rate, 60, batch=64, weight_decay=1e-4, schedule="cosine", warmup=5)
    found = run(replace(SHORT, recipe=steps), records=2)
    assert found.departure.loss[-1] < found.departure.loss[0] - 0.01
    assert len(found.losses) == 60
    assert predicted(found.setting, found.departure.coordinates[0]) is None


def test_a_run_does_not_depend_on_its_records():
    few, many = run(SHORT, records=1), run(SHORT, records=4)
    np.testing.assert_array_equal(few.losses, many.losses)
    np.testing.assert_array_equal(few.model.readout[...], many.model.readout[...])
    assert many.departure.steps.tolist() == [0, 3, 6, 9, 12]


def test_a_run_goes_on_bit_for_bit(tmp_path):
    whole = run(SHORT, records=4)
    with pytest.raises(KeyboardInterrupt, match=r"the same command"), interrupting(after=2):
        run(SHORT, records=4, out=tmp_path)
    resumed = run(SHORT, records=4, out=tmp_path)
    np.testing.assert_array_equal(resumed.losses, whole.losses)
    for here, there in zip(
        jax.tree.leaves(resumed.model.weights), jax.tree.leaves(whole.model.weights), strict=True
    ):
        np.testing.assert_array_equal(here, there)
    np.testing.assert_array_equal(resumed.departure.movement, whole.departure.movement)


@contextmanager
def interrupting(after: int):
    """Ctrl-C at the end of a part of a run."""
    finite, left = module._finite, iter(range(after))

    def stop(*arguments):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return finite(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_finite", stop)
        yield


def test_the_folder_of_another_run_is_refused(tmp_path):
    run(SHORT, records=1, out=tmp_path)
    with pytest.raises(ValueError, match=r"but .* has recipe.batch = 16 where this one has 8"):
        run(replace(SHORT, recipe=replace(SHORT.recipe, batch=8)), records=1, out=tmp_path)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    wild = replace(SHORT, recipe=Recipe("sgd", 100.0, 12, batch=16, loss="squared_error"))
    with pytest.raises(TrainingFailure, match=r"step (\d+) is not; the checkpoint of step"):
        run(wild, records=12, out=tmp_path)
    with pytest.raises(TrainingFailure, match=r"nothing was saved"):
        run(wild, records=1)


def test_a_run_on_the_manifold_is_the_reduced_one():
    """With all prompts of an orbit as the batch these are equal; here batches are random."""
    with jax.enable_x64(True):
        setting = Setting(
            Task("recall", 2, rare_fraction=1.0, rare_vocabulary=5),
            recipe=Recipe("momentum", 1.0, 300, batch=128),
            origin="manifold",
            start=0.01,
        )
        found = run(setting, records=30)
        reduced = predicted(setting, found.departure.coordinates[0])
        assert reduced is not None
        assert reduced.icl_time is not None
        assert found.departure.weights[0, -1] == pytest.approx(1, abs=1e-12)
        assert emergence(found) == pytest.approx(reduced.icl_time, rel=0.1)


def test_the_command_trains_and_goes_on(tmp_path, capsys):
    options = "--blocks 3 --width 32 --rare-fraction 1 --steps 8 --batch 16 --records 2"
    line = ["train", *options.split(), "--optimizer", "sgd", "--out", str(tmp_path)]
    assert command(line) == 0
    first = capsys.readouterr().out
    assert "share in the span of Theorem 1" in first
    assert (tmp_path / "departure.png").exists()
    assert command(line) == 0
    again = capsys.readouterr().out
    assert [x for x in first.splitlines() if "head" in x] == [
        x for x in again.splitlines() if "head" in x
    ]
    assert command([*line, "--batch", "32"]) == 2
    assert "recipe.batch = 16 where this one has 32" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--positions rotary", "`key_query` must be factorised with rotary positions"),
        ("--embedding exact --positions exact --width 8", "`width` must be at least"),
        ("--learning-rate 0", "`learning_rate` must be positive"),
        ("--batch 0", "`batch` must be at least 1"),
        ("--warmup 9000", "`warmup` must be less than the 2000 steps"),
        ("--key-query factorised --origin manifold", "`key_query` must be merged to start"),
    ],
)
def test_bad_options_are_one_sentence(capsys, options: str, message: str):
    assert command(["train", "--blocks", "3", *options.split()]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.strip().count("\n") == 0


@pytest.mark.slow
def test_a_killed_run_goes_on_bit_for_bit(tmp_path):
    options = "--blocks 3 --width 64 --rare-fraction 1 --steps 3000 --batch 64 --records 30"
    line = [sys.executable, "-c", "from imir.cli import main; main()", "train", *options.split()]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run([*line, "--out", whole], check=True)
    for seconds in (9, 10, 11):
        process = subprocess.Popen([*line, "--out", killed])
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(seconds)
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run([*line, "--out", killed], check=True)
    assert (whole / "report.json").read_text().split('"seconds"')[0] == (
        killed / "report.json"
    ).read_text().split('"seconds"')[0]
