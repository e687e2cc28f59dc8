"""Weights from files to coordinates: this package's checkpoints, safetensors and `.npz`."""

import re
from collections.abc import Mapping as Arrays
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from safetensors.numpy import load_file

from fullmodel.checkpoint import restore
from fullmodel.confinement.own_basis import Network, Projection, project_own
from fullmodel.confinement.span import captured, span_of
from fullmodel.mapping import AXES, OWN, Mapping, Place, Places
from fullmodel.model import Transformer
from imir.basis import Basis


def coordinates_of(
    weights: Path | Arrays[str, np.ndarray] | Transformer,
    basis: Basis,
    mapping: Mapping | None = None,
) -> Projection:
    """Coordinates of a model by least squares in its own basis, and what share of it they explain.

    `weights` are a model of this package or its checkpoint, whose coordinates are those of the span
    that training keeps to (`confinement.span`); or a file (safetensors or `.npz`) or arrays by
    name, read by what their scores are (`confinement.own_basis`), which need a `mapping` (see
    `fullmodel.mapping`). The two are one where embeddings are orthonormal. Raises `ValueError`
    where an array is missing, has a wrong shape or dtype or numbers that are not finite, and where
    a file's embeddings have too low a rank.
    """
    opened = _opened(weights, mapping)
    network = network_of(opened, basis, mapping)
    if not isinstance(opened, Transformer):
        return project_own(basis, network)
    W, R = (np.asarray(x, np.float64) for x in (opened.merged, opened.readout[...]))
    return captured(span_of(basis, network), W, R)


def _opened(weights: Path | Arrays[str, np.ndarray] | Transformer, mapping: Mapping | None):
    """The model of a checkpoint; anything else as it is."""
    if isinstance(weights, Arrays | Transformer) or not Path(weights).is_dir():
        return weights
    if mapping is not None:
        raise ValueError(f"Argument `map` must be left out with a checkpoint such as {weights}.")
    return restore(weights)


def network_of(
    weights: Path | Arrays[str, np.ndarray] | Transformer,
    basis: Basis,
    mapping: Mapping | None = None,
) -> Network:
    """What coordinates are about, in float64; errors as in `coordinates_of`."""
    weights = _opened(weights, mapping)
    if isinstance(weights, Transformer):
        return _network(weights, basis)
    if isinstance(weights, Arrays):
        return _assembled(weights, basis, _needed(mapping, "arrays"))
    path = Path(weights)
    mapping = _needed(mapping, path.name)
    return _assembled(read_arrays(path), basis, mapping)


def _needed(mapping: Mapping | None, name: str) -> Mapping:
    if mapping is None:
        raise ValueError(f"Argument `map` must say which array of {name} is which, but is None.")
    return mapping


def _network(model: Transformer, basis: Basis) -> Network:
    """A model of this package, of any architecture; norms and feed-forward layers are left out."""
    held = {name: getattr(model, name, None) for name in OWN.arrays} | {"key_query": model.merged}
    arrays = {name: np.asarray(x[...]) for name, x in held.items() if x is not None}
    ordinary = model.architecture.positions == "absolute"
    return _assembled(arrays, basis, replace(OWN, places="consecutive") if ordinary else OWN)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """All arrays of a `.safetensors` or `.npz` file, by name."""
    if path.suffix not in (".safetensors", ".npz"):
        raise ValueError(
            f"Argument `weights` must be a .safetensors or .npz file or a checkpoint's folder, "
            f"but is {path}."
        )
    if not path.is_file():
        raise ValueError(f"Argument `weights` must be a file, but there is no {path}.")
    try:
        return load_file(path) if path.suffix == ".safetensors" else _npz(path)
    except Exception as error:  # Whatever the two libraries raise for broken files.
        raise ValueError(
            f"Argument `weights` must be a readable file, but {path}: {error}."
        ) from None


