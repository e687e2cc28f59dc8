"""Full models on disk: an orbax checkpoint of everything that a `Transformer` holds."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from fullmodel.frames import Frame
from fullmodel.model import Transformer, Weights

FRAME, WEIGHTS = ("tokens", "positions", "output_value"), ("key_query", "readout")


def save(path: Path, model: Transformer) -> None:
    """Write a model's frame and weights; refuses a folder that exists."""
    if Path(path).exists():
        raise ValueError(f"Argument `path` must be a new folder, but {path} exists.")
    arrays = {name: np.asarray(getattr(model, name)[...]) for name in (*FRAME, *WEIGHTS)}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(Path(path).absolute(), {**arrays, "ring": np.asarray(model.ring)})


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint, by name.

    Raises `ValueError` for a folder that is no checkpoint of a `Transformer`.
    """
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            tree = checkpointer.restore(Path(path).absolute())
    except (FileNotFoundError, ValueError):
        raise ValueError(f"Argument `path` must be a checkpoint, but {path} is none.") from None
    wanted = *FRAME, *WEIGHTS, "ring"
    if missing := [name for name in wanted if name not in tree]:
        raise ValueError(f"Argument `path` must hold the array {missing[0]!r}, but {path} has not.")
    return {name: np.asarray(tree[name]) for name in wanted}


def restore(path: Path) -> Transformer:
    """The model as it was saved; the errors are those of `arrays_of`, and of `Transformer`."""
    found = arrays_of(path)
    arrays = {name: jnp.asarray(found[name]) for name in (*FRAME, *WEIGHTS)}
    frame = Frame(*(arrays[name] for name in FRAME), ring=int(found["ring"]))
    return Transformer(frame, Weights(*(arrays[name] for name in WEIGHTS)))
