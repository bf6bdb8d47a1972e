"""Where a package of the extra `lab` is missing, one line names the extra, and the library goes on without pictures."""

import sys
import tomllib
from pathlib import Path

import pytest

from mabert_lab.cli import draw, main
from mabert_lab.extra import PACKAGES, of_the_lab


def test_the_packages_are_those_of_the_extra():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert {name.partition(">")[0] for name in project["optional-dependencies"]["lab"]} == set(PACKAGES)


def test_a_command_of_the_lab_names_the_extra_in_one_line(monkeypatch, capsys, tmp_path):
    for name in [name for name in sys.modules if name.startswith("mabert_lab.report")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "page.html")]) == 2
    expected = "mabert: pandas is not installed; the extra lab brings it: pip install 'mabert[lab]'\n"
    assert capsys.readouterr().err == expected


def test_another_missing_package_is_an_error_of_its_own():
    def run(options):
        raise ModuleNotFoundError("No module named 'elsewhere'", name="elsewhere")

    with pytest.raises(ModuleNotFoundError, match="elsewhere"):
        of_the_lab(run)(None)


@pytest.mark.parametrize("command", ["convert", "pretrain"])
def test_a_run_of_the_library_ends_well_without_pictures(monkeypatch, tmp_path, command):
    for name in [name for name in sys.modules if name.startswith("mabert_lab.report")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    (line,) = draw(command, {}, tmp_path)
    assert line == "no figures: matplotlib is not installed; the extra lab brings it: pip install 'mabert[lab]'"
    assert list(tmp_path.iterdir()) == []
