"""Sweeps of runs over the parameters of a task: phase diagrams."""

from imir.phases.grid import Axis, Cell, Grid, axis
from imir.phases.store import read, regime_counts
from imir.phases.sweep import phase_diagram

__all__ = ["Axis", "Cell", "Grid", "axis", "phase_diagram", "read", "regime_counts"]
