"""The page in a real browser: its tables sort, and nothing complains. Skipped where there is no Chromium or Chrome."""

import os
import re
import shutil
import subprocess
from html import escape

import pytest

from mabert_lab.report.demo import render
from mabert_lab.report.grid import Cell, Grid, missing, to_html
from mabert_lab.report.page import SORTING, TABLES, page
from mabert_lab.report.sources import find
from mabert_lab.report.whole import write_report
from tests.lab.report.test_demo_page import converted, result

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="neither chromium nor chrome is on PATH"),
]

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
top.document.title = [`width ${innerWidth}`, ...found].join("; ");
"""


WHOLE = """
const cells = () => [...document.querySelectorAll("#table-claims tbody tr")].map((row) => row.cells[1].textContent);
const before = cells(), links = [...document.querySelectorAll("nav a")];
document.querySelectorAll("#table-claims th button")[1].click();
const after = cells();
document.querySelectorAll("details").forEach((fold) => { fold.open = true; });
top.document.title = [
  `width ${innerWidth}`,
  `tables ${document.querySelectorAll("table").length}`,
  `figures ${document.querySelectorAll("svg").length}`,
  `sorted ${after.join() === [...before].sort().join() && after.join() !== before.join()}`,
  `links ${links.length > 5 && links.every((link) => document.querySelector(link.getAttribute("href")))}`,
  `page ${document.documentElement.scrollWidth <= innerWidth}`,
].join("; ");
"""


PRINTED = """
for (const sheet of document.styleSheets) for (const rule of sheet.cssRules)
  if (rule.media && rule.media.mediaText === "print") rule.media.mediaText = "all";
dispatchEvent(new Event("beforeprint"));
const clipped = [...document.querySelectorAll(".wide")].filter((box) => box.scrollWidth > box.clientWidth + 1);
top.document.title = [
  `width ${innerWidth}`,
  `clipped ${clipped.map((box) => box.closest("[id]").id)}`,
  `open ${[...document.querySelectorAll("details")].every((fold) => fold.open)}`,
].join("; ");
"""
FITS = """
top.document.title = [`width ${innerWidth}`, `page ${document.documentElement.scrollWidth <= innerWidth}`].join("; ");
"""
PHONE, SHEET, SCREEN = 390, 718, 1280  # CSS pixels: of a phone, of A4 less a centimetre on each side, of a screen


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """The title that the script left on a page of two tables, and what the page logged."""
    file = tmp_path_factory.mktemp("browser") / "page.html"
    return browsed(file, page("t", [to_html(GRID), to_html(WIDE)], TABLES, SORTING + SCRIPT), PHONE)


def browsed(file, text, width):
    """The title that a page's scripts leave, in parts, and what the page logged.

    The page stands in a frame, since a window of a browser without a screen has a least width, which is no phone's.
    """
    folder = file.parent
    frame = f'<iframe style="width: {width}px; height: 800px; border: 0" srcdoc="{escape(text)}"></iframe>'
    file.write_text(f"<!doctype html><title>none</title>{frame}", encoding="utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=4000"]
    done = subprocess.run(
        [*command, "--enable-logging=stderr", "--window-size=1000,800", "--dump-dom", file.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "HOME": str(folder)},
    )
    title = re.findall(r"<title>(.*?)</title>", done.stdout)[0]
    return title.split("; "), [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_a_click_sorts_by_value_and_what_is_missing_stays_last(opened):
    assert opened[0][1:6] == [
        "bacd none,none",
        "abcd ascending,none",
        "dcba descending,none",
        "abdc none,ascending",
        "dbac none,descending",
    ]


def test_the_page_is_as_narrow_as_a_phone(opened):
    assert opened[0][0] == "width 390"


def test_headings_are_reached_by_keyboard(opened):
    assert "focus true" in opened[0]


def test_a_wide_table_scrolls_in_its_box_and_not_the_page(opened):
    assert {"page true", "box true"} <= set(opened[0])


def test_nothing_is_logged(opened):
    assert not opened[1]


def test_what_goes_wrong_on_a_page_is_logged(tmp_path):
    text = page("t", ["<p>text</p>"], "", "throw new Error('seen');")
    assert any("seen" in line for line in browsed(tmp_path / "page.html", text, PHONE)[1])


@pytest.fixture(scope="module")
def report(results, tmp_path_factory):
    """The page of results of every kind."""
    file = write_report(find([results]), tmp_path_factory.mktemp("whole") / "report.html")[0]
    text = file.read_text(encoding="utf-8")
    assert text.count("</body>") == 1
    return text


def test_the_whole_report_works_on_a_phone(report, tmp_path):
    text = report.replace("</body>", f"<script>{WHOLE}</script></body>")
    told, logged = browsed(tmp_path / "page.html", text, PHONE)
    assert not logged
    assert {"width 390", "sorted true", "links true", "page true"} <= set(told)
    tables, figures = (int(re.search(rf"{name} (\d+)", "; ".join(told))[1]) for name in ("tables", "figures"))
    assert tables > 30
    assert figures >= 10


def test_in_print_every_fold_is_open_and_no_table_is_clipped(report, tmp_path):
    text = report.replace("</body>", f"<script>{PRINTED}</script></body>")
    told, logged = browsed(tmp_path / "page.html", text, SHEET)
    assert not logged
    assert told == ["width 718", "clipped ", "open true"]


@pytest.mark.parametrize("width", [PHONE, SCREEN])
@pytest.mark.parametrize("tour", [converted, result])
def test_the_page_of_the_tour_fits_a_phone_and_a_screen(tour, width, tmp_path):
    text = render(tour()).replace("</body>", f"<script>{FITS}</script></body>")
    told, logged = browsed(tmp_path / "page.html", text, width)
    assert not logged
    assert told == [f"width {width}", "page true"]
