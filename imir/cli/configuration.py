"""Commands as TOML files: written beside results, given back with --config."""

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import tomli_w


def save_configuration(command: Any, out: Path) -> str:
    """The command's options as TOML, to be given back with --config."""
    values = {f.name: getattr(command, f.name) for f in fields(command)}
    kept = {k: _plain(v) for k, v in values.items() if v is not None and k != "json"}
    (out / "config.toml").write_text(tomli_w.dumps(kept))
    return str(out / "config.toml")


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return str(value) if isinstance(value, Path) else value


def arguments_from(file: Path) -> list[str]:
    """The options in a TOML file as command-line arguments; `files` are positional."""
    try:
        options = tomllib.loads(file.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ValueError(
            f"Argument `config` must be a readable TOML file, but {str(file)!r} is not ({error})."
        ) from None
    arguments = []
    for key, value in options.items():
        flag = f"--{key.replace('_', '-')}"
        if key == "files":
            arguments = [*map(str, value), *arguments]
        elif isinstance(value, bool):
            arguments += [flag] if value else []
        elif not isinstance(value, list):
            arguments += [flag, str(value)]
        elif value:
            arguments += [flag, *map(str, value)]
    return arguments
