"""How far a run of a full model goes off the manifold (arXiv 2607.11875, Theorem 1).

At each record, for each head and the readout: the share of the weights, of their movement since the
start, and of the gradient that lies in the span of Theorem 1, built in the network's own embedding
(`confinement.span`). Beside each share stands that of as many random directions.

Shapes: `T` records, `E` basis elements, `M` matrices: L · H heads, and the readout last.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, Int, Key

from fullmodel.confinement.own_basis import Projection, matrices_of
from fullmodel.confinement.span import Span, captured, span_of
from fullmodel.model import Transformer, right_answers
from fullmodel.train.steps import value_and_gradient
from fullmodel.weights import network_of
from imir.basis import Basis
from imir.scores import questions
from imir.tasks.outcomes import odds, sample
from imir.tasks.task import Task

# Prompts behind the gradient, the loss and each score.
PROMPTS = 512
# What a row has for each matrix, and for all together.
SHARES = ("weights", "movement", "gradient", "chance")

Row = dict[str, Any]


@dataclass(frozen=True)
class Departure:
    """What was measured along a run; shares are squared norms, 1 on the manifold.

    `loss` in nats or squared logits, `icl` and `iwl` probabilities of the right answer, NaN where
    the task has no such query. The gradient's share is NaN where key-query matrices are factorised.
    The last of the `M` shares is that of all matrices together, whose Frobenius norm is `norm`, and
    `distance` that of their movement. `defect` is the sine of the angle
    between the embedding's Gram matrix and that of an orthonormal frame.
    """

    names: tuple[str, ...]
    matrices: tuple[str, ...]
    steps: Int[np.ndarray, " T"]
    loss: Float[np.ndarray, " T"]
    icl: Float[np.ndarray, " T"]
    iwl: Float[np.ndarray, " T"]
    coordinates: Float[np.ndarray, "T E"]
    weights: Float[np.ndarray, "T M"]
    movement: Float[np.ndarray, "T M"]
    gradient: Float[np.ndarray, "T M"]
    chance: Float[np.ndarray, "T M"]
    norm: Float[np.ndarray, " T"]
    distance: Float[np.ndarray, " T"]
    defect: Float[np.ndarray, " T"]

    def to_xarray(self) -> xr.Dataset:
        """Everything as a Dataset with named coordinates and units."""
        series = {"loss": "nats or squared logits", "icl": "probability", "iwl": "probability"}
        series |= {"norm": "1", "distance": "1", "defect": "1"}
        data: dict[str, Any] = {
            name: ("step", getattr(self, name), {"units": unit}) for name, unit in series.items()
        }
        data["coordinates"] = ("step", "coordinate"), self.coordinates, {"units": "1"}
        for name in SHARES:
            data[name] = ("step", "matrix"), getattr(self, name), {"units": "squared norm"}
        axes = {"step": self.steps, "coordinate": list(self.names), "matrix": list(self.matrices)}
        return xr.Dataset(data, axes)


def departure_of(basis: Basis, rows: list[Row]) -> Departure:
    """The rows of a meter as arrays."""
    matrices = *matrices_of(basis.layers, basis.heads), "all"
    columns = {key: np.array([row[key] for row in rows], float) for key in rows[0]}
    steps = columns.pop("step").astype(int)
    return Departure(basis.names, matrices, steps, **columns)


def meter_of(
    task: Task, basis: Basis, start: Transformer, key: Key[Array, ""]
) -> Callable[[int, Transformer], Row]:
    """Measures a model of the run that begins at `start`: a row of numbers, ready for JSON."""
    keys = jax.random.split(key, 3)
    prompts = sample(task, keys[0], PROMPTS, odds(task))
    asked = [
        None if q is None else sample(q[0], k, PROMPTS, odds(q[0]), q[1])
        for q, k in zip(questions(task), keys[1:], strict=True)
    ]
    fixed = _span(basis, start) if _is_fixed(start) else None
    W, R = _matrices(start)

    def meter(step: int, model: Transformer) -> Row:
        span = fixed or _span(basis, model)
        loss, gradient = value_and_gradient(model, prompts)
        key_query, readout = _matrices(model)
        here = captured(span, key_query, readout)
        moved = key_query - W, readout - R
        icl, iwl = (np.nan if p is None else float(right_answers(model, p)) for p in asked)
        return {
            "step": step,
            "loss": float(loss),
            "icl": icl,
            "iwl": iwl,
            "coordinates": here.coefficients.tolist(),
            "weights": here.shares,
            "movement": _of_movement(span, *moved),
            "gradient": _of_gradient(span, gradient, here),
            "chance": here.chances,
            "norm": _norm(key_query, readout),
            "distance": _norm(*moved),
            "defect": span.defect,
        }

    return meter


def _is_fixed(model: Transformer) -> bool:
    """Is nothing trained that the span is built from?"""
    w = model.weights
    return w.tokens is None and w.positions is None and w.output_value is None


def _span(basis: Basis, model: Transformer) -> Span:
    return span_of(basis, network_of(model, basis))


def _matrices(model: Transformer) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(model.merged, np.float64), np.asarray(model.readout[...], np.float64)


def _norm(*matrices: np.ndarray) -> float:
    return float(np.sqrt(sum(np.sum(x**2) for x in matrices)))


def _of_movement(span: Span, key_query: np.ndarray, readout: np.ndarray) -> list[float]:
    """NaN for what has not moved."""
    return [share or np.nan for share in captured(span, key_query, readout).shares]


def _of_gradient(span: Span, gradient, here: Projection) -> list[float]:
    if gradient.key_query is None:
        return [np.nan] * len(here.shares)
    parts = (np.asarray(x, np.float64) for x in (gradient.key_query, gradient.readout))
    return captured(span, *parts).shares
