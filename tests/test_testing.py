"""`check_mixer` passes what keeps the promises of a model, and names what breaks them; a letter of one's own works in
saved folders, on the command line and in a study, as docs/mixers.md shows it."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from mabert import MaBertConfig, MaBertModel, register_mixer
from mabert.infer.info import parameters_by_part
from mabert.model.blocks import BLOCKS
from mabert.model.config import LAYER_TYPES
from mabert.model.mamba import MambaMixer
from mabert.model.mixers import register_named
from mabert.testing import check_mixer

PAGE = (Path(__file__).parents[1] / "docs/mixers.md").read_text(encoding="utf-8")
CODE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("direction", ["forward", "backward", "bidirectional"])
@pytest.mark.parametrize("conv", ["causal", "centered"])
def test_the_papers_mixer_passes(direction, conv):
    check_mixer(MambaMixer, ssm_direction=direction, ssm_conv_mode=conv)


class Mean(nn.Module):
    """The mean over a text beside each token: right."""

    def __init__(self, config):
        super().__init__()
        self.out = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden, mask, output_attentions=False):
        return self.out(hidden + mask.per_text(hidden, self.mean)), None

    def mean(self, hidden, valid):
        count = hidden.shape[1] if valid is None else valid.sum(dim=1)[:, None, None]
        return (hidden.sum(dim=1, keepdim=True) / count).expand_as(hidden)


def test_a_mixer_that_keeps_its_promises_passes():
    check_mixer(Mean)
    check_mixer(Mean, hidden_size=8)


class Rounded(Mean):
    """Rounds as float32 does, by where a text stands in its batch."""

    error = 3.6e-8

    def forward(self, hidden, mask, output_attentions=False):
        result = super().forward(hidden, mask)[0]
        return result * (1 + self.error * (hidden.shape[0] * hidden.shape[1] > 9)), None


def test_rounding_of_float32_passes_with_a_warning_and_a_leak_does_not(monkeypatch):
    with pytest.warns(UserWarning, match=r"3\.6e-08 of its largest number, as rounding does where a mixer computes in"):
        check_mixer(Rounded)
    monkeypatch.setattr(Rounded, "error", 1e-4)
    with pytest.raises(AssertionError, match=r"differs from the text alone by 1\.0e-04"):
        check_mixer(Rounded)


def changed(change):
    return {"forward": lambda self, *given, **options: change(Mean.forward(self, *given)[0])}


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (
            {"mean": lambda self, hidden, valid: hidden.mean(dim=1, keepdim=True).expand_as(hidden)},
            r"a text padded on the right differs from the text alone by \d",
        ),
        (
            {"forward": lambda self, x, mask, **options: (self.out(x + self.mean(x, mask.valid)), None)},
            r"text 1 of a packed row differs from the text alone by \d",
        ),
        (
            {"__init__": lambda self, config: Mean.__init__(self, config) or setattr(self, "idle", nn.Linear(3, 3))},
            r"idle\.weight has no gradient",
        ),
        (changed(lambda mixed: (mixed[..., :-1], None)), r"\(1, 9, 24\) is mixed to \(1, 9, 23\)"),
        (changed(lambda mixed: (mixed.float(), None)), r"torch\.float64 is mixed to torch\.float32"),
        (changed(lambda mixed: mixed), r"a mixer returns \(mixed, attention or None\); this one a Tensor"),
        (
            {"forward": lambda self, hidden, mask, **options: Mean.forward(self, hidden.detach(), mask)},
            "the input has no gradient",
        ),
    ],
)
def test_what_breaks_a_promise_is_named(how, told):
    with pytest.raises(AssertionError, match=told):
        check_mixer(type("Broken", (Mean,), how))


@pytest.fixture
def letter():
    register_mixer("X", Mean)
    yield "X"
    del BLOCKS["X"], LAYER_TYPES["X"]


@pytest.mark.parametrize("unpad", ["auto", "never"])
def test_a_letter_of_ones_own_stands_in_schedules_and_folders(tmp_path, letter, unpad):
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 30}
    model = MaBertModel(MaBertConfig(layer_pattern=f"{letter}M{letter}T", unpad=unpad, **sizes)).eval()
    kinds = ["MeanBlock", "MambaBlock", "MeanBlock", "TransformerBlock"]
    assert [type(layer).__name__ for layer in model.layers] == kinds
    cores = {part: held for part, held in parameters_by_part(model).items() if "core" in part or "mixer" in part}
    own, mamba = (sum(map(torch.numel, layer.mixer.parameters())) for layer in model.layers[:2])
    assert cores == {"Mamba cores": mamba, "mixers X": 2 * own}
    model.save_pretrained(tmp_path)
    again = MaBertModel.from_pretrained(tmp_path).eval()
    tokens = torch.arange(1, 11).view(2, 5)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    with torch.no_grad():
        whole, alone = model(tokens, mask)[0], model(tokens[1:, :3])[0]
        assert torch.equal(again(tokens, mask)[0], whole)
    torch.testing.assert_close(whole[1:, :3], alone, rtol=1e-5, atol=1e-6)


def test_a_letter_that_is_not_registered_is_named(letter):
    with pytest.raises(ValueError, match=r"letters M, T and X .*; Q must first be added by mabert.register_mixer"):
        MaBertConfig(layer_pattern="QT")
    with pytest.raises(ValueError, match="letter is 'X', which is taken by MeanBlock"):
        register_mixer("X", Rounded)
    register_mixer("X", Mean)
    for wrong in ("M", "x", "AB", "", 3):
        with pytest.raises(ValueError, match="letter is "):
            register_mixer(wrong, Mean)


@pytest.fixture
def guide(tmp_path, monkeypatch):
    """Writes the page's module, runs programs beside it, and forgets its letter and itself before each and after."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def run(mixer, program=""):
        for names, name in ((sys.modules, "gla"), (BLOCKS, "G"), (LAYER_TYPES, "G")):
            names.pop(name, None)
        (tmp_path / "gla.py").write_text(mixer)
        importlib.invalidate_caches()
        exec(program, {})

    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # which would be taken for that of the next module
    yield run
    run("")


