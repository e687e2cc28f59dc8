"""The benchmark's small sizes: what it reports, and that both sides compute the same."""

import json

import pytest

from fullmodel import bench
from fullmodel.bench.table import accelerated
from imir.cli import run

# Compiles for a minute.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """One quick benchmark: its JSON and the file that it wrote its table into."""
    out = tmp_path_factory.mktemp("bench")
    page = out / "page.md"
    page.write_text("before\n\n<!-- bench -->\nold\n<!-- /bench -->\n\nafter\n")
    assert run(["bench", "--quick", "--out", str(out), "--write", str(page)]) == 0
    return json.loads((out / "report.json").read_text()), page.read_text()


def test_both_sides_compute_the_same(reported):
    data, _ = reported
    compared = [row for row in data["steps"] if row["full"]]
    assert {row["work"] for row in compared} == {"whole manifold", "canonical, exact"}
    for row in compared:
        assert row["loss_error"] < 1e-10
        assert row["gradient_error"] < 1e-10
    assert all(race["first_error"] < 1e-10 for race in data["runs"])


def test_every_key_is_there(reported):
    data, _ = reported
    assert set(data) == {"peaks", "steps", "runs", "training"}
    assert data["training"]["steps"] > 0
    assert set(data["peaks"]) == {"float64", "float32"}
    sizes = {"width", "vocabulary", "blocks", "prompts", "ratio"}
    for row in data["steps"]:
        sides = {"reduced", "full", "full_float32"}
        assert sizes | sides | {"work", "coordinates", "shares"} <= set(row)
        assert set(row["reduced"]) == {"seconds", "compile_seconds", "flops", "bytes"}
        assert row["reduced"]["flops"] > 0
    assert all(sizes | {"extrapolated", "reduced", "full"} <= set(race) for race in data["runs"])


def test_a_full_model_that_does_not_fit_is_said_so():
    side = bench.Side(1e-3, 1.0, 1e6, 10**6)
    row = bench.Row("whole manifold", 4_000_080, 10**6, 3, 8, 30, side)
    assert row.ratio is None
    assert "does not fit" in bench.markdown(bench.Bench({"float64": 1e9}, (row,), ()))


def test_an_accelerator_has_its_own_lines(reported):
    data, _ = reported
    rows = [row for row in data["steps"] if row["full"]]
    confined = {"width": 12, "error": 0.0, "drift": 1e-15}
    found = {"device": "card", "speeds": [data["training"]], "confinement": confined}
    text = accelerated({**found, "reduced": rows})
    assert text.startswith("On one card: drift off the manifold 1e-15 of the way at d = 12;")
    assert f"d = {data['training']['width']}, 7 places" in text


def test_the_table_stands_between_the_markers(reported):
    _, page = reported
    assert page.startswith("before\n\n<!-- bench -->\n\nFull transformer over reduced")
    assert page.endswith("<!-- /bench -->\n\nafter\n")
    assert "\nold\n" not in page


def test_writing_twice_leaves_one_table(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- bench --><!-- /bench -->\nb\n")
    for text in ("first", "second"):
        bench.write(page, text)
    assert page.read_text() == "a\n<!-- bench -->\n\nsecond\n\n<!-- /bench -->\nb\n"


@pytest.mark.parametrize("text", ["", "<!-- bench -->", "<!-- /bench --><!-- bench -->"])
def test_a_file_without_markers_is_refused(tmp_path, text):
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(ValueError, match="`write` must be a file with the markers"):
        bench.write(page, "table")
    assert page.read_text() == text


def test_the_width_is_the_residual_streams(reported):
    data, _ = reported
    assert {row["width"] for row in data["steps"]} == {4 * (12 + 4 * 5)}
