"""Two tiers of tests, by rule: a test that takes seconds bears the mark `slow`, or fails.

A pytest plugin, which `tests/conftest.py` loads.
"""

from collections.abc import Iterator

import pytest

LIMIT = 6.0
"""Seconds of a test that is not marked: three times the two that `CONTRIBUTING.md` asks for. A busy machine is two to
three times slower, and no clock tells that from a slow test."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Fails a test that passed but is too slow for its tier."""
    report = yield
    if call.when == "call" and report.passed and item.get_closest_marker("slow") is None and call.duration > LIMIT:
        report.outcome = "failed"
        took = f"took {call.duration:.1f} s"
        report.longrepr = f"{took}; a test over {LIMIT:g} s must be faster, or bear @pytest.mark.slow"
    return report
