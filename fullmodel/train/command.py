"""The command `imir train`."""

import time
from dataclasses import dataclass, fields
from typing import Any, Literal

import jax
import numpy as np

from fullmodel.architecture import Architecture, Embedding, OutputValue, Positions
from fullmodel.checkpoint import save
from fullmodel.confinement.departure import SHARES
from fullmodel.train.plot import departure_figure
from fullmodel.train.predicted import emergence, predicted
from fullmodel.train.recipe import Recipe
from fullmodel.train.run import Origin, Run, Setting, run
from imir import plot
from imir.cli.options import TaskOptions, folder, task_of
from imir.cli.report import Report, number, save_report
from imir.solution import Solution


@dataclass(frozen=True)
class Train(Recipe, Architecture, TaskOptions):
    """Train a full transformer, and see how far off the manifold it goes.

    Any architecture, beside the reduced run from the projection of its initial weights. A run in
    --out is saved as it goes: interrupt it, run the same command again, and it goes on.

    Example: imir train --task recall --layers 2 --width 256 --optimizer adam --out run
    """

    width: int | None = 256
    embedding: Embedding = "gaussian"
    positions: Positions = "sinusoidal"
    output_value: OutputValue = "orthogonal"
    vocabulary: int | None = 64
    rare_vocabulary: int | None = 64
    origin: Origin = "generic"
    """Of the weights. generic: random; manifold: at random coordinates."""
    start: float = 1.0
    """Scale of random initial weights, or coordinates."""
    off: float = 0.0
    """Noise beside a start on the manifold, as a share of the weights' norm."""
    records: int = 20
    """How often the run is measured and saved."""
    precision: Literal["float32", "float64"] = "float32"
    """Floating-point numbers."""

    def __post_init__(self) -> None:
        """Options are checked when they are used, so that all errors read alike."""

    def report(self) -> Report:
        began = time.perf_counter()
        with jax.enable_x64(self.precision == "float64"):
            setting = self._setting()
            found = run(setting, self.records, self.out, bar=True)
        with jax.enable_x64(True):
            reduced = predicted(setting, found.departure.coordinates[0])
        return self._said(found, reduced, time.perf_counter() - began)

    def _setting(self) -> Setting:
        def of(kind):
            return kind(**{f.name: getattr(self, f.name) for f in fields(kind)})

        architecture, recipe = of(Architecture), of(Recipe)
        where = self.origin, self.start, self.off, self.seed
        return Setting(task_of(self), architecture, recipe, *where)

    def _said(self, found: Run, reduced: Solution | None, seconds: float) -> Report:
        d = found.departure
        data = {
            "steps": len(found.losses),
            "loss": float(d.loss[-1]),
            "icl": number(d.icl[-1]),
            "iwl": number(d.iwl[-1]),
            "icl_step": emergence(found),
            "predicted_icl_step": None if reduced is None else reduced.icl_time,
            "matrices": list(d.matrices),
            **{name: [number(x) for x in getattr(d, name)[-1]] for name in SHARES},
            "defect": float(d.defect[-1]),
            "coordinates": dict(zip(d.names, d.coordinates[-1].tolist(), strict=True)),
            "seconds": seconds,
            "files": [] if self.out is None else self._write(found, reduced),
        }
        return save_report(self, Report(_text(data, reduced), data))

    def _write(self, found: Run, reduced: Solution | None) -> list[str]:
        assert self.out is not None
        out = folder(self.out)
        found.departure.to_xarray().assign_coords(
            training_step=np.arange(len(found.losses))
        ).assign(training_loss=("training_step", found.losses)).to_netcdf(
            out / "departure.nc", engine="h5netcdf"
        )
        title = f"{found.setting.task}: {self.optimizer}, {self.layers} layers of {self.heads}"
        figure = departure_figure(found.departure, reduced, title)
        if not (out / "model").exists():
            save(out / "model", found.model)
        files = out / "model", out / "departure.nc"
        return [*map(str, files), *plot.save(figure, str(out / "departure"))]


def _text(data: dict[str, Any], reduced: Solution | None) -> str:
    foreseen = "; these steps have no reduced run"
    if reduced is not None:
        foreseen = f"; in the reduced run at {_shown(data['predicted_icl_step'])}"
    rows = zip(data["matrices"], *(data[name] for name in SHARES), strict=True)
    scores = ", ".join(f"{n.upper()} {data[n]:.3f}" for n in ("icl", "iwl") if data[n] is not None)
    lines = [
        f"{data['steps']} steps in {data['seconds']:.0f} s: loss {data['loss']:.4g}, {scores}",
        f"ICL emerged at step {_shown(data['icl_step'])}{foreseen}",
        "share in the span of Theorem 1".ljust(32) + "".join(f"{name:>10}" for name in SHARES),
        *(f"  {name:<30}" + "".join(map(_share, shares)) for name, *shares in rows),
        f"embedding: {data['defect']:.2g} from orthonormal",
    ]
    return "\n".join([*lines, *data["files"]])


def _shown(step: float | None) -> str:
    return "none" if step is None else f"{step:.0f}"


def _share(value: float | None) -> str:
    if value is None:
        return "—".rjust(10)
    return f"{value:10.4f}" if value > 1e-3 else f"{value:10.0e}"
