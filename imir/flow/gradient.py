"""Gradient flow in coordinates (arXiv 2607.11875, sections 3 and 4).

    φ̇ = −(TᵀGT)⁻¹ ∇_φ L − λφ

is the gradient flow of the full weights with weight decay λ, written in the coordinates of a tie T;
G is the Gram matrix of the basis.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from imir.flow.metric import BlockInverse, inverse
from imir.flow.trace import FAILURES, Trace, trace_of
from imir.population import Loss, Population, View, mean_loss
from imir.scores import Probes, halves, scores
from imir.solution import RunFailure, Solution
from imir.ties import Tie

Clamp = float | Callable[[Float[Array, ""]], Float[Array, ""]]
Start = float | Mapping[str, float] | Float[Array, " C"]


# First step as a share of the run: cheaper to compile than an estimate, and the controller adapts.
FIRST_STEP = 1e-6


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
    trace, loss = _integrate_one(
        tie, flow, seen, probes, begin, jnp.asarray(weight_decay), inverse(G)
    )
    solution = _solution(tie, flow, trace, np.asarray(loss))
    if solution.failed:
        raise RunFailure(f"The solver {solution.outcome}.", solution)
    return solution


def velocity(
    tie: Tie,
    loss: Loss,
    seen: View,
    inverse_metric: Float[Array, "C C"] | BlockInverse,
    y: Float[Array, " C"],
) -> Float[Array, " C"]:
    """−G⁻¹ ∇L, the flow without weight decay."""
    return -(inverse_metric @ jax.grad(lambda c: mean_loss(tie, c, seen, loss))(y))


def integrate(
    tie: Tie,
    flow: Flow,
    seen: View,
    found: Probes | None,
    start: Float[Array, " C"],
    weight_decay: Float[Array, ""],
    inverse_metric: Float[Array, "C C"] | BlockInverse,
) -> Trace:
    """One run as a pure function; jit and vmap it."""

    def moving(t, y, args):
        y = _clamped(tie, flow, t, y)
        free = jnp.array([name not in dict(flow.clamps) for name in tie.names])
        free_flow = velocity(tie, flow.loss, seen, inverse_metric, y)
        return jnp.where(free, free_flow - weight_decay * y, 0.0)

    def emerged(t, y, args, **_):
        reached = scores(found, tie, _clamped(tie, flow, t, y), flow.loss) > halves(found)
        return reached[0 if flow.stop == "icl" else 1]

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(moving),
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
    return trace_of(
        solution,
        save_times(flow),
        lambda t: _clamped(tie, flow, t, solution.evaluate(t)),
        lambda y: scores(found, tie, y, flow.loss),
        halves(found),
    )


@eqx.filter_jit
def _integrate_one(
    tie: Tie, flow: Flow, seen: View, *arguments
) -> tuple[Trace, Float[Array, " T"]]:
    trace = integrate(tie, flow, seen, *arguments)
    loss = jax.lax.map(lambda y: mean_loss(tie, y, seen, flow.loss), trace.coordinates)
    return trace, loss


def save_times(flow: Flow) -> Float[Array, " T"]:
    """Zero and log-spaced times up to the end."""
    return jnp.asarray([0.0, *np.geomspace(flow.until * 1e-6, flow.until, flow.saves - 1)])


def _clamped(tie: Tie, flow: Flow, t, y: Float[Array, " C"]) -> Float[Array, " C"]:
    for name, value in flow.clamps:
        y = y.at[tie.names.index(name)].set(value(t) if callable(value) else value)
    return y


def _solution(tie: Tie, flow: Flow, trace: Trace, loss: Float[np.ndarray, " T"]) -> Solution:
    kept = np.isfinite(trace.times) & np.all(np.isfinite(trace.coordinates), axis=1)
    outcome = f"emergence of {flow.stop}" if trace.stopped else "finished"
    if trace.failure > 0:
        place = f"at time {float(trace.end):.6g} after {int(trace.steps)} steps"
        outcome = f"failed {place}: {FAILURES[int(trace.failure)]}"
    icl_time, iwl_time = (
        None if np.isnan(time) else float(time) for time in (trace.icl_time, trace.iwl_time)
    )
    return Solution(
        names=tie.names,
        times=np.asarray(trace.times)[kept],
        coordinates=np.asarray(trace.coordinates)[kept],
        loss=loss[kept],
        icl=np.asarray(trace.icl)[kept],
        iwl=np.asarray(trace.iwl)[kept],
        icl_time=icl_time,
        iwl_time=iwl_time,
        unit="gradient-flow time",
        outcome=outcome,
        method=f"gradient flow ({type(flow.solver).__name__}, rtol {flow.rtol:g})",
        stats={"steps": int(trace.steps)},
    )
