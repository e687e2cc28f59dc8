"""The departures of the table: settings that change one thing each.

The first rows depart from the theorem's own transformer, trained by momentum from a point of the
manifold; the others from a transformer in a random frame of width 128, trained by AdamW from random
weights, as people train.
"""

from dataclasses import replace
from typing import Any

from fullmodel.architecture import Architecture
from fullmodel.train.recipe import Recipe
from fullmodel.train.run import Setting
from imir.tasks.task import Task

TASK = Task("recall", 4, rare_fraction=1.0, rare_vocabulary=17)
THEOREM = Setting(TASK, Architecture(), Recipe("momentum", 1.0, 400, 256), "manifold", 0.1)
PEOPLE = Setting(
    TASK,
    Architecture(
        width=128, embedding="gaussian", positions="sinusoidal", output_value="orthogonal"
    ),
    Recipe("adamw", 3e-3, 800, 256),
)
# The public replication of arXiv 2607.11875 that found no span: two layers, four heads, d = 128.
STANDARD = Architecture(
    heads=4,
    width=128,
    embedding="learned",
    positions="absolute",
    output_value="learned",
    key_query="factorised",
    norm="layer",
    feed_forward=512,
)


def rows() -> dict[str, Setting]:
    """Every departure by its name in the table."""
    return {**_from_the_theorem(), **_from_people()}


def _from_the_theorem() -> dict[str, Setting]:
    of = THEOREM
    random = {"positions": "sinusoidal", "output_value": "orthogonal", "width": 128}
    return {
        "the theorem's assumptions": of,
        "batch 32": _trained(of, batch=32),
        "batch 2048": _trained(of, batch=2048),
        "plain SGD": _trained(of, optimizer="sgd", learning_rate=10.0),
        "Adam, ε = 1e-3": _trained(of, optimizer="adam", learning_rate=1e-2, epsilon=1e-3),
        "weight decay 1e-4": _trained(of, weight_decay=1e-4),
        "start 10% off": replace(of, off=0.1),
        "start 100% off": replace(of, off=1.0),
        "random start": replace(of, origin="generic", start=1.0),
        "random maps": _built(of, output_value="orthogonal"),
        "Gaussian frame, d = 128": _built(of, embedding="gaussian", **random),
        "Gaussian frame, d = 512": _built(of, embedding="gaussian", **{**random, "width": 512}),
        "sinusoidal frame, d = 128": _built(of, embedding="sinusoidal", **random),
    }


def _from_people() -> dict[str, Setting]:
    of = PEOPLE
    factorised = {"key_query": "factorised"}
    # Only tokens that stand twice are predictable before the end.
    twice = replace(of, task=replace(TASK, burstiness=2))
    return {
        "AdamW in a Gaussian frame": of,
        "d = 64": _built(of, width=64),
        "d = 256": _built(of, width=256),
        "sinusoidal tokens": _built(of, embedding="sinusoidal"),
        "learned tokens": _built(of, embedding="learned"),
        "absolute positions": _built(of, positions="absolute"),
        "learned maps": _built(of, output_value="learned"),
        "concatenated stream": _built(of, stream="concatenated"),
        "factorised heads": _built(of, **factorised),
        "rotary positions": _built(of, positions="rotary", **factorised),
        "layer norm before": _built(of, norm="layer"),
        "layer norm after": _built(of, norm="layer", norm_place="after"),
        "RMS norm before": _built(of, norm="rms"),
        "feed-forward 512": _built(of, feed_forward=512),
        "4 heads": _built(of, heads=4),
        "relevant block twice": twice,
        "the same, loss at every place": _built(twice, predict="repeated"),
        "SGD": _trained(of, optimizer="sgd", learning_rate=10.0),
        "momentum": _trained(of, optimizer="momentum", learning_rate=1.0),
        "Muon": _trained(of, optimizer="muon", learning_rate=1e-2),
        "decay 0.1": _trained(of, weight_decay=0.1),
        "standard transformer": standard(),
    }


def standard() -> Setting:
    """A transformer as people build and train it: nothing of the theorem's assumptions is left."""
    return replace(_trained(PEOPLE, learning_rate=1e-3, steps=2000), architecture=STANDARD)


def _built(setting: Setting, **changes: Any) -> Setting:
    return replace(setting, architecture=replace(setting.architecture, **changes))


def _trained(setting: Setting, **changes: Any) -> Setting:
    return replace(setting, recipe=replace(setting.recipe, **changes))
