"""What the tests of reports share."""

import json

import pytest

from mabert.report.efficiency.results import load_results


@pytest.fixture
def load(tmp_path):
    """Writes the rows of one or more files, each a month later than the one before, and reads them together."""

    def write(*files, **changes):
        paths = []
        for month, rows in enumerate(files, start=1):
            environment = {
                "date": f"2026-{month:02}-01T00:00:00+00:00",
                "processor": "processor",
                "threads": 2,
            }
            content = {"kind": "efficiency", "environment": environment, "quick": False, "parameters": {}, "rows": rows}
            paths.append(tmp_path / f"{month}.json")
            paths[-1].write_text(json.dumps({**content, **changes}), encoding="utf-8")
        # The order in which files are given must not matter.
        return load_results(reversed(paths))

    return write
