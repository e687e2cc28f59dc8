"""How the commands that train one model in coordinates do it."""

from dataclasses import dataclass, replace
from typing import Literal

import jax

from imir.cli.options import RunOptions
from imir.flow import Flow, Optimizer, descend, gradient_flow
from imir.population import Population
from imir.scores import Probes
from imir.solution import Solution

# Attention entries in one gradient from which a run is long.
LONG = 1_000_000


@dataclass(frozen=True)
class TrainingOptions(RunOptions):
    """A run in coordinates, and its optimiser."""

    optimizer: Literal["flow", "sgd", "momentum", "adam"] = "flow"
    """flow: gradient flow; otherwise discrete steps (adam needs the one-hot frame)."""
    learning_rate: float = 1.0
    """Of discrete steps."""
    steps: int = 1000
    """Number of discrete steps."""


def trained(
    options: TrainingOptions,
    population: Population,
    start: jax.Array,
    flow: Flow,
    found: Probes | None = None,
) -> Solution:
    """The run that the options ask for; its weights may also move by discrete steps."""
    decay = options.weight_decay
    if options.optimizer == "flow":
        # A bar needs a callback, which keeps a program out of the cache: only for long work.
        length = 0 if population.task is None else population.task.length
        flow = replace(flow, progress=population.size * length**2 > LONG)
        return gradient_flow(population, start, flow, probes=found, weight_decay=decay)
    chosen = Optimizer(options.optimizer, options.learning_rate, weight_decay=decay)
    return descend(population, start, chosen, options.steps, loss=options.loss, probes=found)
