"""Reduced against full: the same work, in one run, and what both compute."""

from fullmodel.bench.runs import Limits, Run, Way, race
from fullmodel.bench.steps import Row, Side, compare
from fullmodel.bench.suite import QUICK, Bench, Suite, measure
from fullmodel.bench.table import markdown, write
from fullmodel.bench.work import (
    Work,
    canonical_exact,
    in_batches,
    in_context,
    in_pairs,
    whole_manifold,
)

__all__ = [
    "QUICK",
    "Bench",
    "Limits",
    "Row",
    "Run",
    "Side",
    "Suite",
    "Way",
    "Work",
    "canonical_exact",
    "compare",
    "in_batches",
    "in_context",
    "in_pairs",
    "markdown",
    "measure",
    "race",
    "whole_manifold",
    "write",
]
