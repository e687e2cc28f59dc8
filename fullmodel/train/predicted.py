"""What the reduced model says of a full run: its optimiser on coordinates, from the same point.

Exact for runs from the manifold in an exact frame, but for the noise of batches; for others it is a
prediction, from the projection of the initial weights.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from fullmodel.train.run import Run, Setting
from imir.flow import descend
from imir.population import expectation
from imir.scores import probes
from imir.solution import RunFailure, Solution
from imir.ties import free

# Prompts of the expectation, where all cannot be listed.
PROMPTS = 256
# Of the best possible ICL score, 1.
HALF = 0.5


def predicted(setting: Setting, start: Float[np.ndarray, " E"]) -> Solution | None:
    """The reduced run from these coordinates; `None` where coordinates have no such steps."""
    optimizer = setting.recipe.reduced()
    if optimizer is None:
        return None
    tie, keys = free(setting.basis), jax.random.split(setting.key(6))
    population = expectation("auto", tie, setting.task, PROMPTS, keys[0])
    found = probes(tie, setting.task, PROMPTS, keys[1])
    try:
        return descend(
            population,
            jnp.asarray(start, jnp.result_type(float)),
            optimizer,
            setting.recipe.steps,
            loss=setting.recipe.loss,
            probes=found,
        )
    except RunFailure as failure:
        return failure.solution


def emergence(run: Run) -> float | None:
    """When the ICL score first passed half of the best possible, between two records."""
    steps, scores = run.departure.steps, run.departure.icl
    above = np.flatnonzero(scores > HALF)
    if not len(above):
        return None
    around = slice(max(0, above[0] - 1), above[0] + 1)
    return float(np.interp(HALF, scores[around], steps[around]))
