"""`imir circuits` as its users see it: files that it did not write, and bad ones."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from fullmodel.circuits import Circuits
from fullmodel.confinement import weights
from fullmodel.frames import exact_frame
from imir import Task, basis_of
from imir.cli import run

OPTIONS = {"blocks": 2, "rare_fraction": 1.0, "rare_vocabulary": 8}
MAP = """
places = "ring"
tokens = "tokens"
positions = "positions"
output_value = "output_value"
key_query = "attention"
readout = "readout"
"""
PLANTED = {"layer1.head1 () M ()": 16.0, "layer2.head1 () I (1.1)": 32.0, "output I (2.1)": 16.0}


def arrays_of(coefficients: np.ndarray) -> dict[str, np.ndarray]:
    basis = basis_of(Task("recall", **OPTIONS), 2, 1)
    W, frame = weights(basis, jnp.asarray(coefficients)), exact_frame(basis)
    frames = {n: np.asarray(getattr(frame, n)) for n in ("tokens", "positions", "output_value")}
    return {**frames, "attention": np.asarray(W.key_query), "readout": np.asarray(W.readout)}


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    names = basis_of(Task("recall", **OPTIONS), 2, 1).names
    arrays = arrays_of(np.array([PLANTED.get(name, 0.0) for name in names]))
    np.savez(folder / "model.npz", allow_pickle=False, **arrays)
    (folder / "map.toml").write_text(MAP)
    return folder


def refused(folder: Path, weights_: str = "model.npz", map_: str | None = "map.toml", **options):
    """The sentence that the command ends with; nothing is written."""
    out = folder / "out"
    place = None if map_ is None else folder / map_
    command = Circuits(**OPTIONS, weights=folder / weights_, map=place, out=out, **options)
    with pytest.raises(ValueError, match="Argument") as caught:
        command.report()
    assert not out.exists()
    return str(caught.value)


def broken(file: Path, **changes) -> str:
    """A file with other arrays; `None` leaves one out."""
    with np.load(file / "model.npz") as known:
        arrays = {**known, **changes}
    kept: dict = {k: v for k, v in arrays.items() if v is not None}
    np.savez(file / "broken.npz", **kept)
    return refused(file, "broken.npz")


def test_arrays_that_do_not_fit_are_refused(file):
    assert "'attention'" in broken(file, attention=None)
    assert "a square `readout`" in broken(file, readout=np.ones((3, 4)))
    assert "floating-point" in broken(file, readout=np.ones((60, 60), int))
    assert "finite" in broken(file, attention=np.full((2, 1, 60, 60), np.nan))


def test_mappings_and_files_that_cannot_be_read_are_refused(file):
    (file / "bad.toml").write_text(MAP + 'queries = "q"')
    assert "'queries'" in refused(file, map_="bad.toml")
    assert "there is no" in refused(file, "nowhere.npz")
    assert "which array" in refused(file, map_=None)
    assert "`ticket` must be left out" in refused(file, ticket=True)


def test_embeddings_of_low_rank_are_refused(file):
    with np.load(file / "model.npz") as known:
        tokens = np.repeat(known["tokens"][:1], len(known["tokens"]), axis=0)
    assert "rank" in broken(file, tokens=tokens)


def test_weights_that_never_saw_the_task_are_not_explained(file):
    rng = np.random.default_rng(0)
    with np.load(file / "model.npz") as known:
        noise = {n: rng.normal(size=known[n].shape) for n in ("attention", "readout")}
    assert "must have learned this task" in broken(file, **noise)


def test_a_map_needs_weights():
    with pytest.raises(ValueError, match="`map` must come with `weights`"):
        Circuits(**OPTIONS, map=Path("map.toml")).report()


@pytest.mark.slow
def test_a_model_that_learned_nothing_has_no_circuit():
    with pytest.raises(
        ValueError, match="`until` must give a model that has learned, but its loss"
    ):
        Circuits(**OPTIONS, until=1.0, start=1e-3).report()


@pytest.mark.slow
def test_a_file_is_explained(file, tmp_path):
    command = Circuits(
        **OPTIONS, weights=file / "model.npz", map=file / "map.toml", budget=1.0, out=tmp_path
    )
    data = command.report().data
    assert {u["name"] for u in data["units"]} == set(PLANTED)
    assert data["projection"]["share"] > 0.999
    assert all(Path(f).exists() for f in data["files"])
    assert json.loads((tmp_path / "report.json").read_text())["minimal"] is True
    assert "`budget` must be at least" in refused(file, budget=1e-9)


@pytest.mark.slow
def test_training_is_kept_and_used_again(tmp_path):
    command = Circuits(**OPTIONS, until=1e4, out=tmp_path)
    first = command.report().data
    when = (tmp_path / "solution.nc").stat().st_mtime_ns
    second = command.report().data
    assert (tmp_path / "solution.nc").stat().st_mtime_ns == when
    assert first["units"] == second["units"]
    with pytest.raises(ValueError, match="`out` must hold this training run"):
        Circuits(**OPTIONS, until=2e4, out=tmp_path).report()


@pytest.mark.slow
def test_a_trained_transformer_is_three_directions(tmp_path, capsys):
    """Width 256, random embeddings, maps and weights, Adam: nothing is on the manifold at first."""
    task = "--task recall --rare-fraction 1 --vocabulary 64 --rare-vocabulary 64"
    train = f"train {task} --width 256 --optimizer adam --out {tmp_path}"
    assert run(train.split()) == 0
    capsys.readouterr()
    assert run(f"circuits {task} --weights {tmp_path / 'model'} --json".split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert [unit["name"] for unit in found["units"]] == [
        "layer1.head1 () M ()", "layer2.head1 () I (1.1)", "output I (2.1)"
    ]  # fmt: skip
    assert found["projection"]["share"] > 0.8
