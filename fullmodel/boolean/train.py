"""Training recognisers on a Boolean function: many seeds in one program.

The loss is the logistic loss at the end token, log(1 + exp(−y logit(x))) in nats with y = ±1,
averaged over uniformly drawn strings at every step, or over all 2^N. Each chunk of steps ends with
an evaluation over every string: loss, accuracy, and the truth table, whose sensitivity profile is
compared with the wanted one. With a folder, a run is saved at each evaluation and goes on from
there.
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Int64, Key

from fullmodel.boolean.functions import Function, checked, table, unpacked
from fullmodel.boolean.recognizer import (
    Architecture,
    Initialization,
    Parameters,
    bits_of,
    check_length,
    initial,
    margins,
    signs_of,
    truth_table,
)
from fullmodel.boolean.sensitivity import average, sensitivity
from fullmodel.train.saved import Row, saved

# Strings in a batch that stands for all of them.
ALL = 0


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to train, with Adam."""

    steps: int = 2000
    batch: int = 1024
    """Strings at each step; 0 for all of them."""
    learning_rate: float = 1e-3
    evaluations: int = 20
    """Points of the curves after the one at the start."""

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("batch", 0), ("evaluations", 1)):
            if getattr(self, name) < least:
                raise ValueError(
                    f"Argument `{name}` must be at least {least}, but is {getattr(self, name)}."
                )
        if not 0 < self.learning_rate < np.inf:
            raise ValueError(
                f"Argument `learning_rate` must be positive, but is {self.learning_rate}."
            )


@dataclass(frozen=True)
class Curves:
    """What `S` seeds had learned after each of `T` numbers of steps, over all strings."""

    steps: Int64[np.ndarray, " T"]
    loss: Float[np.ndarray, "T S"]
    accuracy: Float[np.ndarray, "T S"]
    profiles: Int64[np.ndarray, "T S N+1"]
    wanted: Int64[np.ndarray, " N+1"]
    parameters: Parameters

    @property
    def learned(self) -> np.ndarray:
        """Which seeds compute the function exactly in the end."""
        return self.accuracy[-1] == 1

    @property
    def averages(self) -> Float[np.ndarray, "T S"]:
        """Average sensitivity."""
        return average(self.profiles)

    @property
    def distances(self) -> Float[np.ndarray, "T S"]:
        """Total variation between the profile reached and the wanted one, from 0 to 1."""
        apart = np.abs(self.profiles - self.wanted)
        return np.sum(apart, axis=-1) / (2 * np.sum(self.wanted))


class _State(eqx.Module):
    parameters: Parameters
    moments: optax.OptState


def train(
    architecture: Architecture,
    initialization: Initialization,
    function: Function,
    schedule: Schedule = Schedule(),
    seeds: int = 4,
    seed: int = 0,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
    out: Path | None = None,
) -> Curves:
    """Train models of different seeds side by side; with `out` an interrupted run goes on.

    Raises `ValueError` where there is no exact truth table (N above 24), for a function of other
    strings, for less than one seed, and for a folder that holds another run.
    """
    _check(architecture, function, seeds)
    keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(seed)))(jnp.arange(seeds))
    start = jax.vmap(lambda key: initial(architecture, initialization, key))(keys)
    optimizer = optax.adam(schedule.learning_rate)
    state = _State(start, jax.vmap(optimizer.init)(start))  # type: ignore
    signs = signs_of(function)
    stops = np.linspace(0, schedule.steps, schedule.evaluations + 1).astype(int)
    stops = np.unique(stops)
    with saved(
        out, _configuration(architecture, initialization, function, schedule, seeds, seed)
    ) as kept:
        first = _evaluated(architecture, signs, state.parameters)
        state, _, rows = kept.latest(state) or (state, [], [first])
        for i in progress(range(len(rows), len(stops))):
            span = jnp.asarray(stops[i - 1]), jnp.asarray(stops[i])
            state = _steps(architecture, schedule, signs, keys, state, *span)
            rows.append(_evaluated(architecture, signs, state.parameters))
            kept.save(int(stops[i]), state, [], rows)
    found = {name: np.array([row[name] for row in rows]) for name in first}
    wanted = sensitivity(table(function), function.length).profile
    return Curves(stops, **found, wanted=wanted, parameters=state.parameters)


