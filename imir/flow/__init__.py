"""Gradient flow and discrete optimisers in coordinates."""

from imir.flow.descent import Optimizer, descend
from imir.flow.gradient import (
    Flow,
    check,
    gradient_flow,
    integrate,
    save_times,
    start_of,
    velocity,
)
from imir.flow.metric import BlockInverse, inverse
from imir.flow.trace import FAILURES, Trace

__all__ = [
    "FAILURES",
    "BlockInverse",
    "Flow",
    "Optimizer",
    "Trace",
    "check",
    "descend",
    "gradient_flow",
    "integrate",
    "inverse",
    "save_times",
    "start_of",
    "velocity",
]
