"""The command `imir boolean profile | random`: a file for each of the two."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, subcommand

from fullmodel.boolean.command.profile import Profile
from fullmodel.boolean.command.random import Random
from imir.cli.report import Report

__all__ = ["Boolean", "Profile", "Random"]

Which = Annotated[Profile, subcommand("profile")] | Annotated[Random, subcommand("random")]


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
