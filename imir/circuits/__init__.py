"""Circuits: which directions of the manifold a model needs, and what they do."""

from imir.circuits.ablation import Effort, losses
from imir.circuits.circuit import Circuit, Comparison, Measure, Removal, Unit, compare
from imir.circuits.detection import detect
from imir.circuits.elimination import Elimination, eliminate, eliminate_plainly, select
from imir.circuits.graph import Edge, edges
from imir.circuits.measures import accuracy, measured
from imir.circuits.ticket import Ticket, restricted, subtie, ticket
from imir.circuits.words import describe, role

__all__ = [
    "Circuit",
    "Comparison",
    "Edge",
    "Effort",
    "Elimination",
    "Measure",
    "Removal",
    "Ticket",
    "Unit",
    "accuracy",
    "compare",
    "describe",
    "detect",
    "edges",
    "eliminate",
    "eliminate_plainly",
    "losses",
    "measured",
    "restricted",
    "role",
    "select",
    "subtie",
    "ticket",
]
