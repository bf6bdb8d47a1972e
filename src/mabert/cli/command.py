"""What all subcommands share: how one is added, and how it speaks."""

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
"""Draws a subcommand's result into a folder, given the subcommand's name; says what it drew, a line each."""


def draw_nothing(command: str, result: dict[str, Any], folder: Path) -> Iterator[str]:
    """Draws nothing: pictures and pages are the lab's."""
    return iter(())


class Parser(argparse.ArgumentParser):
    """Refuses what it cannot take in one line, and names the help in place of printing it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {' '.join(message.split())[:300]}; see {self.prog} --help\n")


class Ranged(argparse.Action):
    """Stores numbers within a range.

    Args:
        range: What each must be.
        named: As argparse has it.
    """

    def __init__(self, range: Range, **named: Any) -> None:
        super().__init__(**named)
        self.range = range

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        for value in values if isinstance(values, list) else [values]:
            self.range.check(value, str(option_string))
        setattr(namespace, self.dest, values)


def within(range: Range) -> Any:
    """The action of an option that takes numbers within a range; argparse takes a partial class, its stubs do not."""
    return partial(Ranged, range)


def add_field(group: Any, recipe: type, name: str, option: str, text: str) -> None:
    """Adds the option of a recipe's field, with its type, range, choices and default.

    Args:
        group: Of the parser.
        recipe: The dataclass.
        name: Of the field.
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
    """A subcommand with what all of them have."""
    added = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
    added.add_argument("--debug", action="store_true", help="show the traceback of an error")
    added.set_defaults(run=run)
    return added


def load_libraries() -> None:
    """Loads torch and transformers, which takes seconds, and keeps them quiet.

    A command calls this once it has refused what can be refused without them.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def quoted(text: str) -> str:
    """Text as YAML takes it."""
    return "'" + text.replace("'", "''") + "'"


def complain(message: str) -> None:
    """One line on standard error, if there is one."""
    if sys.stderr is not None:
        sys.stderr.write(f"mabert: {message}\n")


def say(text: str) -> None:
    """One line on standard output, if there is one."""
    if sys.stdout is not None:
        sys.stdout.write(text + "\n")


def say_written(output: str | None, what: str) -> None:
    """What was written to a file; nothing where the answers themselves went to standard output."""
    if output is not None:
        say(f"{output}: {what}")
