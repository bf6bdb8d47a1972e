"""Runs no test again that passed before: `pytest -p tests.once`, with a file of their names in TESTS_PASSED."""

import os
from pathlib import Path
from typing import Any

import pytest

PASSED = Path(os.environ.get("TESTS_PASSED", "build/passed"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    """Leaves out what passed."""
    before = set(PASSED.read_text(encoding="utf-8").splitlines()) if PASSED.exists() else set()
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in before])
    items[:] = [item for item in items if item.nodeid not in before]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes each test that passed, at once; of several processes the one that hears of all."""
    if report.when == "call" and report.passed and "PYTEST_XDIST_WORKER" not in os.environ:
        PASSED.parent.mkdir(parents=True, exist_ok=True)
        with PASSED.open("a", encoding="utf-8") as file:
            file.write(f"{report.nodeid}\n")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Makes a session in which nothing is left a success."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK
