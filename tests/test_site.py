"""The site of the documents, as `make docs` builds it: whole without the internet."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

import mabert

ROOT = Path(__file__).parents[1]


def entries(branch):
    """The pages of a navigation, by their titles."""
    for each in branch:
        for title, below in each.items():
            yield from entries(below) if isinstance(below, list) else [(title, below)]


def navigation():
    return dict(entries(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
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
    pages = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "docs/reference").glob("*.md"))
    shown = set(re.findall(r"^::: mabert\.(\w+)$", pages, re.MULTILINE))
    assert shown == set(mabert.__all__) - {"__version__"}


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
