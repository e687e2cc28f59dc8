"""What a run returns: coordinates, loss and scores over time, with stats and outcome."""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import xarray as xr
from jaxtyping import Float

TimeUnit = Literal["gradient-flow time", "steps"]


class RunFailure(RuntimeError):
    """A run whose numbers broke down; `solution` keeps everything up to that time."""

    def __init__(self, message: str, solution: "Solution") -> None:
        super().__init__(message)
        self.solution = solution


@dataclass(frozen=True)
class Solution:
    """A finished run.

    `times` in `unit`; `coordinates` in the order of `names`; `loss` in nats (cross-entropy) or
    squared logits; `icl` and `iwl` are probabilities (NaN where a task has no such query).
    `icl_time` and `iwl_time` say when each score exceeded half of the best possible, `None` where
    it never did. `stats` counts solver steps; `outcome` says how the run ended.
    """

    names: tuple[str, ...]
    times: Float[np.ndarray, " T"]
    coordinates: Float[np.ndarray, "T C"]
    loss: Float[np.ndarray, " T"]
    icl: Float[np.ndarray, " T"]
    iwl: Float[np.ndarray, " T"]
    icl_time: float | None
    iwl_time: float | None
    unit: TimeUnit
    outcome: str
    method: str
    stats: dict[str, int] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return self.outcome.startswith("failed")

    @property
    def final(self) -> dict[str, float]:
        """Coordinates at the end, by name."""
        return dict(zip(self.names, self.coordinates[-1].tolist(), strict=True))

    def to_xarray(self) -> xr.Dataset:
        """The run as a Dataset with named coordinates and units."""
        over_time = {
            "loss": (self.loss, "nats or squared logits"),
            "icl_score": (self.icl, "probability"),
            "iwl_score": (self.iwl, "probability"),
        }
        data: dict[str, Any] = {
            name: ("time", value, {"units": unit}) for name, (value, unit) in over_time.items()
        }
        data["coordinates"] = (("time", "coordinate"), self.coordinates, {"units": "1"})
        times = {"icl_time": self.icl_time, "iwl_time": self.iwl_time}
        attributes = {k: np.nan if v is None else v for k, v in times.items()}
        axes = {"time": ("time", self.times, {"units": self.unit}), "coordinate": list(self.names)}
        labels = {"outcome": self.outcome, "method": self.method}
        return xr.Dataset(data, axes, {**attributes, **self.stats, **labels})

    def __str__(self) -> str:
        largest = sorted(self.final.items(), key=lambda item: -abs(item[1]))[:8]
        rest = len(self.names) - len(largest)
        lines = [
            f"{self.method}: {self.outcome} at {self.times[-1]:.6g} ({self.unit})",
            *(f"  {name:<32} {value:+.6g}" for name, value in largest),
            *([f"  and {rest} smaller coordinates"] if rest else []),
            f"loss {self.loss[-1]:.6g}",
            _emergence("ICL", self.icl[-1], self.icl_time),
            _emergence("IWL", self.iwl[-1], self.iwl_time),
            ", ".join(f"{name} {value}" for name, value in self.stats.items()),
        ]
        return "\n".join(lines)


def _emergence(name: str, score: float, time: float | None) -> str:
    if np.isnan(score):
        return f"{name} has no query in this task"
    when = "has not emerged" if time is None else f"emerged at {time:.6g}"
    return f"{name} score {score:.4f}, {when}"
