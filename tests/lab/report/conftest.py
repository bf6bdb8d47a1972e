"""What the tests of reports share."""

import json

import pytest

from mabert_lab.report.sources import find
from tests.lab.report.rows import CPU, whole
from tests.lab.report.studies import COLUMNS, ENVIRONMENT, like_the_paper, study


@pytest.fixture
def load(tmp_path):
    """Writes the rows of one or more files, each a month later than the one before, and reads them together."""

    def write(*files, **changes):
        paths = []
        for month, rows in enumerate(files, start=1):
            environment = {"date": f"2026-{month:02}-01T00:00:00+00:00", "processor": "processor", "threads": 2}
            content = {"kind": "efficiency", "environment": environment, "quick": False, "parameters": {}, "rows": rows}
            paths.append(tmp_path / f"{month}.json")
            paths[-1].write_text(json.dumps({**content, **changes}), encoding="utf-8")
        # The order in which files are given must not matter.
        return find(reversed(paths)).efficiency

    return write


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    """A folder with results of every kind."""
    folder, every = tmp_path_factory.mktemp("results"), tuple(COLUMNS)
    budgets = [
        each
        for share, name in ((0.1, "glue_10"), (0.25, "glue_25"), (0.5, "glue_50"), (1.0, "glue_100"))
        for each in like_the_paper(name, share, every)
    ]
    contents = [
        study(like_the_paper("pattern", 0.1, every), "pattern"),
        study(like_the_paper("components", 1.0, every), "components"),
        study(like_the_paper("pooling", 1.0, every), "pooling"),
        study(budgets, "budget"),
    ]
    about = {"kind": "efficiency", "environment": ENVIRONMENT, "quick": False, "parameters": {}}
    contents.append({**about, "rows": whole() + whole(CPU._replace(profile="best"))})
    drift = [
        {
            "weights": "trained",
            "direction": "forward",
            "conv": "causal",
            "side": side,
            "attention": attention,
            "masking": masking,
            "cls": [0.0, distance],
            "mean": [0.0, distance],
        }
        for side, attention in [("right", "masked"), ("left", "masked"), ("right", "unmasked")]
        for masking, distance in (("none", 0.3), ("pre", 0.2), ("post", 0.1), ("pre+post", 0.01), ("exact", 1e-15))
    ]
    contents.append({"kind": "drift", "environment": ENVIRONMENT, "texts": 24, "lengths": [0, 8], "rows": drift})
    speed = {"lengths": "short", "model": "bert", "status": "measured", "batch": 8, "tokens_per_second": 1234.5}
    slow = {"lengths": "short", "model": "deberta", "status": "too slow", "batch": None, "tokens_per_second": None}
    contents.append({"kind": "throughput", "environment": ENVIRONMENT, "dtype": "float32", "rows": [speed, slow]})
    for number, content in enumerate(contents):
        (folder / f"{number}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder
