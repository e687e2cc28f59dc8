"""Full models on disk: an orbax checkpoint of everything that a `Transformer` holds."""

from dataclasses import asdict
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax import nnx

from fullmodel.architecture import Architecture
from fullmodel.frames import Frame
from fullmodel.model import NAMES, Transformer, Weights, shapes

FRAME = ("tokens", "positions", "output_value")


def save(path: Path, model: Transformer) -> None:
    """Write a model's arrays and its architecture; refuses a folder that exists."""
    if Path(path).exists():
        raise ValueError(f"Argument `path` must be a new folder, but {path} exists.")
    held = {name: getattr(model, name, None) for name in (*FRAME, *NAMES)}
    arrays = {name: np.asarray(x[...]) for name, x in held.items() if isinstance(x, nnx.Variable)}
    about = {"architecture": asdict(model.architecture), "ring": model.ring}
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        items = {"arrays": ocp.args.StandardSave(arrays), "about": ocp.args.JsonSave(about)}
        checkpointer.save(Path(path).absolute(), ocp.args.Composite(**items))


def restore(path: Path) -> Transformer:
    """The model as it was saved, with matrix products in the weights' own precision.

    Raises `ValueError` for a folder that is no checkpoint of a `Transformer`, and where arrays are
    missing or do not fit.
    """
    arrays, about = _read(Path(path).absolute())
    architecture = Architecture(**about["architecture"])
    held = {name: jnp.asarray(array) for name, array in arrays.items()}
    if missing := [name for name in (*FRAME, "readout") if name not in held]:
        raise ValueError(f"Argument `path` must hold the array {missing[0]!r}, but {path} has not.")
    frame = Frame(*(held[name] for name in FRAME), ring=about["ring"])
    trained = {name: held.get(name) for name in shapes(frame, architecture)}
    return Transformer(frame, Weights(**{"key_query": None, **trained}), architecture)


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict]:
    items = {"arrays": ocp.args.StandardRestore(), "about": ocp.args.JsonRestore()}
    try:
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
            found = checkpointer.restore(path, ocp.args.Composite(**items))
    except (FileNotFoundError, KeyError, ValueError):
        raise ValueError(f"Argument `path` must be a checkpoint, but {path} is none.") from None
    return found["arrays"], found["about"]
