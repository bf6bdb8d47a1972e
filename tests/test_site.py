"""The site of the documents, as `make docs` builds it: whole without the internet, and readable on a phone."""

import os
import re
import subprocess
import sys
from html import escape
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from tests.lab.report.test_in_browser import BROWSER, PHONE, SCREEN
from tests.patience import HANG

ROOT = Path(__file__).parents[1]
FILES = ["index.html", "docs/convert.html", "docs/padding.html", "docs/performance.html", "docs/reference/model.html"]
LOOK = """
onload = () => {
  const wider = document.documentElement.scrollWidth > innerWidth;
  const unseen = [...document.images].filter((picture) => !picture.naturalWidth).length;
  const menus = [...document.querySelectorAll(".md-sidebar--primary, .md-header__button")];
  const menu = menus.some((each) => each.getClientRects().length);
  const header = getComputedStyle(document.querySelector(".md-header")).position;
  top.document.title += `; NAME ${innerWidth}: wider ${wider}, unseen ${unseen}, menu ${menu}, header ${header}`;
};
"""


def entries(branch):
    """The pages of a navigation, by their titles."""
    for each in branch:
        for title, below in each.items():
            yield from entries(below) if isinstance(below, list) else [(title, below)]


def navigation():
    """Titles and files of all pages of the navigation."""
    return dict(entries(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site."""
    if find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed; the extra docs brings it")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_document_has_its_place():
    written = {file.relative_to(ROOT).as_posix() for file in (ROOT / "docs").rglob("*.md")}
    assert written <= set(navigation().values())


def test_the_reference_has_every_public_name():
    from tests.test_public_api import PUBLIC

    pages = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "docs/reference").glob("*.md"))
    shown = set(re.findall(r"^::: mabert\.(\w+)$", pages, re.MULTILINE))
    assert shown == PUBLIC - {"__version__"}


@pytest.mark.slow
def test_nothing_is_fetched_from_elsewhere(site):
    fetched = re.compile(r'<(?:script|img|iframe|source)\b[^>]*\bsrc="([^"]*)"|<link\b[^>]*\bhref="([^"]*)"')
    for page in site.rglob("*.html"):
        for found in fetched.findall(page.read_text(encoding="utf-8")):
            assert "//" not in "".join(found), page
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(\W?(https?:)?//|@import", style.read_text(encoding="utf-8")), style


@pytest.mark.slow
def test_every_table_is_one_also_in_folds(site):
    for page in site.rglob("*.html"):
        assert "|---" not in page.read_text(encoding="utf-8"), page


def framed(site, page, width):
    """A page in a frame, which tells the window's title how it looks."""
    text = (site / page).read_text(encoding="utf-8").replace("<head>", f'<head><base href="{Path(page).parent}/">')
    text = text.replace("</body>", f"<script>{LOOK.replace('NAME', page)}</script></body>")
    return f'<iframe style="width: {width}px; height: 800px; border: 0" srcdoc="{escape(text)}"></iframe>'


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="neither chromium nor chrome is on PATH")
def test_pages_fit_a_phone_and_a_screen_and_show_their_figures(site):
    looks = [(page, width) for page in FILES for width in (PHONE, SCREEN)]
    frames = "".join(framed(site, page, width) for page, width in looks)
    (site / "frames.html").write_text(f"<!doctype html><title></title>{frames}", encoding="utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,800", "--dump-dom"]
    address, around = (site / "frames.html").as_uri(), {**os.environ, "HOME": str(site)}
    shown = subprocess.run([*command, address], capture_output=True, text=True, timeout=HANG, env=around).stdout
    told = re.findall(r"<title>(.*?)</title>", shown)[0].split("; ")[1:]
    assert sorted(told) == sorted(
        f"{page} {width}: wider false, unseen 0, menu true, header sticky" for page, width in looks
    )
