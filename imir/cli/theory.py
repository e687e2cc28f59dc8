"""`imir theory`: theorems, predicted beside measured."""

from dataclasses import dataclass
from pathlib import Path

import jax
from tqdm import tqdm

from imir import plot
from imir.cli.options import folder
from imir.cli.report import Report, save_report
from imir.theory import TABLES, Table


@dataclass(frozen=True)
class Theory:
    """Check the theorems: predicted beside measured; exit status 1 where one fails.

    Example: imir theory --out theory
    """

    out: Path | None = None
    """Folder for files; made if it does not exist."""
    json: bool = False
    """One JSON object on standard output, and nothing else there."""

    def report(self) -> Report:
        tables: dict[str, Table] = {}
        with jax.enable_x64(True), tqdm(TABLES.items(), unit="theorem") as bar:
            for name, measure in bar:
                bar.set_postfix_str(name)
                tables[name] = measure()
        passed = all(table.passed for table in tables.values())
        files = [] if self.out is None else self._draw(tables, folder(self.out))
        data = {
            "tables": [table.as_dict() for table in tables.values()],
            "passed": passed,
            "files": files,
        }
        text = "\n\n".join(map(str, tables.values()))
        return save_report(self, Report("\n".join([text, *files]), data, status=int(not passed)))

    def _draw(self, tables: dict[str, Table], out: Path) -> list[str]:
        return plot.save(plot.theory_figure(tables), str(out / "theory"))
