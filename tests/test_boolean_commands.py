"""`imir boolean volume | train | blowup`: keys, files, going on, and mistakes."""

import json

import pytest

from imir.cli import run

SMALL = "--layers 1 --heads 1 --width 2 --feedforward 0"
FEW = "--repeats 2 --population 16 --moves 1 --draws 64"


def report(capsys, line: str):
    assert run(["boolean", *line.split(), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_volume_reports_its_keys_and_goes_on(capsys, tmp_path) -> None:
    line = f"volume --function or --length 2 --method splitting {SMALL} {FEW} --out {tmp_path}"
    found = report(capsys, line)
    assert found["method"] == "splitting"
    assert found["log10_volume"] < 0
    assert found["error"] > 0
    assert (tmp_path / "volume.png").exists()
    assert report(capsys, line) == found
    again = report(capsys, line.replace("--length 2", "--length 2:2"))
    assert again["log10_volume"] == found["log10_volume"]
    assert run(["boolean", *line.replace("--moves 1", "--moves 2").split()]) == 2
    assert "has moves = 1 where this one has 2" in capsys.readouterr().err


def test_a_volume_that_is_not_resolved_is_bounded(capsys) -> None:
    line = f"volume --function parity --length 4 --method plain {SMALL} --draws 64"
    found = report(capsys, line)
    assert found["log10_volume"] is None
    assert found["error"] is None
    assert found["method"] == "plain"
    assert -2 < found["upper_bound"] < -1
    assert found["confidence"] == 0.95


def test_train_reports_curves(capsys, tmp_path) -> None:
    line = f"train --function or --length 2 --seeds 1 --steps 2 --batch 4 --evaluations 1 {SMALL}"
    found = report(capsys, f"{line} --out {tmp_path}")
    assert found["steps"] == [0, 2]
    assert len(found["accuracy"][0]) == 2
    assert found["wanted_profile"] == [1, 2, 1]
    assert (tmp_path / "training.png").exists()


def test_blowup_reports_exponents_and_bounds(capsys, tmp_path) -> None:
    line = f"blowup --lengths 2 --epsilons 1e-2 --models 2 --strings 2 {SMALL} --out {tmp_path}"
    (row,) = report(capsys, line)["epsilons"]
    assert row["blowup_within"]
    assert row["influence_within"]
    assert row["blowup_bound"] == pytest.approx(11)
    assert row["exponent"] is None
    assert (tmp_path / "blowup.png").exists()


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("volume --length 0", "`length` must be N or FIRST:LAST from 1 to 16, but is '0'"),
        ("volume --length 3:17", "`length` must be N or FIRST:LAST from 1 to 16, but is '3:17'"),
        ("volume --margin -1 --length 3", "`margin` must not be negative, but is -1.0"),
        ("volume --heads 3 --length 3", "`width` must be divisible by the 3 heads, but is 8"),
        ("volume --epsilon -1 --length 3", "`epsilon` must not be negative, but is -1.0"),
        ("volume --method none --length 3", "`method` must be auto, plain or splitting"),
        ("volume --function parity:9 --length 3", "a whole number n from 1 to N = 3"),
        ("train --length 30", "must be from 1 to 24 for an exact truth table, but is 30"),
        ("train --steps 0", "`steps` must be at least 1, but is 0"),
        ("blowup --models 1 --lengths 4", "must be at least 2 and 1, but are 1 and 16"),
    ],
)
def test_mistakes_are_refused_in_one_sentence(capsys, line: str, sentence: str) -> None:
    assert run(["boolean", *line.split()]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("imir: Argument")
    assert sentence in said
