"""Options of the commands that train transformers or measure their space."""

from dataclasses import dataclass
from pathlib import Path

from fullmodel.boolean.recognizer import (
    Architecture,
    Initialization,
    Norm,
    Positions,
    Rule,
)


@dataclass(frozen=True)
class ArchitectureOptions:
    """A recogniser, and the scale of its initialisation."""

    layers: int = 2
    """L."""
    heads: int = 2
    """H, heads in each layer."""
    width: int = 16
    """D."""
    feedforward: int = 64
    """Hidden units of the feed-forward layers; 0 for attention alone."""
    norm: Norm = "post"
    """Where the layer norm stands."""
    epsilon: float = 1e-5
    """ε of the layer norm."""
    positions: Positions = "learned"
    """Positions are drawn with the rest, or fixed sines and cosines."""
    scale: float = 1.0
    """Half-width, standard deviation, or factor of Xavier's."""
    seed: int = 0
    """Seed of everything random."""
    out: Path | None = None
    """Folder for files; made if it does not exist."""
    json: bool = False
    """One JSON object on standard output, and nothing else there."""

    def architecture(self, length: int) -> Architecture:
        return Architecture(
            length,
            self.layers,
            self.heads,
            self.width,
            self.feedforward or None,
            self.norm,
            self.epsilon,
            self.positions,
        )


@dataclass(frozen=True)
class RecognizerOptions(ArchitectureOptions):
    """A recogniser and its initialisation."""

    initialization: Rule = "xavier_uniform"
    """How parameters are drawn."""

    def drawn(self) -> Initialization:
        return Initialization(self.initialization, self.scale)


def lengths(text: str, limit: int) -> list[int]:
    """N or FIRST:LAST as a list of lengths from 1 to the limit."""
    first, colon, last = text.partition(":")
    try:
        found = list(range(int(first), int(last if colon else first) + 1))
    except ValueError:
        found = []
    if not found or not 1 <= found[0] <= found[-1] <= limit:
        raise ValueError(
            f"Argument `length` must be N or FIRST:LAST from 1 to {limit}, but is {text!r}."
        )
    return found
