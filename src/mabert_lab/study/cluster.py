"""Sends a study to a cluster through submitit: every job is a runner on the shared folder, and their locks share the
cells out.

The folder must lie on a file system that all nodes share and that has POSIX locks (NFS from version 4 on, Lustre with
`flock`).
"""

import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mabert.machine.processes import SAVING

DAY = 24 * 60
"""Minutes after which a job has to make room; it is sent again and goes on with what it left."""

RETURNS = 1000
"""Times that a job is sent again."""

POLL = 0.5
"""Seconds between two looks at a runner."""


class Sent:
    """A runner as submitit calls it: when the time of its job ends it saves, and is sent again.

    Args:
        command: What the job runs.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.command = list(command)

    def __call__(self) -> None:
        """Runs to the end.

        Raises:
            RuntimeError: The runner failed.
        """
        self.code: int | None = None
        self.process = subprocess.Popen(self.command)
        threading.Thread(target=self._watch, daemon=True).start()
        if code := self._wait():
            raise RuntimeError(f"the runner ended with exit code {code}")

    def checkpoint(self) -> Any:
        """Lets the runner save and end, in a signal handler; returns what is to be sent in its place."""
        from submitit.helpers import DelayedSubmission

        self.process.terminate()
        self._wait()
        return DelayedSubmission(type(self)(self.command))

    def _watch(self) -> None:
        self.code = self.process.wait()

    def _wait(self) -> int:
        # Without a lock, which the call that a signal interrupts might hold.
        while self.code is None:
            time.sleep(POLL)
        return self.code


def parameters(options: Mapping[str, Any]) -> dict[str, Any]:
    """submitit's parameters: what is asked for, and ours for what is not.

    Slurm asks a job to stop `SAVING` seconds before its time is over, or half of its time before.

    Raises:
        ValueError: The time is no whole number of minutes.
    """
    asked = {"name": "mabert", "timeout_min": DAY, **options}
    if type(asked["timeout_min"]) is not int or asked["timeout_min"] < 1:
        raise ValueError(f"timeout_min is {asked['timeout_min']!r}; it must be a whole number of minutes above 0")
    return {"slurm_signal_delay_s": min(SAVING, 30 * asked["timeout_min"]), **asked}


def send(command: Sequence[str], folder: Path, engine: str, jobs: int, options: Mapping[str, Any]) -> list[Any]:
    """Submits runners.

    Args:
        command: What each job runs.
        folder: Of the study; scripts and logs of the jobs go to `cluster` in it.
        engine: `slurm`; or `local`, which runs the jobs as processes of this machine.
        jobs: How many runners.
        options: submitit's parameters, such as `timeout_min` (a day unless it is given), `slurm_partition` or
            `gpus_per_node`.

    Returns:
        submitit's jobs, each with its `job_id`.

    Raises:
        ModuleNotFoundError: submitit is not installed, of mabert's extra cluster.
        ValueError: The engine is not there, a parameter is unknown or wrong, or a job is refused; the message names the
            jobs that were sent before.
    """
    import submitit

    if jobs < 1:
        raise ValueError(f"jobs is {jobs}; it must be at least 1")
    sent: list[Any] = []
    try:
        executor = submitit.AutoExecutor(
            folder=folder / "cluster", cluster=engine, slurm_max_num_timeout=RETURNS, local_max_num_timeout=RETURNS
        )
        executor.update_parameters(**parameters(options))
        for _ in range(jobs):
            sent.append(executor.submit(Sent(command)))
    except (RuntimeError, NameError, AssertionError) as error:
        before = f"; sent before: {', '.join(job.job_id for job in sent)}" if sent else ""
        raise ValueError(f"submitit: {' '.join(str(error).split()) or type(error).__name__}{before}") from error
    return sent
