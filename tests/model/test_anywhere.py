"""A saved folder opens where the package is installed but not imported, and says what to install where it is not."""

import json
import subprocess
import sys

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForPreTraining, AutoModelForTextEncoding

import mabert
from mabert.model import config as configuring
from tests.infer.conftest import masked_lm, words  # noqa: F401 -- fixtures


def test_every_auto_class_that_is_named_is_transformers_and_registered():
    for auto, name in configuring.CLASSES.items():
        assert hasattr(transformers, auto)
        assert name in mabert.__all__
    config = mabert.MaBertConfig(layer_pattern="MT", hidden_size=32, num_attention_heads=2, vocab_size=50)
    assert type(AutoModelForTextEncoding.from_config(config)) is mabert.MaBertModel
    assert type(AutoModelForPreTraining.from_config(config)) is mabert.MaBertForMaskedLM


def test_a_folder_holds_the_module_once_and_again_when_it_is_saved_anew(masked_lm, tmp_path):  # noqa: F811
    model = mabert.MaBertForMaskedLM.from_pretrained(masked_lm)
    model.register_for_auto_class("AutoModelForMaskedLM")
    for place in ("once", "again"):
        model.save_pretrained(tmp_path / place)
        assert (tmp_path / place / f"{configuring.MODULE}.py").read_text() == configuring.CODE
        assert json.loads((tmp_path / place / "config.json").read_text())["auto_map"] == configuring.AUTO_MAP
        assert len(list((tmp_path / place).glob("*.py"))) == 1
        model = mabert.MaBertForMaskedLM.from_pretrained(tmp_path / place)
    assert type(AutoConfig.from_pretrained(tmp_path / "again")) is mabert.MaBertConfig


PROGRAM = """
import sys
from transformers import AutoModel, AutoTokenizer, pipeline
assert "mabert" not in sys.modules
folder = sys.argv[1]
fill = pipeline("fill-mask", model=folder, trust_remote_code=True)
print(fill("the [MASK] falls")[0]["score"])
model = AutoModel.from_pretrained(folder, trust_remote_code=True).eval()
model.save_pretrained(sys.argv[2])
AutoTokenizer.from_pretrained(folder).save_pretrained(sys.argv[2])
again = AutoModel.from_pretrained(sys.argv[2], trust_remote_code=True).eval()
ids = AutoTokenizer.from_pretrained(folder)("the river", return_tensors="pt")
print((model(**ids)[0] - again(**ids)[0]).abs().max().item(), type(again).__module__)
"""

HIDDEN = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "mabert":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hide())
"""


def run(program, *arguments, **environment):
    import os

    paths = {"PYTHONPATH": os.pathsep.join(sys.path), **environment}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **paths})


@pytest.mark.slow
def test_transformers_opens_it_without_our_import(masked_lm, tmp_path):  # noqa: F811
    done = run(PROGRAM, masked_lm, tmp_path / "saved", HF_HOME=str(tmp_path / "home"))
    assert done.returncode == 0, done.stderr
    score, moved = done.stdout.splitlines()[-2:]
    assert 0 < float(score) < 1
    assert moved.split() == ["0.0", "mabert.model.encoder"]
    with torch.no_grad():
        model = mabert.MaBertModel.from_pretrained(tmp_path / "saved")
        assert torch.isfinite(model(torch.tensor([[1, 2, 3]]))[0]).all()


@pytest.mark.slow
def test_where_the_package_is_missing_transformers_says_what_to_install(masked_lm, tmp_path):  # noqa: F811
    done = run(HIDDEN + PROGRAM, masked_lm, tmp_path / "saved", HF_HOME=str(tmp_path / "home"))
    assert done.returncode == 1
    assert "pip install mabert" in done.stderr.splitlines()[-1]
