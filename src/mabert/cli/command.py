"""What all subcommands share: adding them to the parser, and output."""

import argparse
import dataclasses
import os
import sys
import typing
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from mabert.bounds import Range

Draw = Callable[[str, dict[str, Any], Path], Iterator[str]]
"""Draws the result of the named subcommand into a folder; yields a line for each thing drawn."""


def draw_nothing(command: str, result: dict[str, Any], folder: Path) -> Iterator[str]:
    """Draws nothing: pictures and pages are the lab's."""
    return iter(())


class Parser(argparse.ArgumentParser):
    """Refuses bad arguments in one line, and names the help instead of printing it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {' '.join(message.split())[:300]}; see {self.prog} --help\n")


class Ranged(argparse.Action):
    """Stores numbers within a range.

    Args:
        range: Range that each number must be in.
        named: Arguments of argparse.Action.
    """

    def __init__(self, range: Range, **named: Any) -> None:
        super().__init__(**named)
        self.range = range

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        for value in values if isinstance(values, list) else [values]:
            self.range.check(value, str(option_string))
        setattr(namespace, self.dest, values)


def within(range: Range) -> Any:
    """Returns the action of an option for numbers within a range; argparse takes a partial class, its stubs do not."""
    return partial(Ranged, range)


def add_field(group: Any, recipe: type, name: str, option: str, text: str) -> None:
    """Adds the option of a recipe's field, with its type, range, choices and default.

    Args:
        group: Group of the parser.
        recipe: The dataclass.
        name: Name of the field.
        option: Its name on the command line.
        text: Help, to which the default is added.
    """
    default = next(field.default for field in dataclasses.fields(recipe) if field.name == name)
    hint = typing.get_type_hints(recipe, include_extras=True)[name]
    if hint is bool:
        group.add_argument(option, dest=name, action="store_true", help=text)
        return
    how: dict[str, Any] = {"dest": name, "default": default}
    how["help"] = text if default is None else f"{text} [%(default)s]".strip()
    hint = next(each for each in typing.get_args(hint) if each is not type(None)) if default is None else hint
    if typing.get_origin(hint) is list:
        how["nargs"], (hint,) = "+", typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        how["choices"] = typing.get_args(hint)
    else:
        how["metavar"] = option.removeprefix("--").replace("-", "_").upper()
        how["type"], range = typing.get_args(hint)
        how["action"] = within(range)
    group.add_argument(option, **how)


def command(commands: Any, name: str, run: Callable[[argparse.Namespace], None], text: str) -> argparse.ArgumentParser:
    """Adds a subcommand with the options that all of them have."""
    added = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
    added.add_argument("--debug", action="store_true", help="show the traceback of an error")
    added.set_defaults(run=run, parser=added)
    return added


def load_libraries() -> None:
    """Loads torch and transformers, which takes seconds, and keeps them quiet.

    A command calls this after the checks that do not need them.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    from transformers.utils import logging

    import mabert.conversion.delta  # noqa: F401 -- registers the models, and how deltas are read

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def quoted(text: str) -> str:
    """Quotes text for YAML."""
    return "'" + text.replace("'", "''") + "'"


def complain(message: str) -> None:
    """Writes one line to standard error, if there is one."""
    if sys.stderr is not None:
        sys.stderr.write(f"mabert: {message}\n")


def say(text: str) -> None:
    """Writes one line to standard output, if there is one."""
    if sys.stdout is not None:
        sys.stdout.write(text + "\n")


def say_written(output: str | None, what: str) -> None:
    """Says what was written to a file; says nothing if the answers went to standard output."""
    if output is not None:
        say(f"{output}: {what}")
