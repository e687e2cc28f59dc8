"""`imir boolean train`: which functions transformers learn."""

import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from tqdm import tqdm

from fullmodel.boolean.command.options import RecognizerOptions
from fullmodel.boolean.functions import function
from fullmodel.boolean.plot_training import training_figure
from fullmodel.boolean.train import Curves, Schedule, train
from imir.cli.options import folder
from imir.cli.report import Report, save_report
from imir.plot import save


@dataclass(frozen=True)
class Train(RecognizerOptions):
    """Train transformers of several seeds on a Boolean function, evaluated on all strings.

    A run in --out is saved at each evaluation: interrupt it, run it again, and it goes on.

    Example: imir boolean train --function parity --length 8 --out parity
    """

    function: str = "majority"
    """As in `imir boolean profile`."""
    length: int = 10
    """N, bits of a string."""
    width: int = 64
    """D."""
    seeds: int = 4
    """Models, trained side by side."""
    steps: int = 2000
    """Steps of Adam."""
    batch: int = 1024
    """Strings at each step; 0 for all of them."""
    learning_rate: float = 1e-3
    """Of Adam."""
    evaluations: int = 20
    """Points of the curves."""

    def report(self) -> Report:
        schedule = Schedule(self.steps, self.batch, self.learning_rate, self.evaluations)
        f, architecture = function(self.function, self.length), self.architecture(self.length)
        began = time.perf_counter()
        bar = partial(tqdm, file=sys.stderr, unit="evaluation")
        how = architecture, self.drawn(), f, schedule
        curves = train(*how, self.seeds, self.seed, bar, self.out)
        seconds = time.perf_counter() - began
        files = []
        if self.out is not None:
            figure = training_figure(curves, f"{self.function} on {self.length} bits")
            files = save(figure, str(folder(self.out) / "training"))
        data = {**self._data(curves), "seconds": seconds, "files": files}
        return save_report(self, Report("\n".join([*self._lines(curves), *files]), data))

    def _data(self, curves: Curves) -> dict[str, Any]:
        return {
            "function": self.function,
            "length": self.length,
            "steps": curves.steps.tolist(),
            "loss": curves.loss.T.tolist(),
            "accuracy": curves.accuracy.T.tolist(),
            "average_sensitivity": curves.averages.T.tolist(),
            "distance": curves.distances.T.tolist(),
            "profile": curves.profiles[-1].tolist(),
            "wanted_profile": curves.wanted.tolist(),
            "learned": curves.learned.tolist(),
        }

    def _lines(self, curves: Curves) -> list[str]:
        return [
            f"seed {i}: loss {loss:.4g}, accuracy {accuracy:.4f} "
            f"({'learned' if learned else 'not learned'}), distance of profiles {distance:.3f}"
            for i, (loss, accuracy, learned, distance) in enumerate(
                zip(
                    curves.loss[-1],
                    curves.accuracy[-1],
                    curves.learned,
                    curves.distances[-1],
                    strict=True,
                )
            )
        ]
