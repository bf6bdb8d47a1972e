"""What the documents show as code runs, and shows what they say."""

import json
import re
import subprocess
import sys
from pathlib import Path

from mabert.report.drift import cures
from mabert.report.efficiency.results import load_results
from mabert.report.sources import find
from mabert.report.whole import write_report
from tests.report.rows import efficiency_report

DOCS = Path(__file__).parents[1] / "docs"


RESULTS = DOCS.parent / "benchmarks/results"


def test_the_page_on_padding_has_the_truth_table_of_its_measurement():
    page = (DOCS / "padding.md").read_text(encoding="utf-8")
    (file,) = set(re.findall(r"benchmarks/results/(\S+-drift\.json)", page))
    found = cures(json.loads((RESULTS / file).read_text(encoding="utf-8")), "cls")
    told = re.findall(r"^\| (\w+) \| (causal|centred|either) \| (left|right|left and right) \| `([a-z+]+)`", page, re.M)
    rows = {
        ("random", direction, conv, side, "masked"): cure
        for direction, convs, sides, cure in told
        for conv in {"causal": ["causal"], "centred": ["centered"], "either": ["causal", "centered"]}[convs]
        for side in sides.split(" and ")
    }
    drifting = {how: cure for how, cure in found.items() if how[0] == "random" and how[-1] == "masked"}
    assert rows == {how: cure for how, cure in drifting.items() if cure != "none"}


def test_the_tables_of_efficiency_are_those_of_the_files_that_they_name():
    page = (RESULTS / "efficiency/efficiency.md").read_text(encoding="utf-8")
    files = sorted(set(re.findall(r"^- `(\S+-models\.json)`:", page, re.MULTILINE)))
    assert len(files) > 1
    assert efficiency_report(load_results([RESULTS / file for file in files])) == page


def test_the_page_is_that_of_the_results_beside_it(tmp_path):
    write_report(find([RESULTS]), tmp_path / "report.html")
    page = (RESULTS / "page/report.md").read_text(encoding="utf-8")
    assert page == (tmp_path / "report.md").read_text(encoding="utf-8")
    figures = re.findall(r"\]\((report/\S+\.svg)\)", page)
    assert figures
    assert all((RESULTS / "page" / figure).is_file() for figure in figures)


def test_the_smallest_example_of_the_leak():
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "padding.md").read_text(encoding="utf-8"), re.DOTALL)
    (program,) = (block for block in blocks if "print(" in block)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    moved = [float(line.split()[-1]) for line in done.stdout.splitlines()]
    none, papers, exact, unpadded = moved
    assert none > 1e-2 > papers > 1e-5 > exact
    assert unpadded < 1e-5
