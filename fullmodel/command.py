"""The command `imir verify`."""

import sys
import time
from dataclasses import dataclass

from fullmodel.confinement import verify
from imir.cli.options import ModelOptions, task_of
from imir.cli.report import Report, save_report
from imir.flow import Optimizer


@dataclass(frozen=True)
class Verify(ModelOptions):
    """Prove on this machine that the reduced run is the full run.

    Compares the full transformer with the reduced model on the smallest prompts of the task
    (`--blocks` and the vocabularies are chosen for that): logits and gradients, Theorem 1 over an
    orbit and by Monte Carlo, and two training runs side by side. Exit status 1 if a check fails.

    Example: imir verify --task 2hop --layers 2
    """

    steps: int = 500
    """Training steps side by side; fewer where the orbit is large."""
    learning_rate: float | None = None
    """Of those steps; by default 0.05 (momentum), and 0.01 (Adam) in the one-hot frame."""

    def report(self) -> Report:
        if self.steps < 1:
            raise ValueError(f"Argument `steps` must be at least 1, but is {self.steps}.")
        task = task_of(self)
        began = time.perf_counter()
        found = verify(
            task,
            layers=self.layers,
            heads=self.heads,
            frame=self.frame,
            optimizer=self._optimizer(),
            steps=self.steps,
            seed=self.seed,
            progress=lambda line: print(line, file=sys.stderr),
        )
        seconds = time.perf_counter() - began
        verdict = f"{'passed' if found.passed else 'FAILED'} in {seconds:.0f} s"
        data = {**found.as_dict(), "seconds": seconds}
        report = Report(f"{found}\n{verdict}", data, 0 if found.passed else 1)
        return save_report(self, report)

    def _optimizer(self) -> Optimizer | None:
        if self.learning_rate is None:
            return None
        name = "adam" if self.frame == "onehot" else "momentum"
        return Optimizer(name, self.learning_rate)
