"""How much of parameter space computes a given function."""

from fullmodel.boolean.volume.estimate import Count, Repeat, Volume, from_count, from_repeats
from fullmodel.boolean.volume.measure import Budget, Record, pieces, volume, volume_of
from fullmodel.boolean.volume.models import models
from fullmodel.boolean.volume.plain import hits
from fullmodel.boolean.volume.space import Space, gaussian_move, uniform_move
from fullmodel.boolean.volume.splitting import Descent, Splitting, descend

__all__ = [
    "Budget",
    "Count",
    "Descent",
    "Record",
    "Repeat",
    "Space",
    "Splitting",
    "Volume",
    "descend",
    "from_count",
    "from_repeats",
    "gaussian_move",
    "hits",
    "models",
    "pieces",
    "uniform_move",
    "volume",
    "volume_of",
]
