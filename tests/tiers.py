"""Two tiers of tests, by rule: what takes over two seconds bears the mark `slow`, or fails.

A pytest plugin, which `tests/conftest.py` loads.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

LIMIT = 2.0
"""Seconds of a test that is not marked."""

LIMIT_WHEN_BUSY = 4.0
"""Seconds where more programs want to run than there are cores for."""

BUSY = 1.2
"""Programs that want to run, a core, from which on a machine is busy."""

WAITED = pytest.StashKey[float]()
"""Seconds of a test in which this process could have run and other programs had the cores."""


def limit() -> float:
    """How long a test without the mark may take now."""
    return LIMIT_WHEN_BUSY if os.getloadavg()[0] > BUSY * (os.cpu_count() or 1) else LIMIT


def waited() -> float:
    """Seconds that this process's main thread has waited for a core so far; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Notes how long a test waited for a core."""
    before = waited()
    try:
        return (yield)
    finally:
        item.stash[WAITED] = waited() - before


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Fails a test that passed but is too slow for its tier."""
    report = yield
    if call.when == "call" and report.passed and item.get_closest_marker("slow") is None:
        took, most = call.duration - item.stash[WAITED], limit()
        if took > most:
            report.outcome = "failed"
            report.longrepr = f"took {took:.1f} s; a test over {most:g} s must be faster, or bear @pytest.mark.slow"
    return report
