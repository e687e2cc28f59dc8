"""Models that this package did not make, to coordinates and back; files that do not fit."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_basis
from safetensors.numpy import save_file

from fullmodel import confinement
from fullmodel.architecture import Architecture
from fullmodel.checkpoint import restore, save
from fullmodel.confinement.own_basis import Network, project_own
from fullmodel.mapping import Mapping, mapping_of, read_mapping
from fullmodel.train.run import Setting
from fullmodel.weights import coordinates_of, network_of
from imir.basis import basis_of
from imir.tasks.outcomes import odds, sample
from imir.tasks.task import Task

pytestmark = pytest.mark.usefixtures("float64")

BASIS = small_basis(2, 1)
TASK = Task("recall", 3, rare_fraction=1.0, rare_vocabulary=7)
LEARNED = """
tokens = "embed"
positions = "place"
unembedding = {array = "head", axes = "model token"}
query = {array = "layers.{layer}.q", axes = "(head inner) model"}
key = {array = "layers.{layer}.k", axes = "(head inner) model"}
value = "layers.{layer}.{head}.v"
output = "layers.{layer}.{head}.o"
first = 1
"""


def random(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=len(BASIS.elements))


@cache
def planted() -> Network:
    """The exact frame with random coordinates."""
    with jax.enable_x64(True):
        return network_of(confinement.at(BASIS, jnp.asarray(random())), BASIS)


def rotated(network: Network, Q: np.ndarray) -> Network:
    return replace(
        network,
        tokens=network.tokens @ Q.T,
        positions=network.positions @ Q.T,
        key_query=Q @ network.key_query @ Q.T,
        output_value=Q @ network.output_value @ Q.T,
        unembedding=network.unembedding @ Q.T,
    )


def rotation(d: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(3).normal(size=(d, d)))[0]


def test_a_rotated_model_with_noise_keeps_its_coordinates():
    generator, d = np.random.default_rng(1), planted().tokens.shape[1]
    turned = rotated(planted(), rotation(d))
    noise = generator.normal(size=turned.key_query.shape)
    noise *= 0.1 * np.linalg.norm(turned.key_query) / np.linalg.norm(noise)
    found = project_own(BASIS, replace(turned, key_query=turned.key_query + noise))
    plain = project_own(BASIS, turned)
    np.testing.assert_allclose(plain.coefficients, random(), rtol=0, atol=1e-10)
    np.testing.assert_allclose(plain.explained, 1, rtol=1e-9)
    assert plain.explained_output == pytest.approx(1)
    assert plain.defect < 1e-7
    assert found.names == BASIS.names
    assert np.abs(found.coefficients - random()).max() < 0.1
    assert found.share == pytest.approx(1 / 1.01, rel=0.02)
    assert not found.strange
    assert f"all weights: {found.share:.4f} explained" in str(found)


def test_random_weights_are_strange_and_explained_by_chance():
    generator = np.random.default_rng(2)
    weights = {
        name: generator.normal(size=getattr(planted(), name).shape)
        for name in ("key_query", "unembedding")
    }
    found = project_own(BASIS, replace(planted(), **weights))
    assert found.strange
    assert found.share < 5 * found.expected_share
    assert "next to nothing" in str(found)
    d = planted().tokens.shape[1]
    heads = [sum(e.layer == layer for e in BASIS.elements) for layer in (1, 2)]
    np.testing.assert_allclose(found.expected[:, 0], np.array(heads) / d**2)


def learned(generator: np.random.Generator) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """A model with learned embeddings and maps, in float32 arrays, whose coordinates are known.

    Places are consecutive: two for each of three blocks.
    """
    d, V = 40, 6
    embed, place = generator.normal(size=(V, d)), generator.normal(size=(6, d))
    rows = np.concatenate([embed, place])
    values = np.linalg.qr(generator.normal(size=(2, d, d)))[0]
    frames = [rows]
    for v in values:
        frames += [F @ v for F in list(frames)]
    duals = [np.linalg.pinv(F).T for F in frames]
    kept = np.append(np.arange(V), V + np.arange(15).reshape(3, 5)[:, :2].ravel())
    S = BASIS.configuration.dense(BASIS.values)[:, kept[:, None], kept]
    theta, paths = generator.normal(size=len(BASIS.elements)), BASIS.paths(3)
    W, U = np.zeros((2, d, d)), np.zeros((V, d))
    for e, t in zip(BASIS.elements, theta, strict=True):
        u, v = duals[paths.index(e.query_path)], duals[paths.index(e.key_path)]
        if e.head is None:
            U += t * S[e.selection][:V] @ v
        else:
            W[e.layer - 1] += t * u.T @ S[e.selection] @ v
    arrays = {"embed": embed, "place": place, "head": U.T}
    for layer, (w, v) in enumerate(zip(W, values, strict=True), 1):
        left, scales, right = np.linalg.svd(w)
        arrays[f"layers.{layer}.q"] = (left * scales).T * d**0.5
        arrays[f"layers.{layer}.k"] = right
        arrays[f"layers.{layer}.1.v"], arrays[f"layers.{layer}.1.o"] = v, np.eye(d)
    return {k: np.ascontiguousarray(x, np.float32) for k, x in arrays.items()}, theta


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_a_file_with_learned_embeddings_gives_its_coordinates(kind: str, tmp_path: Path):
    arrays, theta = learned(np.random.default_rng(5))
    weights, map_file = tmp_path / f"model.{kind}", tmp_path / "map.toml"
    save = {
        "npz": lambda: np.savez(weights, **arrays),  # pyright: ignore[reportArgumentType]
        "safetensors": lambda: save_file(arrays, weights),
    }
    save[kind]()
    map_file.write_text(LEARNED)
    found = coordinates_of(weights, BASIS, read_mapping(map_file))
    np.testing.assert_allclose(found.coefficients, theta, rtol=0, atol=1e-3)
    assert found.share == pytest.approx(1, abs=1e-5)
    assert 0.1 < found.defect < 1


def test_checkpoints_come_back_and_give_coordinates(tmp_path: Path):
    model = confinement.at(BASIS, jnp.asarray(random()))
    save(tmp_path / "checkpoint", model)
    again = restore(tmp_path / "checkpoint")
    for here, there in zip(
        jax.tree.leaves(model.weights), jax.tree.leaves(again.weights), strict=True
    ):
        assert (here == there).all()
    found = coordinates_of(tmp_path / "checkpoint", BASIS)
    np.testing.assert_allclose(found.coefficients, random(), rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match=r"^Argument `path` must be a new folder, but .* exists.$"):
        save(tmp_path / "checkpoint", model)
    with pytest.raises(ValueError, match=r"^Argument `map` must be left out with a checkpoint .*"):
        coordinates_of(tmp_path / "checkpoint", BASIS, merged()[1])
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        ValueError, match=r"^Argument `path` must be a checkpoint, but .* is none.$"
    ):
        restore(tmp_path / "empty")


def test_checkpoints_hold_any_architecture(tmp_path: Path):
    architecture = Architecture(
        2, 2, 32, "learned", "absolute", "learned", key_query="factorised", norm="rms",
        feed_forward=8,
    )  # fmt: skip
    model = Setting(TASK, architecture).model()
    save(tmp_path / "checkpoint", model)
    again = restore(tmp_path / "checkpoint")
    assert again.architecture == architecture
    prompts = sample(TASK, jax.random.key(0), 4, odds(TASK))
    assert (again(prompts) == model(prompts)).all()
    found = coordinates_of(tmp_path / "checkpoint", basis_of(TASK, 2, 2))
    assert 0 < found.share < 1


def merged() -> tuple[dict[str, np.ndarray], Mapping]:
    """The planted model as arrays, under the names of the parts."""
    names = {n: n for n in ("tokens", "positions", "key_query", "output_value", "unembedding")}
    arrays = {name: np.array(getattr(planted(), name)) for name in names}
    return arrays, mapping_of({**names, "places": "ring"})


def change(name: str, value: Any) -> dict[str, np.ndarray]:
    return {**merged()[0], name: value}


def test_arrays_by_name_are_enough():
    found = coordinates_of(merged()[0], BASIS, merged()[1])
    np.testing.assert_allclose(found.coefficients, random(), rtol=0, atol=1e-10)


NAN = np.full((2, 1, 84, 84), np.nan)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("tokens", None, r"must have the array 'tokens' for `tokens`, but has key_query, .*"),
        ("tokens", np.zeros((6, 84), int), r"must have floating-point .* 'tokens', but has int64."),
        ("key_query", NAN, r"must have finite numbers in 'key_query', but has 14112 that are not."),
        ("key_query", np.zeros((3, 1, 84, 84)), r"must have axes .*, but has the shape .*"),
        ("key_query", np.zeros((84, 84)), r"must have axes .*, but has the shape \(84, 84\)."),
        ("positions", np.zeros((7, 84)), r"must have 3 · 5 rows of `positions`, .*, but has 7."),
        ("tokens", np.zeros((9, 84)), r"must have a row for each of 6 tokens .*, but has 9 .*"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(name: str, value: Any, message: str):
    arrays = change(name, value)
    if value is None:
        del arrays[name]
    with pytest.raises(ValueError, match=f"^Argument `weights` {message}$"):
        coordinates_of(arrays, BASIS, merged()[1])


def test_embeddings_of_deficient_rank_are_refused():
    tokens = planted().tokens.copy()
    tokens[1] = tokens[0]
    message = r"^Argument `network` must embed 21 tokens and places independently, but .* rank 17.$"
    with pytest.raises(ValueError, match=message):
        project_own(BASIS, replace(planted(), tokens=tokens))


def test_files_that_cannot_be_read_are_refused(tmp_path: Path):
    broken, other = tmp_path / "model.npz", tmp_path / "model.pt"
    broken.write_text("nothing")
    for path, message in [
        (broken, "must be a readable file, but .*"),
        (other, "must be a .safetensors or .npz file or a checkpoint's folder, but is .*"),
        (tmp_path / "no.npz", "must be a file, but there is no .*"),
    ]:
        with pytest.raises(ValueError, match=f"^Argument `weights` {message}$"):
            coordinates_of(path, BASIS, merged()[1])
    with pytest.raises(ValueError, match=r"^Argument `map` must say which array of model.npz .*"):
        coordinates_of(broken, BASIS)


FULL = {n: n for n in ("tokens", "positions", "key_query", "output_value", "unembedding")}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({**FULL, "bias": "b"}, "have keys among tokens, .*, but has 'bias'."),
        ({**FULL, "tokens": 3}, "name an array for `tokens`, but has 3."),
        ({**FULL, "tokens": {"array": "a", "axis": ""}}, ".* for `tokens`, but has 'axis'."),
        ({**FULL, "tokens": {"array": "a", "axes": "token"}}, "give `tokens` the axes token .*"),
        ({**FULL, "query": "q", "key": "k"}, "name arrays for scores, either `key_query` or .*"),
        ({k: v for k, v in FULL.items() if k != "unembedding"}, "name arrays for logits, .*"),
        ({k: v for k, v in FULL.items() if k != "positions"}, ".*`positions`, but has none."),
        ({**FULL, "places": "far"}, "have `places` consecutive or ring, but has 'far'."),
        ({**FULL, "scale": "big"}, "have a number for `scale`, but has 'big'."),
        ({**FULL, "first": -1}, "have a number from 0 on for `first`, but has -1."),
        ({**FULL, "vocabulary": [0.5]}, "have a list of row numbers .*, but has .*"),
    ],
)  # fmt: skip
def test_mappings_that_do_not_fit_are_refused(given: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=f"^Argument `map` must {message}$"):
        mapping_of(given)


def test_a_mapping_that_is_no_toml_is_refused(tmp_path: Path):
    (tmp_path / "map.toml").write_text("tokens = ")
    with pytest.raises(ValueError, match=r"^Argument `map` must be a TOML file, but .*"):
        read_mapping(tmp_path / "map.toml")
