"""The page in a real browser: its tables sort, and nothing complains. Skipped where there is no Chromium or Chrome."""

import json
import os
import re
import shutil
import subprocess

import pytest

from mabert.report.grid import Cell, Grid, missing, to_html
from mabert.report.page import SORTING, TABLES, page
from mabert.report.sources import find
from mabert.report.whole import write_report
from tests.report.studies import whole_experiment

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="neither chromium nor chrome is on PATH")

ROWS = ((Cell("b"), Cell("0.9", value=0.9)), (Cell("a"), Cell("-1", value=-1.0)), (Cell("c"), missing("why")))
GRID = Grid("grid", "Title", ("name", "score"), (*ROWS, (Cell("d"), Cell("10", value=10.0))))
WIDE = Grid(
    "wide", "Wide", tuple(f"column {number}" for number in range(40)), (tuple(Cell("0.123") for _ in range(40)),)
)


SCRIPT = """
const found = [], buttons = document.querySelectorAll("#table-grid th button");
const texts = (what, of) => [...document.querySelectorAll(`#table-grid ${what}`)].map(of);
const look = () => found.push(
  texts("tbody tr", (row) => row.cells[0].textContent).join("") + " " +
  texts("th", (head) => head.getAttribute("aria-sort")));
look();
for (const column of [0, 0, 1, 1]) { buttons[column].click(); look(); }
buttons[1].focus();
found.push(`focus ${document.activeElement === buttons[1] && buttons[1].tabIndex === 0}`);
const box = document.querySelector("#table-wide .wide");
found.push(`page ${document.documentElement.scrollWidth <= innerWidth}`, `box ${box.scrollWidth > box.clientWidth}`);
document.title = found.join("; ");
"""


WHOLE = """
const cells = () => [...document.querySelectorAll("#table-claims tbody tr")].map((row) => row.cells[1].textContent);
const before = cells(), links = [...document.querySelectorAll("nav a")];
document.querySelectorAll("#table-claims th button")[1].click();
const after = cells();
document.querySelectorAll("details").forEach((fold) => { fold.open = true; });
document.title = [
  `tables ${document.querySelectorAll("table").length}`,
  `figures ${document.querySelectorAll("svg").length}`,
  `sorted ${after.join() === [...before].sort().join() && after.join() !== before.join()}`,
  `links ${links.length > 5 && links.every((link) => document.querySelector(link.getAttribute("href")))}`,
  `page ${document.documentElement.scrollWidth <= innerWidth}`,
].join("; ");
"""


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """The title that the script left on a page of two tables, and what the page logged."""
    file = tmp_path_factory.mktemp("browser") / "page.html"
    file.write_text(page("t", [to_html(GRID), to_html(WIDE)], TABLES, SORTING + SCRIPT), encoding="utf-8")
    return browsed(file)


def browsed(file):
    """A page's title after its scripts, in parts, and what it logged; as wide as a phone."""
    folder = file.parent
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000"]
    done = subprocess.run(
        [*command, "--enable-logging=stderr", "--window-size=390,800", "--dump-dom", file.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "HOME": str(folder)},
    )
    (title,) = re.findall(r"<title>(.*?)</title>", done.stdout)
    return title.split("; "), [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_a_click_sorts_by_value_and_what_is_missing_stays_last(opened):
    assert opened[0][:5] == [
        "bacd none,none",
        "abcd ascending,none",
        "dcba descending,none",
        "abdc none,ascending",
        "dbac none,descending",
    ]


def test_headings_are_reached_by_keyboard(opened):
    assert "focus true" in opened[0]


def test_a_wide_table_scrolls_in_its_box_and_not_the_page(opened):
    assert {"page true", "box true"} <= set(opened[0])


def test_nothing_is_logged(opened):
    assert not opened[1]


def test_what_goes_wrong_on_a_page_is_logged(tmp_path):
    file = tmp_path / "page.html"
    file.write_text(page("t", ["<p>text</p>"], "", "throw new Error('seen');"), encoding="utf-8")
    assert any("seen" in line for line in browsed(file)[1])


@pytest.mark.slow
def test_the_whole_report_works(tmp_path):
    for content in whole_experiment():
        (tmp_path / f"{content['study']}.json").write_text(json.dumps(content), encoding="utf-8")
    file = write_report(find([tmp_path]), tmp_path / "report.html")[0]
    text = file.read_text(encoding="utf-8")
    assert text.count("</body>") == 1
    file.write_text(text.replace("</body>", f"<script>{WHOLE}</script></body>"), encoding="utf-8")
    told, logged = browsed(file)
    assert not logged
    assert {"sorted true", "links true", "page true"} <= set(told)
    tables, figures = (int(re.search(rf"{name} (\d+)", "; ".join(told))[1]) for name in ("tables", "figures"))
    assert tables > 20
    assert figures >= 8
