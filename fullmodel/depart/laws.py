"""How departures from the theorem's assumptions fall: with the batch, and with the width.

- Noise of batches moves weights off the manifold by a distance ∝ batch^(−1/2) in a fixed number of
  steps at a fixed rate: each step's noise is that of a mean.
- In random frames inner products are off by about 1/√d, and so are the logits of one prompt.
- The *expected* gradient's part off the span falls with d at a rate that is measured, not assumed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key

from fullmodel.architecture import Architecture, Embedding
from fullmodel.confinement.measures import reduced_logits
from fullmodel.confinement.orbits import orbit_of, smallest
from fullmodel.confinement.projection import lifted, off_span
from fullmodel.confinement.span import captured, span_of
from fullmodel.frames import frame_of
from fullmodel.model import Transformer
from fullmodel.train.recipe import Recipe
from fullmodel.train.run import Setting, run
from fullmodel.train.steps import value_and_gradient
from fullmodel.weights import network_of
from imir.basis import Basis, basis_of
from imir.tasks.outcomes import odds, sample
from imir.tasks.task import Task
from imir.ties import free

BATCHES = (16, 32, 64, 128, 256, 512)
WIDTHS = (64, 128, 256, 512, 1024)
# Of random coordinates: scores of about one, so that softmaxes are neither flat nor saturated.
SCALE = 0.1
TASK = Task("recall", 3, rare_fraction=1.0, rare_vocabulary=11)


@dataclass(frozen=True)
class Law:
    """A measured power law y ∝ x^exponent, `expected` where theory has an exponent.

    `y` are root mean squares over `repeats` seeds; `error` is the fit's standard error.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    repeats: int
    exponent: float
    error: float
    expected: float | None

    def __str__(self) -> str:
        theory = "" if self.expected is None else f" (theory {self.expected:g})"
        values = ", ".join(f"{x:g}: {y:.2g}" for x, y in zip(self.x, self.y, strict=True))
        return f"{self.name}: exponent {self.exponent:.3f} ± {self.error:.3f}{theory}; {values}"


def law_of(
    name: str, x: Sequence[float], y: Float[np.ndarray, "X R"], expected: float | None
) -> Law:
    """Least squares of log y over log x, with an intercept for each repeat."""
    logs = np.log(x) - np.mean(np.log(x)), np.log(y) - np.mean(np.log(y), axis=0)
    across, up = np.repeat(logs[0], y.shape[1]), logs[1].ravel()
    slope = across @ up / (across @ across)
    freedom = up.size - y.shape[1] - 1
    error = np.sqrt(np.sum((up - slope * across) ** 2) / freedom / (across @ across))
    rms = np.sqrt(np.mean(y**2, axis=1)).tolist()
    return Law(
        name, tuple(map(float, x)), tuple(rms), y.shape[1], float(slope), float(error), expected
    )


def all_laws(bar: Callable[[Iterable], Iterable] = iter) -> list[Law]:
    """Over batch size; over width, in both random embeddings, of logits and of the gradient."""
    random: tuple[Embedding, ...] = ("gaussian", "sinusoidal")
    of = [batch_law, *(partial(law, e) for law in (width_law, gradient_law) for e in random)]
    return [law() for law in bar(of)]


def batch_law(batches: Sequence[int] = BATCHES, repeats: int = 4, steps: int = 20) -> Law:
    """Distance from the manifold after some steps of SGD from a point of it, against the batch."""
    return law_of(
        "distance from the manifold over batch size",
        batches,
        np.array([[_drift(batch, seed, steps) for seed in range(repeats)] for batch in batches]),
        -0.5,
    )


def _drift(batch: int, seed: int, steps: int) -> float:
    recipe = Recipe("sgd", 1.0, steps, batch)
    setting = Setting(TASK, Architecture(), recipe, "manifold", 0.5, seed=seed)
    moved = jax.tree.map(
        jnp.subtract, run(setting, records=1).model.weights, setting.model().weights
    )
    return float(optax.tree.norm(off_span(setting.basis, moved)))


def width_law(embedding: Embedding, widths: Sequence[int] = WIDTHS, repeats: int = 4) -> Law:
    """Error of a prompt's logits against the reduced model, relative to their size."""
    return _over_widths(
        f"error of logits over width, {embedding}", embedding, _error, widths, repeats, -0.5
    )


def gradient_law(embedding: Embedding, widths: Sequence[int] = WIDTHS, repeats: int = 4) -> Law:
    """Part of the expected gradient's norm that is off the network's own span."""
    name = f"residual of the expected gradient over width, {embedding}"
    return _over_widths(name, embedding, _residual, widths, repeats, None)


def _over_widths(
    name: str, embedding: Embedding, measure: Callable, widths, repeats, expected
) -> Law:
    basis = basis_of(smallest(TASK), 2, 1)
    values = [
        [measure(basis, embedding, d, jax.random.key(seed)) for seed in range(repeats)]
        for d in widths
    ]
    return law_of(name, widths, np.array(values), expected)


def _model(basis: Basis, embedding: Embedding, width: int, key: Key[Array, ""]):
    """Coordinates, and the model that they make in a random frame."""
    keys = jax.random.split(key)
    theta = SCALE * jax.random.normal(keys[0], (len(basis.elements),))
    architecture = Architecture(
        width=width, embedding=embedding, positions="sinusoidal", output_value="orthogonal"
    )
    frame = frame_of(basis, architecture, keys[1])
    return theta, Transformer(frame, lifted(basis, frame, theta), architecture)


def _error(basis: Basis, embedding: Embedding, width: int, key: Key[Array, ""]) -> float:
    theta, model = _model(basis, embedding, width, key)
    task = smallest(TASK)
    prompts = sample(task, jax.random.fold_in(key, 1), 64, odds(task))
    wanted = reduced_logits(free(basis), theta, prompts)
    return float(jnp.linalg.norm(model(prompts) - wanted) / jnp.linalg.norm(wanted))


def _residual(basis: Basis, embedding: Embedding, width: int, key: Key[Array, ""]) -> float:
    _, model = _model(basis, embedding, width, key)
    prompts, _ = orbit_of(smallest(TASK), jax.random.key(0))
    _, gradient = value_and_gradient(model, prompts)
    span = span_of(basis, network_of(model, basis))
    parts = (np.asarray(x, float) for x in (gradient.key_query, gradient.readout))
    return float(np.sqrt(1 - captured(span, *parts).share))
