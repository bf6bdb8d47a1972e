"""The `mabert` command. It lies outside the package because it must run before torch is loaded.

OpenMP reads its settings when torch loads it. By default its threads spin while they wait for each other, so that on a
machine whose cores are busy with anything else every parallel region waits for a time slice; what that costs, and that
sleeping threads cost nothing, stands in `benchmarks/LOG.md`. How much torch's profiler says is read then as well.
"""

import os
import sys


def main() -> int:
    """Runs the command line with sleeping OpenMP threads, unless the environment says otherwise."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else a line on standard error where each profile begins and ends
    from mabert_lab.cli import main as command_line

    return command_line()


if __name__ == "__main__":
    sys.exit(main())
