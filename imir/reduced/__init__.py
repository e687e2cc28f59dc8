"""The reduced model: the full model's logits from coordinates alone."""

from imir.reduced.forward import logits, vocabulary_logits
from imir.reduced.view import View, compressed, stacked, view

__all__ = ["View", "compressed", "logits", "stacked", "view", "vocabulary_logits"]
