"""What a run looked like: coordinates and scores over time, and when scores crossed half."""

from collections.abc import Callable

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

# Illinois steps, at most, from the distance of two saved times to this share of a time.
CLOSING, CLOSE = 12, 1e-12
FAILURES = (
    "",
    "its step limit was reached",
    "its step became too small",
    "coordinates stopped being finite",
    "the solver gave up",
)


class Trace(eqx.Module):
    """Raw result of one integration; times after an early end are infinite.

    `icl_time` and `iwl_time` say when a score emerged, `icl_end` when the ICL score fell below
    half of the best possible again after its peak; NaN where that never happened. `failure` is an
    index into `FAILURES`.
    """

    times: Float[Array, " T"]
    coordinates: Float[Array, "T C"]
    icl: Float[Array, " T"]
    iwl: Float[Array, " T"]
    end: Float[Array, ""]
    icl_time: Float[Array, ""]
    iwl_time: Float[Array, ""]
    icl_end: Float[Array, ""]
    failure: Int[Array, ""]
    stopped: Bool[Array, ""]
    steps: Int[Array, ""]


def trace_of(
    solution: diffrax.Solution,
    times: Float[Array, " T"],
    position: Callable[[Float[Array, ""]], Float[Array, " C"]],
    score: Callable[[Float[Array, " C"]], Float[Array, " 2"]],
    half: Float[Array, " 2"],
) -> Trace:
    """Positions and scores at these times and at the end; a score above `half` has emerged."""
    assert solution.ts is not None
    end = solution.ts[-1]
    times = jnp.append(jnp.where(times < end, times, jnp.inf), end)

    def at(t):
        return position(jnp.minimum(t, end))

    def signals(reached):
        """Positive once ICL has emerged, once IWL has, and once ICL is lost."""
        icl, iwl = reached - half
        return jnp.stack([icl, iwl, -icl])

    y = jax.vmap(at)(times)
    reached = jax.lax.map(score, y)
    values = jax.vmap(signals)(reached)
    peak = times[jnp.argmax(reached[:, 0])]
    values = values.at[:, 2].set(jnp.where(times > peak, values[:, 2], -1.0))
    icl_time, iwl_time, icl_end = _crossings(lambda t: signals(score(at(t))), times, values)
    return Trace(
        times,
        y,
        reached[:, 0],
        reached[:, 1],
        end,
        icl_time,
        iwl_time,
        jnp.where(jnp.isnan(icl_time), jnp.nan, icl_end),
        _failure(solution, y[-1]),
        diffrax.is_event(solution.result),
        solution.stats["num_steps"],
    )


def _failure(solution: diffrax.Solution, y: Float[Array, " C"]) -> Int[Array, ""]:
    """Index into `FAILURES`."""
    result, known = solution.result, diffrax.RESULTS
    kinds = (
        diffrax.is_okay(result) & jnp.all(jnp.isfinite(y)),
        result == known.max_steps_reached,
        result == known.dt_min_reached,
        ~jnp.all(jnp.isfinite(y)),
    )
    return jnp.argmax(jnp.stack([jnp.asarray(kind) for kind in (*kinds, True)]))


def _crossings(
    signals: Callable, times: Float[Array, " T"], values: Float[Array, "T K"]
) -> Float[Array, " K"]:
    """First times at which each signal turns positive; NaN where it never does.

    Between two saved times by the Illinois method: false position that halves the value at an end
    which stays, so that both ends close in. Signals that never turn cost nothing.
    """
    above = (values > 0) & jnp.isfinite(times)[:, None]
    turns, last = jnp.any(above, axis=0), jnp.argmax(above, axis=0)
    first = jnp.argmax(jnp.where(times[:, None] < times[last], times[:, None], -1.0), axis=0)
    ends = times[first], times[last]
    heights = (jnp.take_along_axis(values, i[None], axis=0)[0] for i in (first, last))

    def is_open(low, high):
        return turns & (high - low > CLOSE * high)

    def narrow(state):
        step, low, high, below, beyond = state
        middle = high - beyond * (high - low) / (beyond - below)
        middle = jnp.where(is_open(low, high), middle, high)
        height = jnp.diagonal(jax.lax.map(signals, middle))
        up = height > 0
        return (
            step + 1,
            jnp.where(up, low, middle),
            jnp.where(up, middle, high),
            jnp.where(up, below / 2, height),
            jnp.where(up, height, beyond / 2),
        )

    def goes_on(state):
        step, low, high, *_ = state
        return (step < CLOSING) & jnp.any(is_open(low, high))

    _, _, high, *_ = jax.lax.while_loop(goes_on, narrow, (jnp.asarray(0), *ends, *heights))
    return jnp.where(turns, high, jnp.nan)
