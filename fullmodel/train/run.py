"""A training run that survives interruption, measured against the manifold as it goes.

Steps run in jitted chunks with fresh prompts inside. Between chunks the run is measured and saved,
and a run resumed from what was saved ends in the same weights, bit for bit. Prompts of a step
depend on its number alone.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float, Int, Key
from tqdm import tqdm

from fullmodel.architecture import Architecture
from fullmodel.confinement.departure import Departure, departure_of, meter_of
from fullmodel.confinement.projection import lifted
from fullmodel.frames import frame_of
from fullmodel.model import Transformer
from fullmodel.train.initial import beside, generic, on_manifold
from fullmodel.train.recipe import Recipe
from fullmodel.train.saved import Saved, saved
from fullmodel.train.steps import accumulated
from imir.basis import Basis, basis_of
from imir.tasks.outcomes import odds, sample
from imir.tasks.task import Task

Origin = Literal["generic", "manifold"]


@dataclass(frozen=True)
class Setting:
    """What is trained on what, how and from where: everything that a run depends on.

    `start` is the scale of random initial weights, or of random coordinates on the manifold, where
    `off` adds noise of that share of each array's norm.
    """

    task: Task
    architecture: Architecture = field(default_factory=Architecture)
    recipe: Recipe = field(default_factory=Recipe)
    origin: Origin = "generic"
    start: float = 1.0
    off: float = 0.0
    seed: int = 0

    @cached_property
    def basis(self) -> Basis:
        """In the one-hot frame for Adam, for which no other one is exact."""
        frame = "onehot" if self.recipe.optimizer in ("adam", "adamw") else "centered"
        return basis_of(self.task, self.architecture.layers, self.architecture.heads, frame)

    def key(self, purpose: int) -> Key[Array, ""]:
        """A key of its own for each purpose."""
        return jax.random.fold_in(jax.random.key(self.seed), purpose)

    def model(self) -> Transformer:
        """The model at its initial point, in the default floating-point numbers."""
        dtype = jnp.result_type(float)
        frame = frame_of(self.basis, self.architecture, self.key(0))
        frame = jax.tree.map(lambda x: jnp.asarray(x, dtype), frame)
        weights = generic(frame, self.architecture, self.key(1), self.start)
        if self.origin == "manifold":
            theta = self.start * jax.random.normal(self.key(2), (len(self.basis.elements),))
            point = on_manifold(weights, lifted(self.basis, frame, theta))
            weights = beside(point, self.key(3), self.off)
        return Transformer(frame, weights, self.architecture, self.recipe.products)

    def as_dict(self) -> dict[str, Any]:
        """Everything by name, as JSON keeps it."""
        flat = {"float64": bool(jax.config.read("jax_enable_x64"))}
        for name, value in asdict(self).items():
            flat |= (
                {name: value}
                if not isinstance(value, dict)
                else {f"{name}.{key}": x for key, x in value.items()}
            )
        return json.loads(json.dumps(flat, default=str))


class State(eqx.Module):
    """A point of a run: the steps made, the weights, and the optimiser's memory."""

    step: Int[Array, ""]
    weights: Any
    memory: optax.OptState


class TrainingFailure(RuntimeError):
    """A loss that is not a finite number."""


@dataclass(frozen=True)
class Run:
    """A run: its model at the end, the loss of each step, and what was measured along it."""

    setting: Setting
    model: Transformer
    losses: Float[np.ndarray, " T"]
    departure: Departure


def run(setting: Setting, records: int = 20, out: Path | None = None, bar: bool = False) -> Run:
    """Train, and measure at the start and at the end of each of `records` parts.

    With `out` the run is saved after each part, and goes on from there when called again. Raises
    `ValueError` for a folder that holds something else, and `TrainingFailure`, which names the
    step, where the loss stops being finite; what was saved before stays.
    """
    steps = setting.recipe.steps
    every = -(-steps // max(1, records))
    state, advance, model_of = begun(setting)
    model = model_of(state)
    meter = meter_of(setting.task, setting.basis, model, setting.key(4))
    with saved(out, {**setting.as_dict(), "every": every}) as kept:
        state, losses, rows = kept.latest(state) or (state, [], [meter(0, model)])
        with tqdm(total=steps, initial=int(state.step), unit="step", disable=not bar) as shown:
            for count in _parts(int(state.step), steps, every):
                state, new = advance(state, count)
                losses += _finite(np.asarray(new), int(state.step) - count, kept)
                rows.append(meter(int(state.step), model_of(state)))
                kept.save(int(state.step), state, losses, rows)
                shown.update(count)
                shown.set_postfix(loss=f"{losses[-1]:.4g}", icl=f"{rows[-1]['icl']:.3f}")
    return Run(setting, model_of(state), np.array(losses), departure_of(setting.basis, rows))


def begun(setting: Setting) -> tuple[State, Callable, Callable[[State], Transformer]]:
    """The state of a run before its first step, and what happens to a state.

    `advance(state, count)` are the state after so many steps and the loss before each, in one
    jitted call; the last is the model of a state.
    """
    graph, params, fixed = nnx.split(setting.model(), nnx.Param, ...)
    state = State(jnp.zeros((), int), params, setting.recipe.optax().init(params))
    where = _devices(setting.recipe).everywhere
    state, fixed, key = jax.device_put((state, fixed, setting.key(5)), where)
    advance = partial(_advance, graph, fixed, setting.recipe, setting.task, key)
    return state, advance, lambda state: nnx.merge(graph, state.weights, fixed)


def _parts(done: int, steps: int, every: int) -> Iterator[int]:
    """Lengths of the parts that are left."""
    for begin in range(done, steps, every):
        yield min(every, steps - begin)


@eqx.filter_jit
def _advance(
    graph, fixed, recipe: Recipe, task: Task, key: Key[Array, ""], state: State, count: int
) -> tuple[State, Float[Array, " count"]]:
    """The state after so many steps, and the loss before each."""
    transform, chances, devices = recipe.optax(), odds(task), _devices(recipe)

    def step(state: State, _) -> tuple[State, Float[Array, ""]]:
        prompts = sample(task, jax.random.fold_in(key, state.step), recipe.batch, chances)
        prompts = jax.lax.with_sharding_constraint(prompts, devices.in_parts)
        value, gradient = accumulated(graph, state.weights, fixed, prompts, recipe.loss)
        update, memory = transform.update(gradient, state.memory, state.weights)
        weights = optax.apply_updates(state.weights, update)
        return State(state.step + 1, weights, memory), value

    return jax.lax.scan(step, state, length=count)


class Devices(NamedTuple):
    """Where a run's arrays are: the same on all devices, or in equal parts."""

    everywhere: jax.sharding.NamedSharding
    in_parts: jax.sharding.NamedSharding


def _devices(recipe: Recipe) -> Devices:
    """All local devices, or the first alone where they do not divide the batch."""
    devices = jax.local_devices()
    used = devices if recipe.batch % len(devices) == 0 else devices[:1]
    mesh = jax.sharding.Mesh(np.array(used), "prompts")
    whole, parts = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec("prompts")
    return Devices(jax.sharding.NamedSharding(mesh, whole), jax.sharding.NamedSharding(mesh, parts))


def _finite(losses: Float[np.ndarray, " T"], before: int, kept: Saved) -> list[float]:
    """The losses; refuses the first that is not finite."""
    if np.all(np.isfinite(losses)):
        return losses.tolist()
    step = before + int(np.argmin(np.isfinite(losses)))
    raise TrainingFailure(
        f"Training must have finite losses, but that of step {step} is not; {kept.described}."
    )
