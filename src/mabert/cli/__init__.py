"""`mabert ...`: each subcommand reads its arguments, calls one library function and shows the result."""

import argparse
import io
import logging
import os
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

from safetensors import SafetensorError

from mabert import __version__
from mabert.cli.command import DEBUG, Draw, OptionError, Parser, complain, draw_nothing
from mabert.cli.convert import add_convert, add_export
from mabert.cli.texts import add_embed, add_fill_mask, add_info, add_predict
from mabert.cli.train import add_extend, add_finetune, add_pretrain, add_tokenizer
from mabert.files.places import expanded
from mabert.machine.environment import lacking

BAD_INPUT = 2
INTERRUPTED = 130


Add = Callable[[Any], None]
"""Adds a subcommand to argparse's subparsers."""


def main(arguments: Sequence[str] | None = None, more: Sequence[Add] = (), draw: Draw = draw_nothing) -> int:
    """Runs one subcommand of `mabert`, with these arguments (default, those of this process); `more` are further
    subcommands, and `draw` draws pictures and pages for some.

    Returns 0; 2 with a one-line message after bad input, if memory ran out, or if an extra's package is missing; 130
    after Ctrl-C.
    """
    take_any_character()
    try:
        options = parse(arguments, more)
    except OptionError as error:
        complain(one_line(error))
        return BAD_INPUT
    write_messages()
    options.draw = draw
    try:
        options.run(options)
        flush()
    except KeyboardInterrupt as stop:
        complain(f"interrupted; {stop}" if str(stop) else "interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        drop_output()
    except Exception as error:
        message = None if options.debug else refusal(error)
        if message is None:
            raise
        complain(message)
        try:
            flush()
        except OSError:  # it was what failed
            drop_output()
        return BAD_INPUT
    return 0


def flush() -> None:
    """Writes what standard output still holds, if there is one."""
    if sys.stdout is not None:
        sys.stdout.flush()


def drop_output() -> None:
    """Leaves what standard output still holds unwritten: Python would try again at the end, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def refusal(error: Exception) -> str | None:
    """Returns in one line what bad input, too little memory or a missing package led to; None for any other error."""
    if isinstance(error, ModuleNotFoundError):
        return lacking(error)
    if isinstance(error, ValueError | OSError | SafetensorError):
        return one_line(error)
    if isinstance(error, MemoryError | RuntimeError):
        from mabert.machine.memory import is_out_of_memory  # loads torch

        return one_line(error) or "out of memory" if is_out_of_memory(error) else None
    return None


def parse(arguments: Sequence[str] | None, more: Sequence[Add] = ()) -> argparse.Namespace:
    """Parses the command line; a recipe's fields may stand anywhere among the options."""
    top = parser(more)
    options, rest = top.parse_known_args(arguments)
    if rest and not rest[0].startswith("-") and getattr(options, "input", "") is None:
        options.input = rest.pop(0)  # argparse takes a file that may be left out only if no option stands before it
    stray = [word for word in rest if word.startswith("-") or "=" not in word or not hasattr(options, "fields")]
    if stray:
        meant = [near for word in stray for near in get_close_matches(word, options.parser._option_string_actions, 1)]
        hint = f" (did you mean {' '.join(meant)}?)" if meant else ""
        if getattr(options, "seeds", None) and stray[0].isdecimal():
            hint = " (write several seeds as one word, 0-4 or 0,2,7)"
        options.parser.error(f"unrecognized arguments: {' '.join(stray)}{hint}")
    if rest:
        options.fields += rest
    if getattr(options, "output", None) is not None:
        options.output = str(expanded(options.output))
    return options


def one_line(error: Exception) -> str:
    """Formats an error as one line, without Python's errno prefix."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if isinstance(error, OSError) and error.filename and str(error.filename) not in text:
        text = f"{error.filename}: {text}"
    return " ".join(text.split())


def take_any_character() -> None:
    """Makes the output escape characters that its encoding lacks (such as Chinese in cp1252) instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def write_messages() -> None:
    """Shows our own log messages, without those of other libraries; of torchrun's processes only the first
    warns, since all see the same."""
    logging.basicConfig(format="mabert: %(message)s", level=logging.WARNING)
    first = os.environ.get("RANK", "0") == "0"
    logging.getLogger("mabert").setLevel(logging.INFO if first else logging.ERROR)
    os.environ.setdefault("HF_HUB_VERBOSITY", "critical")  # read when it is first imported


def parser(more: Sequence[Add] = ()) -> argparse.ArgumentParser:
    """Makes the parser of all subcommands."""
    top = Parser(prog="mabert", description="The Transformer-Mamba encoder of the MaBERT paper.")
    top.add_argument("--version", action="version", version=f"mabert {__version__}")
    top.add_argument("--debug", action="store_true", help=DEBUG)
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    making = (add_convert, add_tokenizer, add_pretrain, add_finetune)
    using = (add_embed, add_predict, add_fill_mask, add_info, add_extend, add_export)
    for add in (*making, *using, *more):
        add(commands)
    return top
