"""Gradient flow and discrete optimisers in coordinates (arXiv 2607.11875, sections 3 and 4).

    φ̇ = −(TᵀGT)⁻¹ ∇_φ L − λφ

is the gradient flow of the full weights with weight decay λ, written in the coordinates of a tie T;
G is the Gram matrix of the basis. Discrete optimisers receive the same natural gradient.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key

from imir.population import Loss, Population, View, mean_loss, needed
from imir.scores import Probes, halves, scores
from imir.solution import RunFailure, Solution
from imir.ties import Tie

Clamp = float | Callable[[Float[Array, ""]], Float[Array, ""]]
Start = float | Mapping[str, float] | Float[Array, " C"]


# First step as a share of the run: cheaper to compile than an estimate, and the controller adapts.
FIRST_STEP = 1e-6
# Illinois steps from the distance of two saved times to rounding.
CLOSING = 12


@dataclass(frozen=True)
class Flow:
    """How to integrate: loss, end, solver and tolerances, what to save and when to stop.

    `until` in gradient-flow time; `saves` log-spaced times; `stop` ends the run where a score
    emerges (see `imir.scores`); `clamps` hold coordinates at a number or drive them with a
    function of time; `progress` shows a bar on standard error.
    """

    loss: Loss = "cross_entropy"
    until: float = 1e6
    rtol: float = 1e-6
    atol: float = 1e-9
    solver: diffrax.AbstractAdaptiveSolver = field(default_factory=diffrax.Tsit5)
    max_steps: int = 4096
    saves: int = 100
    stop: Literal["icl", "iwl"] | None = None
    clamps: tuple[tuple[str, Clamp], ...] = ()
    progress: bool = False

    def __post_init__(self) -> None:
        if not (np.isfinite(self.until) and self.until > 0):
            raise ValueError(f"Argument `until` must be positive and finite, but is {self.until}.")


class Trace(eqx.Module):
    """Raw result of one integration; times after an early end are infinite."""

    times: Float[Array, " T"]
    coordinates: Float[Array, "T C"]
    loss: Float[Array, " T"]
    icl: Float[Array, " T"]
    iwl: Float[Array, " T"]
    end: Float[Array, ""]
    icl_time: Float[Array, ""]
    iwl_time: Float[Array, ""]
    failed: Array
    stopped: Array
    steps: Array


def start_of(tie: Tie, start: Start) -> Float[Array, " C"]:
    """Initial coordinates from one number, from names (others zero) or from an array."""
    if isinstance(start, Mapping):
        if unknown := [name for name in start if name not in tie.names]:
            raise ValueError(
                f"Argument `start` must name coordinates among {', '.join(tie.names[:8])}, "
                f"but has {unknown[0]!r}."
            )
        start = jnp.array([start.get(name, 0.0) for name in tie.names])
    values = jnp.broadcast_to(jnp.asarray(start, float), (len(tie.names),))
    if not bool(jnp.all(jnp.isfinite(values))):
        raise ValueError(f"Argument `start` must be finite, but is {np.asarray(values)}.")
    return values


def check(tie: Tie, flow: Flow) -> None:
    """Refuse a tolerance that the current precision cannot reach, and clamps of no coordinate."""
    rtol = flow.rtol
    if unknown := [name for name, _ in flow.clamps if name not in tie.names]:
        raise ValueError(
            f"Argument `clamps` must name coordinates among {', '.join(tie.names[:8])}, "
            f"but has {unknown[0]!r}."
        )
    kind = jnp.asarray(0.0).dtype
    least = 100 * float(jnp.finfo(kind).eps)
    if not rtol >= least:
        raise ValueError(f"Argument `rtol` must be at least {least:.2g} in {kind}, but is {rtol}.")


def gradient_flow(
    population: Population,
    start: Start,
    flow: Flow = Flow(),
    *,
    probes: Probes | None = None,
    weight_decay: float = 0.0,
    metric: Float[Array, "C C"] | None = None,
) -> Solution:
    """Integrate the gradient flow of an exact or fixed population.

    `metric` replaces TᵀGT (another metric is another dynamics than the full model's). Raises
    `ValueError` for arguments that do not fit, `RunFailure` where the solver gives up: its
    `solution` keeps the run up to that time.
    """
    if population.kind == "fresh":
        raise ValueError("Argument `population` must be exact or fixed for a flow, but is fresh.")
    if flow.stop and probes is None:
        raise ValueError(f"Argument `probes` must be given to stop at {flow.stop}, but is None.")
    check(population.tie, flow)
    tie, seen = population.tie, population.at()
    G = tie.metric if metric is None else np.asarray(metric)
    begin = start_of(tie, start)
    trace = _integrate_one(tie, flow, seen, probes, begin, jnp.asarray(weight_decay), inverse(G))
    solution = _solution(tie, flow, trace)
    if solution.failed:
        raise RunFailure(f"The solver {solution.outcome}.", solution)
    return solution


def inverse(metric: Float[np.ndarray, "C C"]) -> Float[Array, "C C"]:
    """(TᵀGT)⁻¹, computed in float64 whatever the precision of the run."""
    return jnp.asarray(np.linalg.inv(metric))


def integrate(
    tie: Tie,
    flow: Flow,
    seen: View,
    found: Probes | None,
    start: Float[Array, " C"],
    weight_decay: Float[Array, ""],
    inverse_metric: Float[Array, "C C"],
) -> Trace:
    """One run as a pure function; jit and vmap it."""

    def velocity(t, y, args):
        y = _clamped(tie, flow, t, y)
        gradient = jax.grad(lambda c: mean_loss(tie, c, seen, flow.loss))(y)
        free = jnp.array([name not in dict(flow.clamps) for name in tie.names])
        return jnp.where(free, -inverse_metric @ gradient - weight_decay * y, 0.0)

    def emerged(t, y, args, **_):
        reached = scores(found, tie, _clamped(tie, flow, t, y), flow.loss) > halves(found)
        return reached[0 if flow.stop == "icl" else 1]

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(velocity),
        flow.solver,
        0.0,
        flow.until,
        flow.until * FIRST_STEP,
        start,
        saveat=diffrax.SaveAt(t1=True, dense=True),
        stepsize_controller=diffrax.PIDController(rtol=flow.rtol, atol=flow.atol),
        event=diffrax.Event(emerged) if flow.stop else None,
        max_steps=flow.max_steps,
        throw=False,
        progress_meter=diffrax.TqdmProgressMeter() if flow.progress else diffrax.NoProgressMeter(),
    )
    return _trace(tie, flow, seen, found, solution)


_integrate_one = eqx.filter_jit(integrate)


def _save_times(flow: Flow) -> Float[Array, " T"]:
    return jnp.asarray([0.0, *np.geomspace(flow.until * 1e-6, flow.until, flow.saves - 1)])


def _clamped(tie: Tie, flow: Flow, t, y: Float[Array, " C"]) -> Float[Array, " C"]:
    for name, value in flow.clamps:
        y = y.at[tie.names.index(name)].set(value(t) if callable(value) else value)
    return y


def _trace(tie: Tie, flow: Flow, seen: View, found: Probes | None, solution) -> Trace:
    """Coordinates, loss and scores at the saved times and at the end."""
    end = solution.ts[-1]
    times = _save_times(flow)
    times = jnp.append(jnp.where(times < end, times, jnp.inf), end)

    def at(t):
        return _clamped(tie, flow, t, solution.evaluate(jnp.minimum(t, end)))

    def report(t):
        y = at(t)
        return y, mean_loss(tie, y, seen, flow.loss), scores(found, tie, y, flow.loss)

    def excess(t):
        return scores(found, tie, at(t), flow.loss) - halves(found)

    y, loss, reached = jax.lax.map(report, times)
    icl_time, iwl_time = _crossings(excess, times, reached - halves(found))
    failed = ~diffrax.is_okay(solution.result)
    stopped = diffrax.is_event(solution.result)
    steps = solution.stats["num_steps"]
    return Trace(
        times,
        y,
        loss,
        reached[:, 0],
        reached[:, 1],
        end,
        icl_time,
        iwl_time,
        failed,
        stopped,
        steps,
    )


def _crossings(
    excess: Callable, times: Float[Array, " T"], values: Float[Array, "T 2"]
) -> Float[Array, " 2"]:
    """First times at which each excess turns positive; NaN where it never does.

    Between two saved times by the Illinois method: false position that halves the value at an end
    which stays, so that both ends close in.
    """
    above = (values > 0) & jnp.isfinite(times)[:, None]
    last = jnp.argmax(above, axis=0)
    first = jnp.argmax(jnp.where(times[:, None] < times[last], times[:, None], -1.0), axis=0)
    ends = times[first], times[last]
    heights = (jnp.take_along_axis(values, i[None], axis=0)[0] for i in (first, last))

    def narrow(_, state):
        low, high, below, beyond = state
        middle = jnp.where(last > 0, high - beyond * (high - low) / (beyond - below), low)
        height = jnp.diagonal(jax.vmap(excess)(middle))
        up = height > 0
        return (
            jnp.where(up, low, middle),
            jnp.where(up, middle, high),
            jnp.where(up, below / 2, height),
            jnp.where(up, height, beyond / 2),
        )

    _, high, *_ = jax.lax.fori_loop(0, CLOSING, narrow, (*ends, *heights))
    return jnp.where(jnp.any(above, axis=0), high, jnp.nan)


def _solution(tie: Tie, flow: Flow, trace: Trace) -> Solution:
    kept = np.isfinite(trace.times) & np.all(np.isfinite(trace.coordinates), axis=1)
    outcome = f"emergence of {flow.stop}" if trace.stopped else "finished"
    if trace.failed:
        outcome = f"failed at time {float(trace.end):.6g} after {int(trace.steps)} steps"
    icl_time, iwl_time = (
        None if np.isnan(time) else float(time) for time in (trace.icl_time, trace.iwl_time)
    )
    return Solution(
        names=tie.names,
        times=np.asarray(trace.times)[kept],
        coordinates=np.asarray(trace.coordinates)[kept],
        loss=np.asarray(trace.loss)[kept],
        icl=np.asarray(trace.icl)[kept],
        iwl=np.asarray(trace.iwl)[kept],
        icl_time=icl_time,
        iwl_time=iwl_time,
        unit="gradient-flow time",
        outcome=outcome,
        method=f"gradient flow ({type(flow.solver).__name__}, rtol {flow.rtol:g})",
        stats={"steps": int(trace.steps)},
    )


@dataclass(frozen=True)
class Optimizer:
    """A discrete optimiser, for coordinates and for full weights alike.

    SGD and momentum commute with every frame. Adam acts on single entries, so only coordinates in
    the one-hot frame, which are the entries of their orbitals, follow it. There its `epsilon`
    matters: with 1e-3 the full model stays on the manifold, with 1e-8 it multiplies rounding noise
    in directions whose gradient is exactly zero.
    """

    name: Literal["sgd", "momentum", "adam"] = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 0.0
    epsilon: float = 1e-3

    def optax(self) -> optax.GradientTransformation:
        if self.name == "adam":
            return optax.adamw(self.learning_rate, eps=self.epsilon, weight_decay=self.weight_decay)
        momentum = self.momentum if self.name == "momentum" else None
        decay = optax.add_decayed_weights(self.weight_decay)
        return optax.chain(decay, optax.sgd(self.learning_rate, momentum))


def descend(
    population: Population,
    start: Start,
    optimizer: Optimizer,
    steps: int,
    *,
    loss: Loss = "cross_entropy",
    probes: Probes | None = None,
    key: Key[Array, ""] | None = None,
) -> Solution:
    """Discrete steps on the natural gradient (TᵀGT)⁻¹ ∇_φ L: the full model's steps in coordinates.

    A fresh population needs a `key`. Raises `ValueError` for Adam outside the one-hot frame,
    `RunFailure` where the coordinates stop being finite.
    """
    tie = population.tie
    if optimizer.name == "adam" and tie.basis.frame != "onehot":
        raise ValueError(
            "Argument `optimizer` must be sgd or momentum in the centered frame, but is adam."
        )
    keys = None
    if population.kind == "fresh":
        keys = jax.random.split(needed(key), steps)
    path, losses, reached = _descend(
        population, optimizer, steps, loss, probes, start_of(tie, start), inverse(tie.metric), keys
    )
    return _discrete_solution(
        tie, optimizer, np.asarray(halves(probes)), *map(np.asarray, (path, losses, reached))
    )


@eqx.filter_jit
def _descend(population, optimizer, steps, loss, found, start, inverse_metric, keys):
    tie, transform = population.tie, optimizer.optax()

    def step(state, key):
        y, memory = state
        seen = population.at(key)
        value, gradient = jax.value_and_grad(lambda c: mean_loss(tie, c, seen, loss))(y)
        update, memory = transform.update(inverse_metric @ gradient, memory, y)
        reached = scores(found, tie, y, loss)
        return (optax.apply_updates(y, update), memory), (y, value, reached)

    (last, _), over_time = jax.lax.scan(step, (start, transform.init(start)), keys, length=steps)
    seen = population.at(None if keys is None else keys[-1])
    end = (last, mean_loss(tie, last, seen, loss), scores(found, tie, last, loss))
    return jax.tree.map(lambda path, x: jnp.concatenate([path, x[None]]), over_time, end)


def _discrete_solution(tie, optimizer, half, path, losses, reached) -> Solution:
    finite = np.all(np.isfinite(path), axis=1)
    kept = slice(None) if finite.all() else slice(0, max(1, int(np.argmin(finite))))
    icl_time, iwl_time = (float(np.argmax(a)) if a.any() else None for a in (reached > half).T)
    outcome = "finished" if finite.all() else f"failed at step {int(np.argmin(finite))}"
    solution = Solution(
        names=tie.names,
        times=np.arange(len(path), dtype=float)[kept],
        coordinates=path[kept],
        loss=losses[kept],
        icl=reached[kept, 0],
        iwl=reached[kept, 1],
        icl_time=icl_time,
        iwl_time=iwl_time,
        unit="steps",
        outcome=outcome,
        method=f"{optimizer.name} (learning rate {optimizer.learning_rate:g})",
        stats={"steps": len(path) - 1},
    )
    if solution.failed:
        raise RunFailure(f"The optimiser {outcome}: coordinates are not finite.", solution)
    return solution
