"""Which transformer: the theorem's by default, and each way in which people's depart from it."""

from dataclasses import dataclass
from typing import Literal, get_args, get_type_hints

Embedding = Literal["exact", "sinusoidal", "gaussian", "learned"]
Positions = Literal["exact", "sinusoidal", "absolute", "rotary"]
OutputValue = Literal["exact", "orthogonal", "learned"]


@dataclass(frozen=True)
class Architecture:
    """An architecture; `ValueError` for options that contradict each other.

    The defaults are the transformer of arXiv 2607.11875, section 3, for which Theorem 1 holds.
    """

    layers: int = 2
    """L, layers of attention."""
    heads: int = 1
    """H, heads in each layer."""
    width: int | None = None
    """d of the residual stream; by default the smallest that exact parts need."""
    embedding: Embedding = "exact"
    """Of tokens. exact: one-hot up to centring; sinusoidal: cosines with independent phases;
    gaussian: fixed random; learned: trained from there."""
    positions: Positions = "exact"
    """exact: a one-hot ring for each block; sinusoidal: independent phases for each block and
    frequency; absolute: a trained row for each place of the prompt; rotary: keys and queries are
    turned by their place."""
    output_value: OutputValue = "exact"
    """exact: each head writes a fresh copy; orthogonal: fixed random rotations; learned."""
    stream: Literal["additive", "concatenated"] = "additive"
    """additive: heads add to one stream; concatenated: each head writes to dimensions of its own,
    (H + 1)^L copies of the embedding."""
    key_query: Literal["merged", "factorised"] = "merged"
    """merged: one matrix for each head; factorised: W = Q Kᵀ / √(head size)."""
    head_size: int | None = None
    """Of factorised heads; by default d / H."""
    norm: Literal["none", "layer", "rms"] = "none"
    """Of the residual stream, with trained gains."""
    norm_place: Literal["before", "after"] = "before"
    """before: each part reads the normed stream, and so do the logits; after: the stream itself is
    normed after each part."""
    feed_forward: int = 0
    """Hidden width of a GELU layer after each layer of attention; 0 for none."""
    predict: Literal["last", "repeated"] = "last"
    """Where the loss is taken. last: the last place; repeated: also each place whose token
    occurred before and was followed by the same token, which the context therefore tells."""

    def __post_init__(self) -> None:
        for name, choices in get_type_hints(Architecture).items():
            given, known = getattr(self, name), get_args(choices)
            if isinstance(given, str) and given not in known:
                raise wrong(name, f"one of {', '.join(known)}", given)
        for name, least in (("layers", 1), ("heads", 1), ("feed_forward", 0)):
            if getattr(self, name) < least:
                raise wrong(name, f"at least {least}", getattr(self, name))
        for name in ("width", "head_size"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise wrong(name, "positive", getattr(self, name))
        self._check_exact_parts()
        self._check_heads()

    def _check_exact_parts(self) -> None:
        if self.positions == "exact" and self.embedding != "exact":
            raise wrong("positions", f"inexact with {self.embedding} tokens", "exact")
        if self.embedding != "exact" and self.width is None:
            raise wrong("width", f"given with {self.embedding} tokens", None)
        if self.stream == "concatenated" and self.output_value == "learned":
            raise wrong("output_value", "exact or orthogonal in a concatenated stream", "learned")

    def _check_heads(self) -> None:
        factorised = self.key_query == "factorised"
        if self.positions == "rotary" and not factorised:
            raise wrong("key_query", "factorised with rotary positions", "merged")
        if self.head_size is not None and not factorised:
            raise wrong("head_size", "left out with merged heads", self.head_size)
        if factorised and self.head_size is None:
            if self.width is None:
                raise wrong("head_size", "given where `width` is not", None)
            if self.width % self.heads:
                raise wrong("heads", f"a divisor of the width {self.width}", self.heads)
        if self.positions == "rotary" and self.inner(self.width or 0) % 2:
            raise wrong("head_size", "even with rotary positions", self.inner(self.width or 0))

    @property
    def copies(self) -> int:
        """How many copies of the embedding space the stream has room for, one for each path."""
        paths = (self.heads + 1) ** self.layers
        return paths if self.stream == "concatenated" or self.output_value == "exact" else 1

    def inner(self, width: int) -> int:
        """Dimensions in which a factorised head compares queries with keys."""
        return self.head_size or width // self.heads


def wrong(name: str, wanted: str, given: object) -> ValueError:
    """The error of an argument that must be something else."""
    return ValueError(f"Argument `{name}` must be {wanted}, but is {given}.")