def _configuration(
    architecture: Architecture,
    initialization: Initialization,
    function: Function,
    schedule: Schedule,
    seeds: int,
    seed: int,
) -> dict[str, Any]:
    """All that a run depends on."""
    digest = hashlib.sha256(table(function).tobytes()).hexdigest()
    options = {**asdict(architecture), **asdict(initialization), **asdict(schedule)}
    return {**options, "function": function.name, "table": digest, "seeds": seeds, "seed": seed}


def _check(architecture: Architecture, function: Function, seeds: int) -> None:
    checked(architecture.length)
    check_length(architecture, function)
    if seeds < 1:
        raise ValueError(f"Argument `seeds` must be at least 1, but is {seeds}.")


def logistic_loss(
    architecture: Architecture, parameters: Parameters, bits: Array, signs: Array
) -> Float[Array, ""]:
    """Mean of log(1 + exp(−y logit(x))), in nats."""
    return jnp.mean(jax.nn.softplus(-signs * margins(architecture, parameters, bits)))


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=4)
def _steps(
    architecture: Architecture,
    schedule: Schedule,
    signs: Int[Array, " 2^N"],
    keys: Key[Array, " S"],
    state: _State,
    first: Int[Array, ""],
    last: Int[Array, ""],
) -> _State:
    """Steps number `first` to `last` of all seeds; a step's strings depend on its number alone."""
    optimizer = optax.adam(schedule.learning_rate)

    def one(key: Key[Array, ""], step: Array, state: _State) -> _State:
        index = _batch(architecture, schedule, jax.random.fold_in(key, step))
        bits = bits_of(index, architecture.length)
        gradient = jax.grad(lambda p: logistic_loss(architecture, p, bits, signs[index]))
        updates, moments = optimizer.update(gradient(state.parameters), state.moments)
        return _State(optax.apply_updates(state.parameters, updates), moments)  # type: ignore

    def step(number: Array, state: _State) -> _State:
        return jax.vmap(one, (0, None, 0))(keys, number, state)

    return jax.lax.fori_loop(first, last, step, state)


def _batch(architecture: Architecture, schedule: Schedule, key: Key[Array, ""]) -> Array:
    strings = 1 << architecture.length
    if schedule.batch == ALL:
        return jnp.arange(strings, dtype=jnp.uint32)
    return jax.random.randint(key, (schedule.batch,), 0, strings).astype(jnp.uint32)


def _evaluated(architecture: Architecture, signs: Array, parameters: Parameters) -> Row:
    """Loss, accuracy and profile of every seed, over all strings; ready for JSON."""
    loss = _losses(architecture, signs, parameters)
    words = truth_table(architecture, parameters).words
    right = unpacked(words, architecture.length) == np.asarray(signs > 0)
    profiles = sensitivity(words, architecture.length).profile
    found = {"loss": loss, "accuracy": np.mean(right, 1), "profiles": profiles}
    return {name: np.asarray(value).tolist() for name, value in found.items()}


@partial(jax.jit, static_argnums=0)
def _losses(architecture: Architecture, signs: Array, parameters: Parameters) -> Array:
    """Mean loss of each seed, at most 4,096 strings at a time."""
    size = min(len(signs), 4096)
    starts = jnp.arange(0, len(signs), size, dtype=jnp.uint32)

    def part(start: Array) -> Array:
        index = start + jnp.arange(size, dtype=jnp.uint32)
        bits = bits_of(index, architecture.length)
        loss = partial(logistic_loss, architecture)
        return jax.vmap(loss, (0, None, None))(parameters, bits, signs[index])

    return jnp.mean(jax.lax.map(part, starts), axis=0)