@pytest.mark.slow
def test_the_guide_runs_as_it_stands(guide, tmp_path):
    mixer, check, use = CODE
    guide(mixer, f"{check}\n{use}")
    line = next(line for line in mixer.splitlines() if "masked_fill" in line)
    with pytest.raises(AssertionError) as told:
        guide(mixer.replace(line, line[: len(line) - len(line.lstrip())] + "pass"), check)
    assert str(told.value).endswith(re.search(r"it says `(.*?)`", PAGE)[1])
    guide(mixer)
    how = r"mabert\.register_mixer \(for commands: MABERT_MIXERS=FILE\.py\)"
    with pytest.raises(ValueError, match=f"G must first be added by {how}"):
        MaBertModel.from_pretrained(tmp_path / "gg-model")
    command = [Path(sys.executable).with_name("mabert"), "info", "gg-model"]
    subprocess.run(command, env={**os.environ, "MABERT_MIXERS": "gla.py"}, check=True)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nowhere.py", "there is no such file"),
        ("nowhere", "no such module"),
        ("nowhere.mixers", "no such module"),
        ("json.nowhere.mixers", "no such module"),
        ("./nowhere", "no such module"),
        ("random.py", r"another random is imported \(.*random\.py\): rename the file"),
        ("sys.py", r"another sys is imported \(built in\)"),
    ],
)
def test_what_names_no_mixers_is_named(tmp_path, monkeypatch, name, told):
    monkeypatch.chdir(tmp_path)
    for taken in ("random.py", "sys.py"):
        (tmp_path / taken).touch()
    monkeypatch.setenv("MABERT_MIXERS", name)
    with pytest.raises(ValueError, match=f"MABERT_MIXERS names '{name}'; .*{told}"):
        register_named()


def test_a_file_of_mixers_is_read_once_and_another_of_its_name_is_refused(tmp_path, monkeypatch):
    files = [tmp_path / place / "mixers_of_mine.py" for place in ("one", "other")]
    for file in files:
        file.parent.mkdir()
        file.write_text("import os\nos.environ['READ'] = os.environ['READ'] + '1'\n")
    monkeypatch.setenv("READ", "")
    monkeypatch.setenv("MABERT_MIXERS", os.pathsep.join(map(str, [files[0]] * 2)))
    monkeypatch.setitem(sys.modules, "mixers_of_mine", None)  # is taken out again behind the test
    del sys.modules["mixers_of_mine"]
    register_named()
    register_named()
    assert os.environ["READ"] == "1"
    monkeypatch.setenv("MABERT_MIXERS", os.pathsep.join(map(str, files)))
    with pytest.raises(ValueError, match=r"names '.*other.*'; another mixers_of_mine is imported \(.*one.*\)"):
        register_named()


def test_what_a_named_package_lacks_itself_is_no_error_of_the_name(tmp_path, monkeypatch):
    (tmp_path / "lacking").mkdir()
    (tmp_path / "lacking/__init__.py").write_text("import nowhere")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("MABERT_MIXERS", "lacking.mixers")
    with pytest.raises(ModuleNotFoundError, match="'nowhere'"):
        register_named()