def _npz(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _assembled(arrays: Arrays[str, np.ndarray], basis: Basis, mapping: Mapping) -> Network:
    read = {
        name: _array(arrays, name, place, basis, mapping) for name, place in mapping.arrays.items()
    }
    tokens = _rows(read["tokens"], "tokens", basis, mapping)
    if "readout" in read:
        if read["readout"].shape != (tokens.shape[1],) * 2:
            raise _wrong("a square `readout` as wide as `tokens`", read["readout"].shape)
        unembedding = tokens @ read["readout"]
    else:
        unembedding = _rows(read["unembedding"], "unembedding", basis, mapping)
    places = _places(basis, mapping.places, len(read["positions"]))
    positions = read["positions"][: len(places)]
    return Network(tokens, positions, places, _scores(read, mapping), _writing(read), unembedding)


def _array(arrays, name: str, place: Place, basis: Basis, mapping: Mapping):
    """One part of a model with its axes in the order of `AXES`, from all arrays that hold it."""
    counts = {"layer": basis.layers, "head": basis.heads}
    counted = [axis for axis in counts if f"{{{axis}}}" in place.array]
    numbers = product(*(range(mapping.first, mapping.first + counts[axis]) for axis in counted))
    parts = [
        _one(arrays, name, place, place.array.format(**dict(zip(counted, n, strict=True))), counts)
        for n in numbers
    ]
    if len({part.shape for part in parts}) > 1:
        raise _wrong(f"equal shapes in all arrays of `{name}`", [part.shape for part in parts])
    return np.stack(parts).reshape(*(counts[axis] for axis in counted), *parts[0].shape)


def _one(arrays, name: str, place: Place, array: str, counts: dict[str, int]):
    if array not in arrays:
        raise _wrong(f"the array {array!r} for `{name}`", ", ".join(sorted(arrays)) or "none")
    found = np.asarray(arrays[array])
    if found.dtype.kind != "f" and found.dtype.name != "bfloat16":
        raise _wrong(f"floating-point numbers in {array!r}", found.dtype)
    found = found.astype(np.float64)
    if not np.all(np.isfinite(found)):
        raise _wrong(f"finite numbers in {array!r}", f"{np.sum(~np.isfinite(found))} that are not")
    return _ordered(found, name, array, place.axes, counts)


def _ordered(found, name: str, array: str, axes: str, counts: dict[str, int]):
    """Split axes in parentheses, and put all in the order of `AXES`."""
    groups = [(a or b).split() for a, b in re.findall(r"\(([^)]*)\)|(\w+)", axes)]
    wanted = f"axes {axes} in {array!r}" + "".join(
        f", {counts[axis]} of {axis}" for axis in counts if axis in axes
    )
    if len(groups) != found.ndim:
        raise _wrong(wanted, f"the shape {found.shape}")
    sizes = [
        size
        for n, group in zip(found.shape, groups, strict=True)
        for size in _split(n, group, counts)
    ]
    names = [axis for group in groups for axis in group]
    if np.prod(sizes) != found.size or any(
        n != counts.get(axis, n) for axis, n in zip(names, sizes, strict=True)
    ):
        raise _wrong(wanted, f"the shape {found.shape}")
    order = [names.index(axis) for axis in AXES[name].split() if axis in names]
    return found.reshape(sizes).transpose(order)


def _split(size: int, group: list[str], counts: dict[str, int]) -> list[int]:
    """Sizes of the axes that stand in one; the one that is not counted takes what is left."""
    if len(group) == 1:
        return [size]
    known = int(np.prod([counts[axis] for axis in group if axis in counts]))
    return [counts.get(axis, size // known) for axis in group]


def _rows(found: Float[np.ndarray, "R d"], name: str, basis: Basis, mapping: Mapping):
    """The rows of the basis' tokens."""
    V = basis.configuration.first(len(basis.classes))
    rows = np.array(mapping.vocabulary or range(len(found)))
    if len(rows) != V or max(rows) >= len(found):
        source = "`vocabulary` of the map" if mapping.vocabulary else f"`{name}`"
        raise _wrong(f"a row for each of {V} tokens of the task", f"{len(rows)} in {source}")
    return found[rows]


def _places(basis: Basis, kind: Places, rows: int) -> Int[np.ndarray, " p"]:
    """Place of each row of the positions; rows beyond the task's blocks are left out."""
    K, slots = basis.positions.motif.size, basis.positions.copies
    if kind == "ring":
        if rows != basis.positions.size:
            raise _wrong(f"{slots} · {K} rows of `positions`, a ring for each block", rows)
        return np.arange(rows)
    k = basis.block_size
    if rows <= (slots - 1) * k:
        raise _wrong(f"more than {(slots - 1) * k} rows of `positions` for this task", rows)
    place = np.arange(min(rows, slots * k))
    return place // k * K + place % k


def _scores(read: dict[str, np.ndarray], mapping: Mapping) -> Float[np.ndarray, "L H d d"]:
    """W = W_Q W_Kᵀ, scaled as the model's scores are."""
    if "key_query" in read:
        return read["key_query"] * (1.0 if mapping.scale is None else mapping.scale)
    query, key = read["query"], read["key"]
    if query.shape != key.shape:
        raise _wrong("`query` and `key` of one shape", f"{query.shape} and {key.shape}")
    scale = query.shape[-1] ** -0.5 if mapping.scale is None else mapping.scale
    return scale * query @ key.swapaxes(-1, -2)


def _writing(read: dict[str, np.ndarray]) -> Float[np.ndarray, "L H d d"]:
    """V, where a head writes V x."""
    if "output_value" in read:
        return read["output_value"]
    value, output = read["value"], read["output"]
    if value.shape[:-2] + value.shape[:-3:-1] != output.shape:
        raise _wrong("`value` and `output` of matching shapes", f"{value.shape} and {output.shape}")
    return (value @ output).swapaxes(-1, -2)


def _wrong(wanted: object, found: object) -> ValueError:
    return ValueError(f"Argument `weights` must have {wanted}, but has {found}.")
