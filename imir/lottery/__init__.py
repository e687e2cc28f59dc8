"""The lottery: which circuit wins, and which initial point chose it."""

from imir.lottery.boundary import Boundary, boundary
from imir.lottery.chart import lottery_map, neighbours, population_of, starts_of
from imir.lottery.ends import ends
from imir.lottery.influence import Influence, influence, moved
from imir.lottery.predictors import Prediction, predict
from imir.lottery.race import NOBODY, leads, rival_circuits, rivals, winners

__all__ = [
    "NOBODY",
    "Boundary",
    "Influence",
    "Prediction",
    "boundary",
    "ends",
    "influence",
    "leads",
    "lottery_map",
    "moved",
    "neighbours",
    "population_of",
    "predict",
    "rival_circuits",
    "rivals",
    "starts_of",
    "winners",
]
