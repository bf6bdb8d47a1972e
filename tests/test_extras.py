"""Packages of the extras: a command or function that lacks one names its extra in one line, and nothing else asks for
one."""

import sys
import tomllib
from pathlib import Path

import pytest

import mabert
from mabert import MaBertForMaskedLM
from mabert.data.tasks import Task
from mabert.machine.environment import DISTRIBUTIONS, EXTRAS, lacking
from mabert.train.finetune import finetune
from mabert.train.pretrain import pretrain
from mabert.train.recipe import FinetuneRecipe, PretrainRecipe
from mabert_lab.cli import draw, main
from tests.infer.conftest import saved
from tests.train.helpers import tokenizer

TRAIN = "is not installed; the extra train brings it: pip install 'mabert[train]'"


def without(monkeypatch, *packages):
    """Lets imports of packages fail, those that were imported before too; what draws with them is imported anew."""
    for name in list(sys.modules):
        if name.partition(".")[0] in packages or name.startswith("mabert_lab.report"):
            monkeypatch.delitem(sys.modules, name)
    for name in packages:
        monkeypatch.setitem(sys.modules, name, None)


def test_the_packages_are_those_of_the_extras():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    for extra, packages in EXTRAS.items():
        named = {name.partition(">")[0] for name in project["optional-dependencies"][extra] if "mabert[" not in name}
        assert named == {DISTRIBUTIONS.get(package, package) for package in packages}


@pytest.mark.parametrize(
    ("command", "package"),
    [
        ("convert minilm --text TEXT -o OUT", "accelerate"),
        ("pretrain mini tokenizer=minilm data.sources=[TEXT] -o OUT", "tensorboard"),
        ("finetune minilm --train TABLE -o OUT", "scikit-learn"),
        ("embed MODEL TEXT.zst", "pyarrow"),
        ("embed MODEL TABLE.parquet", "pyarrow"),
    ],
)
def test_a_command_names_the_extra_in_one_line(monkeypatch, capsys, tmp_path, command, package):
    (tmp_path / "text.txt").write_text("A text.\n")
    for name in ("text.txt.zst", "table.parquet"):
        (tmp_path / name).write_bytes(b"PAR1")
    (tmp_path / "table.csv").write_text("text,label\na,b\nc,d\n" * 20)
    without(monkeypatch, {"scikit-learn": "sklearn"}.get(package, package))
    places = {"TABLE.parquet": "table.parquet", "TABLE": "table.csv", "TEXT": "text.txt", "OUT": "out"}
    for name, file in places.items():
        command = command.replace(name, str(tmp_path / file))
    if "MODEL" in command:
        command = command.replace("MODEL", str(saved(MaBertForMaskedLM, tmp_path / "model", tokenizer())))
    assert main(command.split()) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"mabert: {package} {TRAIN}"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("package", EXTRAS["train"])
def test_a_function_names_the_extra_before_it_does_anything(monkeypatch, tmp_path, package):
    monkeypatch.setitem(sys.modules, package, None)
    output, task = tmp_path / "out", Task("mine", ("a", "b"), ("accuracy",), "accuracy")
    calls = (
        lambda: mabert.convert("nothing", ["nowhere"], output),
        lambda: pretrain(PretrainRecipe(), output),
        lambda: finetune("nothing", task, {}, output, FinetuneRecipe()),
    )
    for call in calls:
        with pytest.raises(ValueError, match=f"^{DISTRIBUTIONS.get(package, package)} {TRAIN}$".replace("[", r"\[")):
            call()
    assert not output.exists()


LAB = "is not installed; the extra lab brings it: pip install 'mabert[lab]'"


@pytest.mark.parametrize("command", ["bench ops --quick", "demo", "study drift minilm", "study pattern --dry-run"])
def test_a_command_names_the_lab_before_what_the_lab_brings(monkeypatch, capsys, command):
    for package in ("jinja2", "sklearn"):
        monkeypatch.setitem(sys.modules, package, None)
    assert main(command.split()) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"mabert: jinja2 {LAB}"


def test_another_missing_package_is_an_error_of_its_own():
    with pytest.raises(ModuleNotFoundError, match="elsewhere"):
        lacking(ModuleNotFoundError("No module named 'elsewhere'", name="elsewhere"))


def test_a_command_of_the_lab_names_its_extra(monkeypatch, capsys, tmp_path):
    without(monkeypatch, "pandas")
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "page.html")]) == 2
    assert capsys.readouterr().err == f"mabert: pandas {LAB}\n"


@pytest.mark.parametrize("command", ["convert", "pretrain"])
def test_a_run_of_the_library_ends_well_without_pictures(monkeypatch, tmp_path, command):
    without(monkeypatch, "matplotlib")
    assert list(draw(command, {}, tmp_path)) == [f"no figures: matplotlib {LAB}"]
    assert list(tmp_path.iterdir()) == []
