"""Two tiers of tests, by rule: a test that takes seconds bears the mark `slow`, or fails.

A pytest plugin, which `tests/conftest.py` loads.
"""

import os
from collections.abc import Iterator

import pytest

LIMIT = 20.0
"""Seconds of processor time of a test that is not marked: ten times the two that `CONTRIBUTING.md` asks for. A clock
would also count a wait for other programs, and what several programs share does a third of the work in a second."""

USED = pytest.StashKey[float]()


def processor_seconds() -> float:
    """Seconds that processors have worked for this process and for those of its children that have ended."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Notes what a test used."""
    before = processor_seconds()
    try:
        return (yield)
    finally:
        item.stash[USED] = processor_seconds() - before


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Fails a test that passed but is too slow for its tier."""
    report = yield
    if call.when == "call" and report.passed and item.get_closest_marker("slow") is None and item.stash[USED] > LIMIT:
        report.outcome = "failed"
        used = f"took {item.stash[USED]:.1f} s of a processor"
        report.longrepr = f"{used}; a test over {LIMIT:g} s must be faster, or bear @pytest.mark.slow"
    return report
