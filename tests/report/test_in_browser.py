"""The page in a real browser: its tables sort, and nothing complains. Skipped where there is no Chromium or Chrome."""

import os
import re
import shutil
import subprocess

import pytest

from mabert.report.grid import Cell, Grid, missing, to_html
from mabert.report.page import SORTING, TABLES, page

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


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """The title that the script left on a page of two tables, and what the page logged."""
    folder = tmp_path_factory.mktemp("browser")
    file = folder / "page.html"
    file.write_text(page("t", [to_html(GRID), to_html(WIDE)], TABLES, SORTING + SCRIPT), encoding="utf-8")
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
