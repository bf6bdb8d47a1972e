"""The rule of the two tiers holds."""

import ast
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import tiers


@pytest.fixture
def run(pytester, monkeypatch):
    """Runs a test under the rule with another limit, which this process's own tests do not see."""

    def go(program, limit):
        pytester.makeini("[pytest]\nmarkers = slow")
        pytester.makepyfile(program)
        with monkeypatch.context() as patch:
            patch.setattr(tiers, "LIMIT", limit)
            return pytester.inline_run("-p", "no:cacheprovider", plugins=[tiers])

    return go


WORKING = "end = time.process_time() + 0.1\n    while time.process_time() < end: pass"
WAITING = "time.sleep(0.1)"
MARKED = "@pytest.mark.slow"


@pytest.mark.parametrize(
    ("mark", "limit", "does", "failed"),
    [("", 0.05, WORKING, 1), ("", 0.05, WAITING, 0), ("", 60.0, WORKING, 0), (MARKED, 0.05, WORKING, 0)],
    ids=["works too long", "waits", "in time", "marked"],
)
def test_a_test_that_works_over_the_limit_fails_unless_it_is_marked(run, mark, limit, does, failed):
    result = run(f"import time\nimport pytest\n{mark}\ndef test_it():\n    {does}", limit)
    assert [len(kind) for kind in result.listoutcomes()] == [1 - failed, 0, failed]
    for report in result.getfailures():
        assert str(report.longrepr).endswith("a test over 0.05 s must be faster, or bear @pytest.mark.slow")


def test_a_test_that_failed_anyhow_keeps_its_error(run):
    (report,) = run("def test_it():\n    assert 1 == 2", -1.0).getfailures()
    assert "assert 1 == 2" in str(report.longrepr)


WAITS = {"acquire", "communicate", "join", "poll", "result", "wait"}


def own_limits(file):
    """Yields the lines of a test file that limit wall time otherwise than all tests do."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword):
            kept = node.arg != "suppress_health_check" or "HealthCheck.too_slow" in ast.unparse(node.value)
            of_its_own = node.arg == "deadline" or (node.arg == "timeout" and isinstance(node.value, ast.Constant))
            if of_its_own or not kept:  # health checks that are named replace the profile's
                yield node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WAITS:
            numbers = (each.value for each in node.args if isinstance(each, ast.Constant))
            if any(isinstance(each, int | float) and each > 0 for each in numbers):
                yield node.lineno


def test_no_test_has_a_limit_of_wall_time_of_its_own():
    assert settings.default.deadline is None
    assert HealthCheck.too_slow in settings.default.suppress_health_check
    files = (file for file in Path(__file__).parent.rglob("*.py") if file.name != "conftest.py")
    assert [f"{file}, line {line}" for file in files for line in own_limits(file)] == []


@pytest.mark.parametrize(
    "line",
    [
        "run(command, timeout=60)",
        "thread.join(5)",
        "@settings(deadline=200)\ndef test(): ...",
        "settings(suppress_health_check=[HealthCheck.filter_too_much])",
    ],
)
def test_a_limit_of_its_own_would_be_seen(tmp_path, line):
    (tmp_path / "test.py").write_text(f"{line}\nprocess.join()\nrun(command, timeout=HANG)\n")
    assert len(list(own_limits(tmp_path / "test.py"))) == 1
