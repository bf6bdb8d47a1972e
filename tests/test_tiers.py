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


def test_no_property_has_a_limit_of_wall_time():
    assert settings.default.deadline is None
    assert HealthCheck.too_slow in settings.default.suppress_health_check
    for path in Path(__file__).parent.rglob("*.py"):
        for word in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.keyword)):
            assert word.arg != "deadline" or path.name == "conftest.py", f"{path}, line {word.lineno}"
            if word.arg == "suppress_health_check":  # which replaces the profile's
                assert "HealthCheck.too_slow" in ast.unparse(word.value), f"{path}, line {word.lineno}"
