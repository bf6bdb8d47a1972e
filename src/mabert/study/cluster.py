"""Sends a study to a cluster through submitit: every job is a runner on the shared folder, and their locks share the
cells out.

The folder must lie on a file system that all nodes share and that has POSIX locks (NFS from version 4 on, Lustre with
`flock`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ENGINES = ("slurm", "local")
"""`local` runs the jobs as processes of this machine."""


DAY = 24 * 60
"""Minutes after which a job is ended; the same command goes on with what it left."""


def send(command: Sequence[str], folder: Path, engine: str, jobs: int, options: Mapping[str, Any]) -> list[Any]:
    """Submits runners.

    Args:
        command: What each job runs.
        folder: Of the study; scripts and logs of the jobs go to `cluster` in it.
        engine: One of `ENGINES`.
        jobs: How many runners.
        options: submitit's parameters, such as `timeout_min` (a day unless it is given), `slurm_partition` or
            `gpus_per_node`.

    Returns:
        submitit's jobs, each with its `job_id`.

    Raises:
        ValueError: submitit is not installed, the engine is not there, or a parameter is unknown.
    """
    try:
        import submitit
    except ImportError as error:
        raise ValueError("sending cells to a cluster needs submitit: pip install 'mabert[cluster]'") from error
    if jobs < 1:
        raise ValueError(f"jobs is {jobs}; it must be at least 1")
    try:
        executor = submitit.AutoExecutor(folder=folder / "cluster", cluster=engine)
        executor.update_parameters(**{"name": "mabert", "timeout_min": DAY, **options})
    except (RuntimeError, NameError) as error:
        raise ValueError(f"submitit: {' '.join(str(error).split())}") from error
    return [executor.submit(submitit.helpers.CommandFunction(list(command))) for _ in range(jobs)]
