"""imir: learning dynamics of transformers on the invariant manifold of inductive reasoning.

From a task in one line to its phase diagram:

    task = imir.Task("recall", blocks=16, rare_fraction=0.3, variability=0.2)
    tie = imir.canonical(task)
    population = imir.exact(tie, task)
    solution = imir.gradient_flow(population, 1e-3)
"""

from imir.basis import Basis, Element, Selection, basis_of
from imir.canonical import canonical
from imir.corpus import Corpus, CorpusStatistics, measure
from imir.flow import Flow, Optimizer, descend, gradient_flow
from imir.phases import Axis, axis, phase_diagram, regime_counts
from imir.population import (
    Population,
    exact,
    expectation,
    expected_loss,
    fixed,
    fixed_sample,
    fresh_sample,
)
from imir.prompts import Prompts, orbit, random_image
from imir.relations import Configuration, Motif, Relation, cycle, single
from imir.scores import REGIMES, Probes, probes
from imir.solution import RunFailure, Solution
from imir.tasks.enumeration import TooManyPrompts, enumerate_prompts
from imir.tasks.outcomes import Odds, Question, odds, sample
from imir.tasks.task import Task
from imir.tasks.template import Template, named, parse
from imir.ties import REDUCTIONS, Tie, free, short, tie

__all__ = [
    "REDUCTIONS",
    "REGIMES",
    "Axis",
    "Basis",
    "Configuration",
    "Corpus",
    "CorpusStatistics",
    "Element",
    "Flow",
    "Motif",
    "Odds",
    "Optimizer",
    "Population",
    "Probes",
    "Prompts",
    "Question",
    "Relation",
    "RunFailure",
    "Selection",
    "Solution",
    "Task",
    "Template",
    "Tie",
    "TooManyPrompts",
    "axis",
    "basis_of",
    "canonical",
    "cycle",
    "descend",
    "enumerate_prompts",
    "exact",
    "expectation",
    "expected_loss",
    "fixed",
    "fixed_sample",
    "free",
    "fresh_sample",
    "gradient_flow",
    "measure",
    "named",
    "odds",
    "orbit",
    "parse",
    "phase_diagram",
    "probes",
    "random_image",
    "regime_counts",
    "sample",
    "short",
    "single",
    "tie",
]
