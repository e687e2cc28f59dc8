"""The command `imir boolean`: a file for each of its own commands."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, subcommand

from fullmodel.boolean.command.blowup import Blowup
from fullmodel.boolean.command.profile import Profile
from fullmodel.boolean.command.random import Random
from fullmodel.boolean.command.train import Train
from fullmodel.boolean.command.volume import Volumes
from imir.cli.report import Report

__all__ = ["Blowup", "Boolean", "Profile", "Random", "Train", "Volumes"]

Which = (
    Annotated[Profile, subcommand("profile")]
    | Annotated[Random, subcommand("random")]
    | Annotated[Train, subcommand("train")]
    | Annotated[Volumes, subcommand("volume")]
    | Annotated[Blowup, subcommand("blowup")]
)


@dataclass(frozen=True)
class Boolean:
    """Boolean functions in the space of transformers: which are computed, and how sensitive."""

    which: OmitSubcommandPrefixes[OmitArgPrefixes[Which]]

    @property
    def out(self) -> Path | None:
        return self.which.out

    @property
    def json(self) -> bool:
        return self.which.json

    def report(self) -> Report:
        return self.which.report()
