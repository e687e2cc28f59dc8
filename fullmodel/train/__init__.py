"""Training of full models: jitted steps, runs that survive interruption, and their recipes."""

from fullmodel.train.steps import CHUNK, Sampler, Training, train, value_and_gradient

__all__ = ["CHUNK", "Sampler", "Training", "train", "value_and_gradient"]
