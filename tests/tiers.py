"""Two tiers of tests, by rule: what takes over two seconds bears the mark `slow`, or fails.

A pytest plugin, which `tests/conftest.py` loads.
"""

import os
from collections.abc import Iterator

import pytest

LIMIT = 2.0
"""Seconds of a test that is not marked."""

LIMIT_WHEN_BUSY = 4.0
"""Seconds where more programs want to run than there are cores for."""

BUSY = 1.2
"""Programs that want to run, a core, from which on a machine is busy."""


def limit() -> float:
    """How long a test without the mark may take now."""
    return LIMIT_WHEN_BUSY if os.getloadavg()[0] > BUSY * (os.cpu_count() or 1) else LIMIT


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Fails a test that passed but is too slow for its tier."""
    report = yield
    most = limit()
    if call.when == "call" and report.passed and call.duration > most and item.get_closest_marker("slow") is None:
        report.outcome = "failed"
        report.longrepr = (
            f"took {call.duration:.1f} s; a test over {most:g} s must be faster, or bear @pytest.mark.slow"
        )
    return report
