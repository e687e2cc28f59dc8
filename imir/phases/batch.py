"""Many runs of one shape at once: the same prompts and one program on all local devices."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Key

from imir.flow import BlockInverse, Flow, Trace, check, integrate, inverse
from imir.phases.grid import PROBABILITIES, Cell, Grid
from imir.population import Expectation, Population, expectation, mean_loss, with_odds
from imir.scores import Probes, best_iwl, probes, regime, reweighted
from imir.tasks.outcomes import odds
from imir.tasks.task import Task
from imir.ties import Tie

# Cells that step together. More of them share the cost of small operations, until their numbers
# leave the cache.
LANES, ENTRIES = 32, 500_000


class Batch(eqx.Module):
    """What cells of one shape share: prompts, probes and the metric's inverse.

    `lanes` cells step together; the answer to one does not depend on the others.
    """

    shape: Task = eqx.field(static=True)
    lanes: int = eqx.field(static=True)
    population: Population
    probes: Probes
    inverse_metric: Float[Array, "C C"] | BlockInverse


def batch_of(
    shape: Task,
    flow: Flow,
    tie_of: Callable[[Task], Tie],
    kind: Expectation,
    samples: int,
    key: Key[Array, ""],
) -> Batch:
    """Prompts and probes for every cell of this shape."""
    tie = tie_of(shape)
    check(tie, flow)
    population = expectation(kind, tie, shape, samples, key)
    entries = sum(x.size for x in jax.tree.leaves(population.at()))
    lanes = 1 if population.listed is None else max(1, min(LANES, ENTRIES // entries))
    return Batch(shape, lanes, population, probes(tie, shape, samples, key), inverse(tie.metric))


def shape_of(grid: Grid, counts: dict[str, int]) -> Task:
    """A task with these counts and every class and kind of prompt that any cell has."""
    values = {axis.name: axis.values for axis in grid.axes if axis.name in PROBABILITIES}

    def between(name: str) -> float:
        found = set(values.get(name, (getattr(grid.task, name),)))
        return found.pop() if len(found) == 1 else 0.5

    variability = max(values.get("variability", (grid.task.variability,)))
    both = {name: between(name) for name in ("rare_fraction", "context_fraction")}
    return replace(grid.task, variability=variability, **both, **counts)


def run_cells(batch: Batch, flow: Flow, cells: Sequence[Cell]) -> dict[str, np.ndarray]:
    """Where each cell ends, by name of the result; always the same program, filled up with copies
    of the last cell."""
    step = batch.lanes * len(jax.local_devices())
    filled = [*cells, *[cells[-1]] * (-len(cells) % step)]
    parts = []
    for first in range(0, len(filled), step):
        rows = [_arguments(batch, cell) for cell in filled[first : first + step]]
        parts.append(_run(batch, flow, jax.tree.map(lambda *x: np.stack(x), *rows)))
    return jax.tree.map(lambda *x: np.concatenate(x)[: len(cells)], *parts)


def _arguments(batch: Batch, cell: Cell) -> tuple:
    """Probabilities, best IWL score, initial point, weight decay and clamps as arrays."""
    tie = batch.population.tie
    begin = np.full(len(tie.names), cell.start)
    if cell.seed is not None:
        begin *= np.random.default_rng(cell.seed).normal(size=len(begin))
    for name, value in cell.own:
        begin[tie.names.index(name)] = value
    chances = jax.tree.map(np.asarray, odds(cell.task, batch.shape))
    best = np.asarray(best_iwl(cell.task, batch.shape), float)
    held = {name: np.asarray(value, float) for name, value in cell.clamps}
    return chances, best, begin, np.asarray(cell.weight_decay, float), held


@eqx.filter_jit
def _run(batch: Batch, flow: Flow, arguments: tuple) -> dict[str, Array]:
    """The lanes of each device, side by side."""
    mesh = Mesh(np.array(jax.local_devices()), ("cells",))
    lanes = jax.vmap(partial(_run_cell, batch, flow))
    cells = PartitionSpec("cells")
    return jax.shard_map(lanes, mesh=mesh, in_specs=cells, out_specs=cells, check_vma=False)(
        arguments
    )


def _run_cell(batch: Batch, flow: Flow, arguments: tuple) -> dict[str, Array]:
    chances, best, begin, decay, held = arguments
    flow = replace(flow, clamps=(*flow.clamps, *held.items()))
    population = with_odds(batch.population, chances)
    found = reweighted(batch.probes, chances, best)
    tie, seen = population.tie, population.at()
    trace = integrate(tie, flow, seen, found, begin, decay, batch.inverse_metric)
    loss = mean_loss(tie, trace.coordinates[-1], seen, flow.loss)
    return _ending(trace, found, loss)


def _ending(trace: Trace, found: Probes, loss: Float[Array, ""]) -> dict[str, Array]:
    """What a cell reports; scores over time are NaN after an early end."""
    peak, finished = jnp.argmax(trace.icl), ~trace.stopped & (trace.failure == 0)
    saved = jnp.isfinite(trace.times[:-1]) | finished
    reached = jnp.stack([trace.icl[-1], trace.iwl[-1]])
    kind = regime(reached, trace.icl_time, found)
    return {
        "coordinates": trace.coordinates[-1],
        "loss": loss,
        "icl_score": reached[0],
        "iwl_score": reached[1],
        "icl_time": trace.icl_time,
        "iwl_time": trace.iwl_time,
        "icl_peak": trace.icl[peak],
        "icl_peak_time": jnp.minimum(trace.times[peak], trace.end),
        "icl_end": trace.icl_end,
        "regime": jnp.where(trace.failure > 0, -1, kind),
        "failure": trace.failure,
        "steps": trace.steps,
        "end": trace.end,
        "icl_over_time": jnp.where(saved, trace.icl[:-1], jnp.nan),
        "iwl_over_time": jnp.where(saved, trace.iwl[:-1], jnp.nan),
    }
