"""The command line: `imir basis | simulate | phase | corpus | theory | verify | bench | boolean`.

Each command is a dataclass, in a file of its own, whose fields are its options and whose `report`
does the work. Other packages register commands under the entry point group `imir.commands`.
"""

from imir.cli.main import main, remember_programs, run

__all__ = ["main", "remember_programs", "run"]
