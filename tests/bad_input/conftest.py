"""A small run of each kind, made once, and the command line's answer to what is wrong with it."""

import shutil

import pytest
import yaml

from mabert.train.recipe import as_mapping
from mabert_lab.cli import main
from tests.data.conftest import write_table
from tests.refusal import refusal
from tests.train.helpers import recipe, tokenizer


def hashes(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A recipe with its text and tokenizer; `run`, pretrained by it; `tuned`, a classifier of that."""
    place = tmp_path_factory.mktemp("made")
    tokenizer().save_pretrained(place / "tokenizer")
    plan = as_mapping(recipe(place, steps=4, save_steps=1, keep_checkpoints=3, eval_steps=4, warmup_steps=1))
    (place / "plan.yaml").write_text(yaml.safe_dump(plan | {"tokenizer": str(place / "tokenizer")}))
    for name, labels in (("classes", ("yes", "no")), ("constant", (2.5, 2.5))):
        words = zip(("river", "stone") * 6, labels * 6, strict=True)
        write_table(place / f"{name}.csv", [{"text": f"the {word} falls", "label": label} for word, label in words])
    assert main(["pretrain", str(place / "plan.yaml"), "-o", str(place / "run")]) == 0
    tune = ["finetune", str(place / "run"), "--train", str(place / "classes.csv"), "--epochs", "1"]
    assert main([*tune, "-o", str(place / "tuned")]) == 0
    return place


@pytest.fixture
def run(made, tmp_path):
    """A copy of the run as it is before its last step is saved as a model."""
    shutil.copytree(made / "run", tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    return tmp_path / "run"


@pytest.fixture
def refused(capsys):
    return lambda *words: refusal(capsys, words)
