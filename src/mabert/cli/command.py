"""What all subcommands share: adding them to the parser, and output."""

import argparse
import dataclasses
import os
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from mabert.schema.check import check, hints_of
from mabert.schema.ranges import ONE_OR_MORE, alternatives

DEBUG = "show the traceback of an error"
"""Help of the option that stands before or after a command."""

Draw = Callable[[str, dict[str, Any], Path], Iterator[str]]
"""Draws the result of the named subcommand into a folder; yields a line for each thing drawn."""


def draw_nothing(command: str, result: dict[str, Any], folder: Path) -> Iterator[str]:
    """Draws nothing: pictures and pages are the lab's."""
    return iter(())


class Parser(argparse.ArgumentParser):
    """Refuses bad arguments in one line, and names the help instead of printing it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {' '.join(message.split())[:300]}; see {self.prog} --help\n")


class OptionError(Exception):
    """An option has a wrong value. It is no ValueError, whose message argparse would drop."""


def number(option: str, hint: Any) -> Callable[[str], Any]:
    """Returns what reads an option of one of the types in `mabert.schema.ranges`; messages name the option."""
    kind = typing.get_args(hint)[0]

    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = text
        try:
            return check(hint, value, option)
        except ValueError as error:
            raise OptionError(str(error)) from error

    return read


def add_field(group: Any, recipe: type, name: str, text: str, option: str = "") -> None:
    """Adds the option of a recipe's field to a group of the parser, with its type, range, choices and default, which
    its help shows. `option` is its name on the command line; default, the field's."""
    option = option or f"--{name.replace('_', '-')}"
    hint = hints_of(recipe)[name]
    field = next(field for field in dataclasses.fields(recipe) if field.name == name)
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    if hint is bool:
        group.add_argument(option, dest=name, action="store_true", help=text)
        return
    how: dict[str, Any] = {"dest": name, "default": default}
    how["help"] = text if default is None or "[" in text else f"{text} [%(default)s]".strip()
    hint = alternatives(hint)[0]
    if ONE_OR_MORE in getattr(hint, "__metadata__", ()):
        how["nargs"], (hint,) = "+", typing.get_args(typing.get_args(hint)[0])
    if typing.get_origin(hint) is typing.Literal:
        how["choices"] = typing.get_args(hint)
    elif hint is not str:
        how["metavar"] = option.removeprefix("--").replace("-", "_").upper()
        how["type"] = number(option, hint)
    group.add_argument(option, **how)


def command(commands: Any, name: str, run: Callable[[argparse.Namespace], None], text: str) -> argparse.ArgumentParser:
    """Adds a subcommand with the options that all of them have."""
    added = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
    added.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=DEBUG)
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
