"""Tables sort in a real browser. Skipped where there is no Chromium or Chrome."""

import os
import re
import shutil
import subprocess
from html import escape

import pytest

from mabert_lab.report.document import Page, markdown, table
from tests.patience import HANG

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="neither chromium nor chrome is on PATH")]
ROWS = [("b", "0.9"), ("a", "-1"), ("c", "\N{EN DASH} why"), ("d", "10")]
SORT = """
const found = [], buttons = document.querySelectorAll("th button");
const names = () => [...document.querySelectorAll("tbody tr")].map((row) => row.cells[0].textContent);
const look = () => found.push(names().join(""));
look();
for (const column of [0, 0, 1, 1]) { buttons[column].click(); look(); }
top.document.title = found.join("; ");
"""


def browsed(file, text, script):
    """The title that a script leaves on a page, in parts, and what the page logged."""
    page = escape(text.replace("</body>", f"<script>{script}</script></body>"))
    frame = f'<iframe srcdoc="{page}"></iframe>'
    file.write_text(f"<!doctype html><title>none</title>{frame}", encoding="utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=4000"]
    done = subprocess.run(
        [*command, "--enable-logging=stderr", "--dump-dom", file.as_uri()],
        capture_output=True,
        text=True,
        timeout=HANG,
        env={**os.environ, "HOME": str(file.parent)},
    )
    title = re.findall(r"<title>(.*?)</title>", done.stdout)[0]
    return title.split("; "), [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_a_click_sorts_by_value_and_what_is_missing_stays_last(tmp_path):
    page = Page("t", markdown(table("", ("name", "score"), ROWS)), {}).html()
    assert browsed(tmp_path / "p.html", page, SORT) == (["bacd", "abcd", "dcba", "abdc", "dbac"], [])
