"""Steps of a training run against a bare loop of its matrix products.

The bare loop knows no softmax, no norm, no optimiser and no sampling: forward and backward products
of one batch of random streams, and weights that follow their gradient.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fullmodel.architecture import Architecture
from fullmodel.bench.timing import peak, seconds
from fullmodel.model import Transformer, Weights
from fullmodel.train.recipe import Recipe
from fullmodel.train.run import Setting, begun
from imir.tasks.task import Task

SIZES = (1024, 2048, 4096)
# Of the bare loop: small, so that its numbers stay finite.
RATE = 1e-6


@dataclass(frozen=True)
class Speed:
    """Steps in a second of a run, and of the bare loop, at width `d` on `n` places.

    `share` of the machine's `peak`, a matrix product's operations in a second; `products` names
    the numbers in products, float32 where it is `None`.
    """

    width: int
    places: int
    batch: int
    products: str | None
    steps: float
    bare: float
    flops: float
    peak: float

    @property
    def share(self) -> float:
        return self.flops * self.steps / self.peak


def setting_of(width: int, products=None, blocks: int = 16, batch: int = 128) -> Setting:
    """Two layers in a random frame, trained by Adam on associative recall."""
    task = Task("recall", blocks, rare_fraction=1.0, rare_vocabulary=64)
    architecture = Architecture(
        width=width, embedding="gaussian", positions="sinusoidal", output_value="orthogonal"
    )
    return Setting(task, architecture, Recipe("adam", 1e-3, batch=batch, products=products))


def speed(setting: Setting, count: int, repeats: int = 5) -> Speed:
    """Both loops, `count` steps in each call, interleaved; the fastest of the repeats."""
    begin, advance, model_of = begun(setting)
    model, batch = model_of(begin), setting.recipe.batch
    shape = batch, setting.task.length, model.readout.shape[0]
    X = jax.random.normal(jax.random.key(0), shape) / jnp.sqrt(shape[-1])
    calls = {
        "steps": lambda: advance(begin, count)[1],
        "bare": lambda: _bare(model, model.weights, X, count),
    }
    best = fastest(calls, repeats)
    flops = _flops(model, X)
    most = peak(setting.recipe.products or "float32", SIZES, 0.2)
    sizes = shape[2], shape[1], batch, setting.recipe.products
    return Speed(*sizes, count / best["steps"], count / best["bare"], flops, most)


def fastest(calls: dict[str, Callable[[], Array]], repeats: int) -> dict[str, float]:
    """Seconds of each call at its best, interleaved, after one to compile."""
    for call in calls.values():
        seconds(call)
    times = [{name: seconds(call) for name, call in calls.items()} for _ in range(repeats)]
    return {name: min(found[name] for found in times) for name in calls}


@partial(jax.jit, static_argnums=3)
def _bare(model: Transformer, weights: Weights, X: Float[Array, "P n d"], count: int):
    def step(weights: Weights, _):
        slope = jax.grad(lambda w: _products(model, w, X))(weights)
        return jax.tree.map(lambda w, g: w - RATE * g, weights, slope), None

    return jax.lax.scan(step, weights, length=count)[0]


def _products(model: Transformer, weights: Weights, X: Float[Array, "P n d"]) -> Float[Array, ""]:
    """The matrix products of a forward pass, and a sum in place of the loss."""
    product, W, L = model._product, weights.key_query, model.architecture.layers
    assert W is not None
    for layer in range(L):
        rows = slice(-1, None) if layer == L - 1 else slice(None)
        queries = product("pid,hde->pihe", X[:, rows], W[layer])
        A = product("pihe,pje->pihj", queries, X)
        read = product("pihj,pje->pihe", A, X)
        X = X[:, rows] + product("pihe,hde->pid", read, model.output_value[...][layer])
    return jnp.sum(product("pid,ed,te->pit", X, weights.readout, model.tokens[...]) ** 2)


def _flops(model: Transformer, X: Float[Array, "P n d"]) -> float:
    """Of one step of the bare loop, as the compiler counts them."""
    program = jax.jit(jax.grad(lambda w: _products(model, w, X))).lower(model.weights).compile()
    return float((program.cost_analysis() or {})["flops"])
