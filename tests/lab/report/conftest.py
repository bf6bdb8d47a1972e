"""What the tests of reports share."""

import json

import pytest

from mabert_lab.report.found import find
from tests.lab.report.rows import CPU, efficiency, whole
from tests.lab.report.studies import COLUMNS, ENVIRONMENT, like_the_paper, of_all_budgets, study


@pytest.fixture
def load(tmp_path):
    """Reads the contents of files together, whatever their order; rows stand for a file of them, each a month later."""

    def read(*files):
        paths = []
        for month, content in enumerate(files, start=1):
            whole = (
                efficiency(content, date=f"2026-{month:02}-01T00:00:00+00:00") if isinstance(content, list) else content
            )
            paths.append(tmp_path / f"{month}.json")
            paths[-1].write_text(json.dumps(whole), encoding="utf-8")
        return find(reversed(paths))[0].costs

    return read


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    """A folder with results of every kind."""
    folder, every = tmp_path_factory.mktemp("results"), tuple(COLUMNS)
    contents = [
        study(like_the_paper("pattern", 0.1, every), "pattern"),
        study(like_the_paper("components", 1.0, every), "components"),
        study(like_the_paper("pooling", 1.0, every), "pooling"),
        study(of_all_budgets(every), "budget"),
    ]
    contents.append(efficiency(whole() + whole(CPU._replace(profile="best")), **ENVIRONMENT))
    regime = {"weights": "trained", "direction": "forward", "conv": "causal"}
    drift = [
        {**regime, "side": side, "attention": seen, "masking": masking, "cls": [0.0, far], "mean": [0.0, far]}
        for side, seen in [("right", "masked"), ("left", "masked"), ("right", "unmasked")]
        for masking, far in (("none", 0.3), ("pre", 0.2), ("post", 0.1), ("pre+post", 0.01), ("exact", 1e-15))
    ]
    contents.append({"kind": "drift", "environment": ENVIRONMENT, "texts": 24, "lengths": [0, 8], "rows": drift})
    for number, content in enumerate(contents):
        (folder / f"{number}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder
