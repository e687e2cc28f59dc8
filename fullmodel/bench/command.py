"""The command `imir bench`."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jax
from jax.experimental.compilation_cache.compilation_cache import reset_cache
from tqdm import tqdm

from fullmodel.bench.suite import QUICK, Suite, measure
from fullmodel.bench.table import accelerated, around, markdown, write
from imir.cli.report import Report, save_report


@dataclass(frozen=True)
class Bench:
    """Time the reduced model against the full one on the same work in one run.

    Prints ratios, and beside them how far the two sides agree. Nothing else should run meanwhile.

    Example: imir bench --quick
    """

    quick: bool = False
    """Small sizes only: seconds instead of minutes."""
    write: Path | None = None
    """File whose text between <!-- bench --> and <!-- /bench --> becomes the table."""
    out: Path | None = None
    """Folder for files; made if it does not exist."""
    json: bool = False
    """One JSON object on standard output, and nothing else there."""

    def report(self) -> Report:
        suite = QUICK if self.quick else Suite()
        if self.write is not None:
            around(self.write)
        with jax.enable_x64(True), _compiling():
            found = measure(suite, lambda calls: iter(tqdm(calls, file=sys.stderr)))
        text = "\n\n".join([markdown(found), *self._accelerated()])
        if self.write is not None:
            write(self.write, text)
        return save_report(self, Report(text, found.as_dict()))

    def _accelerated(self) -> list[str]:
        """What stands in benchmarks/accelerator.json beside the file, if it is there."""
        file = self.write and self.write.parent / "benchmarks" / "accelerator.json"
        return [accelerated(json.loads(file.read_text()))] if file and file.exists() else []


@contextmanager
def _compiling() -> Iterator[None]:
    """Without programs remembered on disk: the time to compile is measured too."""
    before = jax.config.jax_enable_compilation_cache  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_enable_compilation_cache", False)
    reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        reset_cache()
