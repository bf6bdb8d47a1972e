"""What all subcommands share: how one is added, and how it speaks."""

import argparse
import sys
from collections.abc import Callable
from typing import Any


def command(commands: Any, name: str, run: Callable[[argparse.Namespace], None], text: str) -> argparse.ArgumentParser:
    """A subcommand with what all of them have."""
    added = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
    added.add_argument("--debug", action="store_true", help="show the traceback of an error")
    added.set_defaults(run=run)
    return added


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
