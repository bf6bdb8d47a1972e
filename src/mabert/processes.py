"""Processes that begin at once, since they begin from one that has imported what they need."""

import contextlib
import multiprocessing
import os
from collections.abc import Iterator, Mapping
from typing import Any

METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
"""How processes begin; on Windows each imports for itself."""


def context(*modules: str, **environment: str) -> Any:
    """What makes processes.

    Args:
        modules: Imported once, before the first process begins.
        environment: Variables that the processes begin with where they are not set already, which a process that has
            begun could not change for itself any more; not where each imports for itself, nor where processes of this
            kind were begun before.
    """
    chosen = multiprocessing.get_context(METHOD)
    if METHOD == "forkserver":
        chosen.set_forkserver_preload(list(modules))
        from multiprocessing import forkserver  # which not every system has

        with variables(environment):
            forkserver.ensure_running()
    return chosen


@contextlib.contextmanager
def variables(wanted: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables that are not set, for a while."""
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def import_ahead(*modules: str) -> None:
    """Starts importing while this process does something else."""
    context(*modules)
