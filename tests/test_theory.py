"""Theorems: measured numbers, verdicts and the command."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from matplotlib import pyplot as plt

from imir import plot, theory
from imir.cli import run
from imir.theory import (
    Table,
    burstiness_gradient,
    burstiness_speedup,
    emergence_scaling,
    suppression,
)


@pytest.fixture(autouse=True)
def _double(float64):
    """Every measurement is in float64."""


@cache
def suppressed() -> Table:
    return suppression((256, 4096), (0.0, 0.2), (0.0, variability(0.2, 256), variability(0.3, 256)))


def variability(q: float, V: int) -> float:
    """f_v of a q, with half of the vocabulary common."""
    return 1 - (1 - q) ** 2 - q**2 / (V // 2 - 2)


def at(table: Table, **where: float) -> Table:
    """The rows in which these columns have these values."""
    kept = np.all([np.isclose(table.column(k), v) for k, v in where.items()], axis=0)
    rows = tuple(row for row, keep in zip(table.rows, kept, strict=True) if keep)
    return replace(table, rows=rows)


@pytest.mark.parametrize(("f_r", "q", "gamma"), [(0.2, 0.2, 0.5074), (0.0, 0.3, 0.5419)])
def test_memorisation_suppresses_the_induction_head(f_r: float, q: float, gamma: float):
    (row,) = at(suppressed(), V=256, f_r=f_r, f_v=variability(q, 256)).rows
    assert row[-1] == pytest.approx(gamma, abs=6e-5)


def test_suppression_comes_closer_with_the_vocabulary():
    off = np.abs(suppressed().column("gamma") - suppressed().column("predicted"))
    small, large = (off[suppressed().column("V") == V].max() for V in (256, 4096))
    assert small / large > 15
    for name in ("alpha", "beta"):
        assert np.allclose(suppressed().column(name), suppressed().column("predicted"), atol=3e-3)


def test_nothing_is_left_to_learn_where_everything_is_memorised():
    found = at(suppressed(), f_r=0, f_v=0)
    assert np.abs([row[3:] for row in found.rows]).max() < 1e-12


def test_two_small_vocabularies_do_not_pass():
    assert not suppressed().passed
    assert "FAILED" in str(suppressed())


@cache
def bursty() -> Table:
    return burstiness_gradient((1, 2, 4), ((32, 128), (32, 10**6)))


def test_gradients_grow_with_burstiness():
    assert bursty().passed
    for name in ("alpha", "beta", "gamma"):
        assert at(bursty(), b=1).column(name) == pytest.approx(1, abs=1e-12)
        assert (np.diff(at(bursty(), V=10**6).column(name)) > 0).all()


def test_gamma_is_proportional_only_in_a_large_vocabulary():
    """b − n/V for n = 65 tokens."""
    small, large = (at(bursty(), V=V, b=4).column("gamma")[0] for V in (128, 10**6))
    assert small == pytest.approx((4 - 65 / 128) / (1 - 65 / 128), rel=1e-3)
    assert large == pytest.approx(4, rel=1e-3)


def beta_by_hand(N: int, b: int) -> float:
    """−∂L/∂β · n/γ at α = β = 0 by counting: what layer 1 holds of the query's token, summed over
    the answer's places, less its mean over all n places; a place j holds count / j."""
    s, n, earlier = np.arange(1, N + 1), 2 * N + 1, np.arange(N) * (b - 1) / max(1, N - 1)
    answers = b * np.mean((1 + earlier) / (2 * s))
    mean = (np.sum(b * s / N * (1 / (2 * s) + 1 / (2 * s - 1))) + (b + 1) / n) / n
    return float(answers - b * mean)


def test_gradients_of_one_copy_follow_by_counting():
    task = theory.Task("recall", 32, rare_fraction=1.0, rare_vocabulary=10**6)
    found = theory._gradient(task, theory._turned(32, np.array([3])))
    here = theory.NEAR_ZERO
    assert -found[2] * task.length == pytest.approx(1, rel=1e-3)
    assert -found[1] * task.length / here == pytest.approx(beta_by_hand(32, 1), rel=2e-3)


def test_gradients_of_several_copies_follow_by_counting():
    for b in (2, 4):
        (row,) = at(bursty(), V=10**6, b=b).rows
        expected = beta_by_hand(32, b) / beta_by_hand(32, 1)
        assert row[-2] == pytest.approx(expected, abs=4 * row[-1])


def test_induction_emerges_when_the_law_says():
    found = emergence_scaling((4,))
    (row,) = found.rows
    assert row[2] == pytest.approx(146.6, rel=1e-3)
    gamma, beta, alpha = row[5:]
    assert gamma < beta < alpha
    assert not found.passed
    assert found.as_dict()["rows"][0][3] is None


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["squared_error", "cross_entropy"])
def test_emergence_scales_as_predicted(loss):
    found = emergence_scaling(loss=loss)
    assert found.passed
    if loss == "squared_error":
        expected = [146.6, 247.2, 584.4, 1647.6, 5153.8, 17166.8, 59403.8]
        assert found.column("time") == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
def test_burstiness_brings_emergence_forward():
    assert burstiness_speedup().passed


@pytest.mark.parametrize("values", [(), (0, 2), (4, 4), (8, 4)])
@pytest.mark.parametrize(
    ("measure", "name"),
    [
        (suppression, "vocabularies"),
        (burstiness_gradient, "burstiness"),
        (emergence_scaling, "blocks"),
        (burstiness_speedup, "burstiness"),
    ],
)
def test_sizes_must_grow(measure, name, values):
    with pytest.raises(ValueError, match=f"^Argument `{name}` must be growing positive numbers"):
        measure(values)


def speedup(measured: float) -> Table:
    columns = ("b", "time (gradient flow)", "predicted speed-up", "speed-up", "se speed-up")
    rows = ((1.0, 100.0, 1.0, 1.0, 0.0), (2.0, 100 / measured, 2.0, measured, 0.1))
    return Table("Speed-up", columns, rows, "a criterion", measured > 1.5)


def scaling() -> Table:
    columns = ("N", "predicted time", "time")
    return Table("Emergence", columns, ((4.0, 30.0, 60.0), (8.0, 90.0, 120.0)), "a criterion", True)


def as_measured(measured: float) -> dict:
    """Tables at hand in place of long measurements."""
    return {
        "suppression": suppressed,
        "burstiness_gradient": bursty,
        "emergence_squared_error": scaling,
        "emergence_cross_entropy": scaling,
        "burstiness_speedup": lambda: speedup(measured),
    }


@pytest.mark.parametrize(("measured", "status"), [(2.0, 0), (1.0, 1)])
def test_the_command_reports_and_judges(monkeypatch, capsys, tmp_path, measured, status):
    monkeypatch.setattr("imir.cli.theory.TABLES", {**as_measured(measured), "suppression": bursty})
    monkeypatch.setattr(plot, "theory_figure", lambda tables: plt.figure())
    assert run(["theory", "--json", "--out", str(tmp_path)]) == status
    captured = capsys.readouterr()
    data = json.loads(captured.out)
    assert set(data) == {"tables", "passed", "files"}
    assert data["passed"] is (status == 0)
    keys = {"title", "columns", "rows", "criterion", "passed"}
    assert all(set(table) == keys for table in data["tables"])
    assert all(len(row) == len(t["columns"]) for t in data["tables"] for row in t["rows"])
    assert all(Path(file).exists() for file in data["files"])
    assert json.loads((tmp_path / "report.json").read_text()) == data
    assert "theorem" in captured.err


def test_figures_draw_every_table(tmp_path):
    tables = {name: measure() for name, measure in as_measured(2.0).items()}
    figure = plot.theory_figure(tables)
    assert len(figure.axes) == 4
    assert all(axes.get_xlabel() and axes.get_ylabel() for axes in figure.axes)
    plt.close(figure)


def test_tables_print_aligned_with_their_verdict():
    title, header, *rows, verdict = str(speedup(2.0)).splitlines()
    assert title == "Speed-up"
    assert {len(row) for row in rows} == {len(header)}
    assert verdict == "passed: a criterion"
