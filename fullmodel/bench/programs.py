"""Gradient steps of both sides as compiled programs, and what the compiler says about them."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from fullmodel import confinement
from fullmodel.bench.work import Work
from fullmodel.frames import Frame, exact_frame
from fullmodel.model import Transformer, Weights
from fullmodel.train import value_and_gradient
from imir.flow import Optimizer, inverse
from imir.population import mean_loss


class State(NamedTuple):
    """A run between two steps; `loss` is the loss before the last one."""

    parameters: Any
    memory: Any
    step: Int[Array, ""]
    loss: Float[Array, ""]


@dataclass(frozen=True)
class Program:
    """Any number of steps in one call, compiled once.

    `flops` of one step, as the compiler counts them; `bytes` of temporaries, arguments and outputs.
    """

    begin: Callable[[Any], State]
    run: Callable[[State, int], State]
    start: State
    compile_seconds: float
    flops: float
    bytes: int


def reduced(work: Work, optimizer: Optimizer) -> Program:
    """Steps in coordinates along the natural gradient."""

    def gradient(y, data, step):
        work, inverse_metric = data
        seen = work.seen_at(step)
        value, slope = jax.value_and_grad(lambda c: mean_loss(work.tie, c, seen, "cross_entropy"))(
            y
        )
        return value, inverse_metric @ slope

    return _compiled(gradient, optimizer, work.start, (work, inverse(work.tie.metric)))


def full(work: Work, optimizer: Optimizer, dtype=jnp.float64) -> Program:
    """Steps of the full weights from the same point of the manifold."""

    def gradient(weights: Weights, data: tuple[Frame, Work], step):
        frame, work = data
        return value_and_gradient(Transformer(frame, weights), work.prompts_at(step))

    cast = partial(jax.tree.map, lambda x: x.astype(dtype))
    frame, start = cast(exact_frame(work.tie.basis)), cast(weights_at(work, work.start))
    return _compiled(gradient, optimizer, start, (frame, work))


def weights_at(work: Work, coordinates: Float[Array, " C"]) -> Weights:
    """The full weights at a point of the submanifold."""
    return confinement.weights(work.tie.basis, jnp.asarray(work.tie.matrix) @ coordinates)


def _compiled(gradient: Callable, optimizer: Optimizer, start, data) -> Program:
    transform = optimizer.optax()

    def step(data, state: State) -> State:
        value, slope = gradient(state.parameters, data, state.step)
        update, memory = transform.update(slope, state.memory, state.parameters)
        parameters = optax.apply_updates(state.parameters, update)
        return State(parameters, memory, state.step + 1, value)

    def run(state: State, steps, data) -> State:
        return jax.lax.fori_loop(0, steps, lambda _, s: step(data, s), state)

    def begin(parameters) -> State:
        dtype = jax.tree.leaves(parameters)[0].dtype
        return State(parameters, transform.init(parameters), jnp.array(0), jnp.zeros((), dtype))

    began = time.perf_counter()
    program = jax.jit(run).lower(begin(start), 1, data).compile()
    seconds = time.perf_counter() - began
    # The compiler counts the body of a loop of unknown length once: the flops of one step.
    flops = float((program.cost_analysis() or {})["flops"])
    steps = lambda state, count: jax.block_until_ready(program(state, count, data))  # noqa: E731
    return Program(begin, steps, begin(start), seconds, flops, _bytes(program))


def _bytes(program: Any) -> int:
    used = program.memory_analysis()
    return used.temp_size_in_bytes + used.argument_size_in_bytes + used.output_size_in_bytes
