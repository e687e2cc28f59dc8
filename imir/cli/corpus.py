"""`imir corpus`: real text measured."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from imir.cli.report import Report, save_report
from imir.corpus import Corpus as Measured
from imir.corpus import Tokenization, measure


@dataclass(frozen=True)
class Corpus:
    """Measure real text: the same statistics that the phase diagrams have as axes.

    Example: imir corpus book.txt --tokenization words --context 64
    """

    files: tyro.conf.Positional[tuple[Path, ...]]
    """Text files."""
    tokenization: Tokenization = "words"
    """words, characters or bytes."""
    context: int = 64
    """Tokens of context."""
    rare_count: int = 10
    """A token that occurs fewer times is rare."""
    seed: int = 0
    """Seed of the shuffled baseline."""
    out: Path | None = None
    """Folder for files; made if it does not exist."""
    json: bool = False
    """JSON on standard output (one object, or a list of them for several files)."""

    def report(self) -> Report:
        if not self.files:
            raise ValueError("Argument `files` must name at least one text, but is empty.")
        measured = [
            measure(
                file,
                tokenization=self.tokenization,
                context=self.context,
                rare_count=self.rare_count,
                seed=self.seed,
                progress=True,
            )
            for file in self.files
        ]
        data = [corpus.as_dict() for corpus in measured]
        data = data[0] if len(data) == 1 else data
        report = Report("\n\n".join(map(_table, measured)), data)
        return save_report(self, report)


def _table(corpus: Measured) -> str:
    """Statistics of a text beside those of its shuffled copy."""
    text, shuffled = corpus.text.as_dict(), corpus.shuffled.as_dict()
    rows = [f"{corpus.text.name:<22} {'text':>12} {'shuffled':>12}"]
    for name, value in text.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            other = shuffled[name]
            rows.append(f"{name:<22} {value:>12.5g} {other:>12.5g}")
    return "\n".join(rows)
