"""What the lab needs beyond the library, and what is said where it is not installed."""

import argparse
from collections.abc import Callable
from functools import wraps

PACKAGES = ("jinja2", "mambapy", "markdown-it-py", "matplotlib", "pandas", "submitit")
"""Packages of the extra `lab`."""

Run = Callable[[argparse.Namespace], None]


def lacking(error: ModuleNotFoundError) -> str:
    """Says which extra brings a package that is not there.

    Raises:
        ModuleNotFoundError: The same, where it is none of the lab's.
    """
    package = str(error.name).partition(".")[0]
    if package not in PACKAGES:
        raise error
    return f"{package} is not installed; the extra lab brings it: pip install 'mabert[lab]'"


def of_the_lab(run: Run) -> Run:
    """A subcommand that names the extra in one line where a package of it is missing."""

    @wraps(run)
    def tried(options: argparse.Namespace) -> None:
        try:
            run(options)
        except ModuleNotFoundError as error:
            raise ValueError(lacking(error)) from error

    return tried
