"""A standard transformer on longer and longer prompts, as a public replication of arXiv 2607.11875
trained it.

It reported that three canonical directions capture 0.5 % of the update, no more than random ones,
and emergence growing as L^0.83 … L^1.27 with the length L where gradient flow has L². Here the
whole span stands beside the canonical directions, and the reduced run by the same optimiser beside
the full one: AdamW's steps do not shrink with the gradient, so that L² need not be theirs.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import xarray as xr

from fullmodel.depart.laws import Law, law_of
from fullmodel.depart.rows import standard
from fullmodel.depart.runs import Bar
from fullmodel.depart.table import Row, finished, rows_of
from imir.tasks.task import Task

BLOCKS = (4, 8, 16)
# Enough for the longest prompt, and the same for all.
VOCABULARY = 72


@dataclass(frozen=True)
class Replication:
    """A row for each number of blocks; laws of emergence over the prompt's length.

    A law is `None` where ICL did not emerge in every run.
    """

    rows: tuple[Row, ...]
    observed: Law | None
    predicted: Law | None


def replication(seeds: int, out: Path | None = None, bar: Bar = iter) -> Replication:
    """The standard transformer for each number of blocks, over several seeds."""
    tasks = [Task("recall", n, rare_fraction=1.0, rare_vocabulary=VOCABULARY) for n in BLOCKS]
    settings = {f"{t.blocks} blocks": replace(standard(), task=t) for t in tasks}
    rows, runs = rows_of(settings, seeds, out, bar)
    lengths = [task.length for task in tasks]
    laws = (_law(lengths, runs, key) for key in ("icl_step", "predicted_icl_step"))
    return Replication(tuple(rows), *laws)


def _law(lengths: list[int], runs: list[xr.Dataset], key: str) -> Law | None:
    good = finished(runs)
    steps = np.array([run.attrs[key] for run in good], float)
    if len(good) < len(runs) or not np.all(np.isfinite(steps)):
        return None
    return law_of(f"{key} over length", lengths, steps.reshape(len(lengths), -1), None)
