"""The pages in a real browser: they log no error and fit. Skipped where there is no Chromium or Chrome."""

import os
import re
import shutil
import subprocess
from html import escape

import pytest

from mabert_lab.report import conversion, demo
from mabert_lab.report.document import Page, markdown, table
from mabert_lab.report.sources import find
from mabert_lab.report.whole import write_report
from tests.lab.report.test_conversion_page import result as conversion_result
from tests.lab.report.test_demo_page import converted, result
from tests.patience import HANG

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="neither chromium nor chrome is on PATH")]
PHONE, SCREEN = 390, 1280  # CSS pixels
ROWS = [("b", "0.9"), ("a", "-1"), ("c", "\N{EN DASH} why"), ("d", "10")]
SORT = """
const found = [], buttons = document.querySelectorAll("th button");
const names = () => [...document.querySelectorAll("tbody tr")].map((row) => row.cells[0].textContent);
const look = () => found.push(names().join(""));
look();
for (const column of [0, 0, 1, 1]) { buttons[column].click(); look(); }
top.document.title = found.join("; ");
"""
FITS = """
document.querySelectorAll("details").forEach((fold) => { fold.open = true; });
const cut = [...document.querySelectorAll(".wide")].filter((box) => box.scrollWidth > box.clientWidth + 1).length;
top.document.title = `width ${innerWidth}; page ${document.documentElement.scrollWidth <= innerWidth}; cut ${cut}`;
"""


def browsed(file, text, width, script):
    """The title that a script leaves on a page, in parts, and what the page logged.

    The page stands in a frame, since a window of a browser without a screen has a least width, which is no phone's.
    """
    page = escape(text.replace("</body>", f"<script>{script}</script></body>"))
    frame = f'<iframe style="width: {width}px; height: 800px; border: 0" srcdoc="{page}"></iframe>'
    file.write_text(f"<!doctype html><title>none</title>{frame}", encoding="utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=4000"]
    done = subprocess.run(
        [*command, "--enable-logging=stderr", "--window-size=1400,800", "--dump-dom", file.as_uri()],
        capture_output=True,
        text=True,
        timeout=HANG,
        env={**os.environ, "HOME": str(file.parent)},
    )
    title = re.findall(r"<title>(.*?)</title>", done.stdout)[0]
    return title.split("; "), [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_a_click_sorts_by_value_and_what_is_missing_stays_last(tmp_path):
    page = Page("t", markdown(table("", ("name", "score"), ROWS)), {}).html()
    assert browsed(tmp_path / "p.html", page, SCREEN, SORT) == (["bacd", "abcd", "dcba", "abdc", "dbac"], [])


@pytest.fixture(scope="module")
def pages(results, tmp_path_factory):
    """Every page that people look at."""
    report = write_report(find([results]), tmp_path_factory.mktemp("page") / "report.html")[0]
    return {
        "report": report.read_text(encoding="utf-8"),
        "tour with a conversion": demo.render(converted()),
        "tour without": demo.render(result()),
        "conversion": conversion.render(conversion_result("classifier")),
    }


@pytest.mark.parametrize("width", [PHONE, SCREEN])
@pytest.mark.parametrize("name", ["report", "tour with a conversion", "tour without", "conversion"])
def test_a_page_logs_nothing_and_fits_without_a_cut_table(pages, name, width, tmp_path):
    told, logged = browsed(tmp_path / "p.html", pages[name], width, FITS)
    assert (told, logged) == ([f"width {width}", "page true", "cut 0"], [])
