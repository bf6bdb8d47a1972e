"""The rule of the two tiers holds."""

import pytest

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


@pytest.mark.parametrize(("mark", "limit", "failed"), [("", 0.001, 1), ("", 60.0, 0), ("@pytest.mark.slow", 0.001, 0)])
def test_a_test_over_the_limit_fails_unless_it_is_marked(run, mark, limit, failed):
    result = run(f"import time\nimport pytest\n{mark}\ndef test_it():\n    time.sleep(0.01)", limit)
    assert [len(kind) for kind in result.listoutcomes()] == [1 - failed, 0, failed]
    for report in result.getfailures():
        assert str(report.longrepr).endswith("a test over 0.001 s must be faster, or bear @pytest.mark.slow")


def test_a_test_that_failed_anyhow_keeps_its_error(run):
    (report,) = run("def test_it():\n    assert 1 == 2", 0.0).getfailures()
    assert "assert 1 == 2" in str(report.longrepr)
