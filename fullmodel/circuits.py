"""The command `imir circuits`."""

import json
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Float

from fullmodel.architecture import Architecture
from fullmodel.checkpoint import restore
from fullmodel.confinement.own_basis import Projection
from fullmodel.mapping import read_mapping
from fullmodel.model import Transformer
from fullmodel.weights import coordinates_of
from imir import plot
from imir.basis import basis_of
from imir.circuits import Circuit, Ticket, detect, measured, ticket
from imir.cli.options import (
    directions_of,
    flow_of,
    folder,
    precision,
    start_of_run,
    task_of,
)
from imir.cli.report import Report, save_report
from imir.cli.training import TrainingOptions, trained
from imir.flow import check
from imir.population import Population, expectation

# Options that training does not depend on.
DETECTION = ("budget", "refit", "ticket", "json", "out")
# A model whose loss is above this share of that of all zeros has learned nothing.
UNLEARNED = 0.95


@dataclass(frozen=True)
class Circuits(TrainingOptions):
    """Find which circuit a model has learned, down to directions finer than heads.

    Trains a model in coordinates, or reads one from a file (--weights, with a --map of its arrays),
    projects it on the manifold, ablates what costs least until the budget is passed, and says in
    words what the surviving directions do. A training run in --out is used again.

    Example: imir circuits --task recall --blocks 6 --rare-fraction 1 --out circuit
    """

    weights: Path | None = None
    """A safetensors or .npz file, or a checkpoint of this package, instead of training."""
    map: Path | None = None
    """TOML file that says which array of it is which (see `fullmodel.mapping`)."""
    budget: float | None = None
    """τ, the loss in nats that the circuit may have; by default a tenth of the way from the model's
    loss to that of a model that knows nothing."""
    refit: bool = False
    """Train the survivors, without the others, before they are measured."""
    ticket: bool = False
    """Train the circuit's directions alone from the same initial point, and all of them."""
    start: float = 0.1
    """Scale of random initial values."""
    samples: int = 256
    """Prompts in a sample, where the expectation is not exact."""
    rtol: float = 1e-4
    """Relative tolerance of the solver."""

    def report(self) -> Report:
        self._check()
        began = time.perf_counter()
        with precision(self):
            task = task_of(self)
            basis = basis_of(task, self.layers, self.heads, self.frame)
            found = None if self.weights is None else self._read(basis)
            tie = directions_of(self, basis)
            check(tie, flow_of(self))
            sampled, _ = jax.random.split(jax.random.key(self.seed))
            population = expectation(self.expectation, tie, task, self.samples, sampled)
            coordinates = self._train(population) if found is None else found.coefficients
            self._learned(population, coordinates)
            refit = flow_of(self, saves=2) if self.refit else None
            circuit = detect(
                population, jnp.asarray(coordinates), self.budget, loss=self.loss, refit=refit
            )
            checked = self._ticket(population, circuit) if self.ticket else None
        seconds = time.perf_counter() - began
        return self._said(circuit, found, checked, seconds)

    def _check(self) -> None:
        if (self.weights is None) and self.map is not None:
            raise ValueError("Argument `map` must come with `weights`, but they are missing.")
        if self.weights is not None and self.ticket:
            raise ValueError(
                "Argument `ticket` must be left out with `weights`, whose initial point is unknown."
            )
        if self.coordinates == "canonical":
            raise ValueError("Argument `coordinates` must be all for a circuit, not canonical.")
        if self.weights is not None and self.coordinates not in ("auto", "all"):
            raise ValueError(
                "Argument `coordinates` must be all with `weights`, which may use every direction."
            )
        if self.optimizer != "flow" and self.ticket:
            raise ValueError(
                "Argument `ticket` must come with the optimizer flow, whose time is "
                f"compared, but it is {self.optimizer}."
            )

    def _read(self, basis) -> Projection:
        assert self.weights is not None
        mapping = None if self.map is None else read_mapping(self.map)
        model = restore(self.weights) if self.weights.is_dir() else self.weights
        if isinstance(model, Transformer):
            _attention_alone(model.architecture)
        found = coordinates_of(model, basis, mapping)
        if found.strange:
            raise ValueError(
                f"Argument `weights` must have learned this task, but its directions explain "
                f"{found.share:.1e} of them ({found.expected_share:.1e} by chance)."
            )
        return found

    def _train(self, population: Population) -> Float[np.ndarray, " C"]:
        """The end of a flow from a random initial point, read where it was kept."""
        training = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in DETECTION}
        text = json.dumps(training, default=str, sort_keys=True)
        kept = self.out and self.out / "solution.nc"
        if kept and kept.exists():
            return _reread(kept, text)
        solution = trained(self, population, start_of_run(self, population.tie), flow_of(self))
        if kept:
            folder(kept.parent)
            run = solution.to_xarray().assign_attrs(training=text)
            run.to_netcdf(kept, engine="h5netcdf")
        return solution.coordinates[-1]

    def _learned(self, population: Population, coordinates: Float[np.ndarray, " C"]) -> None:
        """Refuse to name the circuit of a model that guesses."""
        points = np.stack([coordinates, np.zeros_like(coordinates)])
        (loss, right), (zero, chance) = measured(population, points, self.loss).tolist()
        if loss > UNLEARNED * zero or right <= 2 * chance:
            name = "steps" if self.optimizer != "flow" else "until"
            raise ValueError(
                f"Argument `{name if self.weights is None else 'weights'}` must give a model that "
                f"has learned, but its loss is {loss:.4g} (all zeros: {zero:.4g}) and it is right "
                f"on {right:.2g} of the prompts ({chance:.2g} by chance)."
            )

    def _ticket(self, population: Population, circuit: Circuit) -> Ticket:
        start = start_of_run(self, population.tie)
        return ticket(population, start, circuit.names, flow_of(self, saves=400))

    def _said(
        self,
        circuit: Circuit,
        found: Projection | None,
        checked: Ticket | None,
        seconds: float,
    ) -> Report:
        files = [] if self.out is None else self._draw(circuit, folder(self.out))
        data: dict[str, Any] = {**circuit.as_dict(), "seconds": seconds, "files": files}
        if found is not None:
            names = ("share", "expected_share", "defect", "explained_output")
            data["projection"] = {name: float(getattr(found, name)) for name in names}
            data["projection"]["explained"] = found.explained.tolist()
        if checked is not None:
            reached = np.isfinite(checked.ratio)
            data["ticket"] = {
                "level": checked.level,
                "ratio": checked.ratio if reached else None,
                "time": checked.ticket_time if reached else None,
                "whole_time": checked.whole_time,
            }
        parts = [str(x) for x in (found, circuit, checked) if x is not None]
        return save_report(self, Report("\n".join([*parts, *files]), data))

    def _draw(self, circuit: Circuit, out: Path) -> list[str]:
        return plot.save(plot.circuit_figure(circuit), str(out / "circuit"))


def _attention_alone(architecture: Architecture) -> None:
    """Refuse what coordinates do not speak of."""
    beyond = {"norm": "none", "feed_forward": 0}
    other = [n for n, without in beyond.items() if getattr(architecture, n) != without]
    other += ["rotary positions"] * (architecture.positions == "rotary")
    if other:
        raise ValueError(
            f"Argument `weights` must be a model of attention alone, but has {' and '.join(other)}."
        )


def _reread(file: Path, training: str) -> Float[np.ndarray, " C"]:
    """Final coordinates of a run that was trained as this one would be; refuses another's."""
    try:
        with xr.open_dataset(file, engine="h5netcdf") as run:
            known, values = run.attrs.get("training"), run["coordinates"].isel(time=-1).values
    except (OSError, KeyError, ValueError):
        raise ValueError(
            f"Argument `out` must be a new folder or one of this command, but {file} is no run."
        ) from None
    if known != training:
        raise ValueError(
            f"Argument `out` must hold this training run, but {file} had other options."
        )
    return values
