"""Processes that begin at once, since they begin from one that has imported what they need."""

import multiprocessing
from typing import Any

METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
"""How processes begin; on Windows each imports for itself."""


def context(*modules: str) -> Any:
    """What makes processes.

    Args:
        modules: Imported once, before the first process begins.
    """
    chosen = multiprocessing.get_context(METHOD)
    if METHOD == "forkserver":
        chosen.set_forkserver_preload(list(modules))
    return chosen


def import_ahead(*modules: str) -> None:
    """Starts importing while this process does something else."""
    context(*modules)
    if METHOD == "forkserver":
        from multiprocessing import forkserver

        forkserver.ensure_running()
