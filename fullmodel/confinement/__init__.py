"""Full weights ↔ coordinates, and whether learning stays on the manifold (arXiv 2607.11875)."""

from fullmodel.confinement.measures import (
    Agreement,
    MonteCarlo,
    Trajectories,
    agreement,
    monte_carlo,
    orbit_residual,
    trajectories,
)
from fullmodel.confinement.orbits import orbit_of, smallest
from fullmodel.confinement.projection import (
    at,
    inner_products,
    lifted,
    off_manifold,
    off_span,
    project,
    residual,
    weights,
)
from fullmodel.confinement.verification import Check, Verification, verify

__all__ = [
    "Agreement",
    "Check",
    "MonteCarlo",
    "Trajectories",
    "Verification",
    "agreement",
    "at",
    "inner_products",
    "lifted",
    "monte_carlo",
    "off_manifold",
    "off_span",
    "orbit_of",
    "orbit_residual",
    "project",
    "residual",
    "smallest",
    "trajectories",
    "verify",
    "weights",
]
