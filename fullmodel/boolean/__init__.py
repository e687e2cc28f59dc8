"""Boolean functions in the parameter space of transformers (arXiv 2606.08768)."""

from fullmodel.boolean.ensemble import Ensemble, bound, control, transformers, zero_share
from fullmodel.boolean.functions import Counting, Function, Tabulated, function, string, table
from fullmodel.boolean.recognizer import (
    Architecture,
    Initialization,
    Parameters,
    Tables,
    bits_of,
    initial,
    margins,
    truth_table,
    variances,
)
from fullmodel.boolean.sensitivity import (
    Estimate,
    Sensitivity,
    estimate,
    sensitivity,
    zero_strings,
)

__all__ = [
    "Architecture",
    "Counting",
    "Ensemble",
    "Estimate",
    "Function",
    "Initialization",
    "Parameters",
    "Sensitivity",
    "Tables",
    "Tabulated",
    "bits_of",
    "bound",
    "control",
    "estimate",
    "function",
    "initial",
    "margins",
    "sensitivity",
    "string",
    "table",
    "transformers",
    "truth_table",
    "variances",
    "zero_share",
    "zero_strings",
]
