"""The `mabert` command. It lies outside the package because it must run before torch is loaded.

OpenMP reads its settings when torch loads it. By default its threads spin for long while they wait for each other, so
that on a machine whose cores are busy with anything else every parallel region waits for a time slice. Threads that
sleep at once make a short text a sixth slower. GNU's OpenMP, which torch brings on Linux, spins for a moment here and
then sleeps; `benchmarks/LOG.md` has the figures. How much torch's profiler says is read then as well.
"""

import os
import sys


def main() -> int:
    """Runs the command line with OpenMP threads that soon sleep, unless the environment says otherwise."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # what another OpenMP than GNU's goes by
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else a line on standard error where each profile begins and ends
    from mabert_lab.cli import main as command_line

    return command_line()


if __name__ == "__main__":
    sys.exit(main())
