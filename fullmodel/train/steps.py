"""Training of the full model: one jitted scan of optax steps."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Float, Key

from fullmodel.model import Transformer, Weights, expected_loss
from imir.flow import Optimizer
from imir.prompts import Prompts

CHUNK = 256

Sampler = Callable[[Key[Array, ""]], Prompts]


class Training(eqx.Module):
    """The loss before each of `T` steps; the weights at the start and at every recorded step."""

    losses: Float[Array, " T"]
    weights: Weights


@eqx.filter_jit
def value_and_gradient(
    model: Transformer, prompts: Prompts, loss: str = "cross_entropy"
) -> tuple[Float[Array, ""], Weights]:
    """Σ weight · loss over prompts and its gradient, at most `CHUNK` prompts at a time."""
    graph, params, fixed = nnx.split(model, nnx.Param, ...)
    value, gradient = accumulated(graph, params, fixed, prompts, loss)
    return value, nnx.merge(graph, gradient, fixed).weights


def accumulated(graph, params, fixed, prompts: Prompts, loss: str):
    """`value_and_gradient` of a model that `nnx.split` took apart."""

    def of(params, some: Prompts):
        return expected_loss(nnx.merge(graph, params, fixed), some, loss)

    def add(total, some: Prompts):
        return jax.tree.map(jnp.add, total, jax.value_and_grad(of)(params, some)), None

    dtype = jax.tree.leaves(params)[0].dtype
    nothing = jnp.zeros((), dtype), jax.tree.map(jnp.zeros_like, params)
    return jax.lax.scan(add, nothing, _chunks(prompts))[0]


def _chunks(prompts: Prompts) -> Prompts:
    """The prompts in equal rows of at most `CHUNK`, filled up with prompts of weight zero."""
    rows = -(-len(prompts) // CHUNK)

    def split(x, mode):
        ends = (0, -len(prompts) % rows), *[(0, 0)] * (x.ndim - 1)
        return jnp.pad(x, ends, mode=mode).reshape(rows, -1, *x.shape[1:])

    filled = jax.tree.map(lambda x: split(x, "edge"), prompts)
    return eqx.tree_at(lambda p: p.weight, filled, split(prompts.weight, "constant"))


def train(
    model: Transformer,
    data: Prompts | Sampler,
    optimizer: Optimizer,
    steps: int,
    *,
    every: int | None = None,
    loss: str = "cross_entropy",
    key: Key[Array, ""] | None = None,
) -> Training:
    """Steps of gradient descent from the model's weights; the model itself stays as it is.

    `data` are the prompts of every step, or draw a fresh batch for each step from a `key`.
    Weights are recorded every so many steps, by default at the end only. Raises `ValueError` where
    `every` does not divide `steps`, or a sampler has no key.
    """
    every = every or steps
    if steps < 1 or steps % every:
        raise ValueError(
            f"Argument `steps` must be a positive multiple of {every}, but is {steps}."
        )
    if not isinstance(data, Prompts) and key is None:
        raise ValueError("Argument `key` must be given to draw prompts, but is None.")
    keys = None if key is None else jax.random.split(key, (steps // every, every))
    return _train(model, data, optimizer, (steps // every, every), loss, keys)


@eqx.filter_jit
def _train(model, data, optimizer, steps: tuple[int, int], loss, keys) -> Training:
    graph, params, fixed = nnx.split(model, nnx.Param, ...)
    transform = optimizer.optax()

    def step(state, key):
        params, memory = state
        prompts = data if isinstance(data, Prompts) else data(key)
        value, gradient = accumulated(graph, params, fixed, prompts, loss)
        update, memory = transform.update(gradient, memory, params)
        return (optax.apply_updates(params, update), memory), value

    def record(state, keys):
        state, losses = jax.lax.scan(step, state, keys, length=steps[1])
        return state, (losses, state[0])

    start = params, transform.init(params)
    _, (losses, path) = jax.lax.scan(record, start, keys, length=steps[0])
    path = jax.tree.map(lambda x, xs: jnp.concatenate([x[None], xs]), params, path)
    return Training(losses.ravel(), nnx.merge(graph, path, fixed).weights)
