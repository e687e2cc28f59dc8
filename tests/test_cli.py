"""The command line as its users and their programs see it."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from imir.cli import remember_programs, run

TINY = ("--blocks", "2", "--vocabulary", "16", "--until", "3e3")


@pytest.fixture(scope="module", autouse=True)
def _programs(tmp_path_factory):
    """Commands of one shape compile once."""
    remember_programs(tmp_path_factory.mktemp("programs"))


def said(capsys, *arguments: str, status: int = 0) -> str:
    assert run(arguments) == status
    return capsys.readouterr().out


def refused(capsys, *arguments: str) -> str:
    """The one sentence that a command ends with."""
    try:
        status = run(arguments)
    except SystemExit as stop:
        status = stop.code
    captured = capsys.readouterr()
    assert status == 2
    assert "Traceback" not in captured.err
    assert captured.out == ""
    sentences = [s for s in re.split(r"[\r\n]", captured.err) if s.startswith("imir: ")]
    assert len(sentences) == 1
    return sentences[0]


def test_basis_counts_and_describes_elements(capsys):
    data = json.loads(said(capsys, "basis", "--task", "recall", "--json"))
    assert (data["count"], data["count_literal"]) == (30, 28)
    assert len(data["elements"]) == 30
    keys = {"layer", "head", "query_path", "selection", "key_path", "latex"}
    assert all(set(element) == keys for element in data["elements"])
    rare = json.loads(said(capsys, "basis", "--task", "recall", "--rare-fraction", "1", "--json"))
    assert rare["count_literal"] == 19


def test_basis_prints_names_and_formulas(capsys):
    text = said(capsys, "basis", "--layers", "1")
    assert "layer1.head1 () M ()" in text
    assert text.rstrip().endswith("8 elements (the paper's literal set: 8)")


def test_simulate_reports_every_key_and_writes_its_files(capsys, tmp_path):
    arguments = ("simulate", *TINY, "--rare-fraction", "0.5", "--out", str(tmp_path), "--json")
    data = json.loads(said(capsys, *arguments))
    keys = {"coordinates", "loss", "icl_score", "iwl_score", "icl_time", "iwl_time", "steps"}
    assert keys | {"seconds"} <= set(data)
    assert set(data["coordinates"]) == {"alpha", "beta", "gamma", "delta"}
    with xr.open_dataset(tmp_path / "solution.nc", engine="h5netcdf") as run_:
        final = run_["coordinates"].isel(time=-1)
        assert np.allclose(final.sel(coordinate="delta"), data["coordinates"]["delta"])
        assert run_["time"].attrs["units"] == "gradient-flow time"
    assert {p.name for p in tmp_path.iterdir()} == {
        "solution.nc", "trajectory.png", "trajectory.pdf", "config.toml",
    }  # fmt: skip


def test_a_configuration_runs_again(capsys, tmp_path):
    first = json.loads(said(capsys, "simulate", *TINY, "--out", str(tmp_path), "--json"))
    saved = str(tmp_path / "config.toml")
    again = json.loads(said(capsys, "simulate", "--config", saved, "--json"))
    assert again["coordinates"] == first["coordinates"]
    longer = said(capsys, "simulate", "--config", saved, "--until", "6e3", "--json")
    assert json.loads(longer)["coordinates"]["delta"] > first["coordinates"]["delta"]
    assert tomllib.loads(Path(saved).read_text())["until"] == 6e3


def test_score_without_a_query_is_null(capsys):
    data = json.loads(said(capsys, "simulate", *TINY, "--rare-fraction", "1", "--json"))
    assert data["iwl_score"] is None
    assert data["iwl_time"] is None


def test_discrete_optimisers_on_the_whole_manifold(capsys):
    command = ("simulate", *TINY, "--coordinates", "all", "--frame", "onehot", "--json")
    options = ("--optimizer", "adam", "--learning-rate", "0.01", "--steps", "20")
    data = json.loads(said(capsys, *command, *options, "--samples", "16"))
    assert data["steps"] == 20
    assert "output C (2.1)" in data["coordinates"]


def test_phase_counts_cells_and_places_a_text(capsys, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat and the dog sat on the log " * 40)
    arguments = ("phase", *TINY, "--x", "rare_fraction=0:1:3", "--y", "variability=0:0.9:2")
    out = tmp_path / "diagram"
    files = ("--corpus", str(text), "--out", str(out))
    data = json.loads(said(capsys, *arguments, *files, "--json"))
    assert data["cells"] == 6
    assert sum(data["regimes"].values()) == 6
    assert all(Path(file).exists() for file in data["files"])
    assert {Path(file).name for file in data["files"]} >= {"phase.zarr", "phase.png", "phase.pdf"}
    assert 0 <= data["corpora"]["text"]["variability"] <= 1
    diagram = xr.open_zarr(out / "phase.zarr", chunks=None, consolidated=False)
    assert diagram["regime"].dims == ("variability", "rare_fraction")
    assert diagram["icl_time"].attrs["units"] == "gradient-flow time"


def test_corpus_reports_every_key(capsys, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("a b a c a b d " * 60)
    data = json.loads(said(capsys, "corpus", str(text), "--context", "8", "--json"))
    keys = {
        "rare_fraction", "variability", "context_fraction", "burstiness", "zipf_exponent",
        "successor_agreement", "vocabulary",
    }  # fmt: skip
    assert keys <= set(data)
    assert keys <= set(data["shuffled"])
    several = json.loads(said(capsys, "corpus", str(text), str(text), "--context", "8", "--json"))
    assert len(several) == 2
    assert "shuffled" in said(capsys, "corpus", str(text), "--context", "8")


BAD = {
    "unknown task": (["--task", "nonsense"], "`task` must be a template or one of recall"),
    "no arrow": (["--task", "a b | a b"], "at character 10"),
    "stray character": (["--task", "a b | a > b"], "'>' at character 9"),
    "unbound answer": (["--task", "a b | a -> c"], "'c' is bound nowhere"),
    "long query": (["--task", "a b | a b -> b"], "a query shorter than its longest block of 2"),
    "share above one": (["--rare-fraction", "1.5"], "`rare_fraction` must lie between 0 and 1"),
    "not a number": (["--variability", "nan"], "`variability` must lie between 0 and 1"),
    "variability": (["--variability", "1"], "`variability` must be at most"),
    "burstiness": (["--burstiness", "9"], "`blocks` must be at least 9 for burstiness 9"),
    "too few tokens": (["--vocabulary", "8"], "`vocabulary` must be at least 16"),
    "odd vocabulary": (["--vocabulary", "33"], "must be a positive multiple of 2"),
    "start": (["--start", "inf"], "`start` must be finite, but is inf"),
    "tolerance": (["--precision", "float32"], "`rtol` must be at least 1.2e-05 in float32"),
    "until": (["--until", "-1"], "`until` must be positive and finite, but is -1.0"),
    "layers": (["--layers", "0"], "`layers` must be at least 1, but is 0"),
    "canonical": (["--layers", "3", "--coordinates", "canonical"], "`coordinates` must be all"),
    "bins": (["--frequency-bins", "0.5:x"], "must be SHARE:TOKENS pairs, but has '0.5:x'"),
    "clamp": (["--clamp", "beta"], "`clamp` must be NAME=VALUE pairs"),
    "clamp name": (["--clamp", "omega=1"], "`clamps` must name coordinates among alpha"),
    "enumeration": (
        [
            "--expectation",
            "exact",
            "--coordinates",
            "all",
            "--blocks",
            "12",
            "--variability",
            "0.3",
        ],
        "must have at most 20000 prompts up to symmetry for an exact expectation, but has",
    ),
    "config": (["--config", "nowhere.toml"], "`config` must be a readable TOML file"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_ends_with_one_sentence(capsys, tmp_path, name):
    arguments, message = BAD[name]
    out = tmp_path / "out"
    error = refused(capsys, "simulate", *arguments, "--out", str(out))
    assert message in error
    assert error.startswith("imir: Argument")
    assert not out.exists()


@pytest.mark.parametrize(
    "x", ["rare_fraction=0.1:0.9", "rare_fraction=a:b:3", "rare_fraction=0.9:0.1:3", "color=0:1:3",
          "rare_fraction=0:1:0", "start=0:1:3:log", "rare_fraction=0:2:3"]
)  # fmt: skip
def test_bad_axes_are_refused(capsys, tmp_path, x):
    error = refused(capsys, "phase", *TINY, "--x", x, "--out", str(tmp_path / "out"))
    assert re.match(r"imir: Argument `(axis|rare_fraction)` must", error)
    assert not (tmp_path / "out").exists()


def test_two_equal_axes_are_refused(capsys):
    error = refused(capsys, "phase", "--x", "variability=0:0.5:2", "--y", "variability=0:0.5:2")
    assert "`axes` must vary different parameters, but has variability twice" in error


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "must"),
        (b"", "must hold at least"),
        (b"a\x00b", "is a NUL"),
        (b"\xff\xfe\xfa", "UTF-8"),
    ],
)
def test_bad_texts_are_refused(capsys, tmp_path, content, message):
    file = tmp_path / "text.txt"
    if content is not None:
        file.write_bytes(content)
    for command in (("corpus",), ("phase", "--out", str(tmp_path / "out"), "--corpus")):
        error = refused(capsys, *command, str(file))
        assert error.startswith("imir: Argument `path` must")
        assert message.lower() in error.lower()
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_refused(capsys, tmp_path):
    file = tmp_path / "file"
    file.touch()
    error = refused(capsys, "simulate", *TINY, "--out", str(file / "below"))
    assert "`out` must be a folder that can be written" in error


def test_a_failing_solver_keeps_what_it_had(capsys, tmp_path):
    error = refused(capsys, "simulate", *TINY, "--max-steps", "10", "--out", str(tmp_path))
    assert re.search(r"solver failed at time \S+ after 10 steps", error)
    with xr.open_dataset(tmp_path / "solution.nc", engine="h5netcdf") as kept:
        assert kept.sizes["time"] > 1
        assert np.isfinite(kept["coordinates"].values).all()
        assert kept.attrs["outcome"].startswith("failed")


def test_help_teaches(capsys):
    with pytest.raises(SystemExit) as stop:
        run(["simulate", "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "Example: imir simulate" in text
    assert "--rare-fraction" in text


def test_installed_command_prints_only_json_on_standard_output():
    program = str(Path(sys.executable).parent / "imir")
    done = subprocess.run(
        [program, "basis", "--json"], capture_output=True, check=True, env={**os.environ}
    )
    assert json.loads(done.stdout)["count"] == 30
