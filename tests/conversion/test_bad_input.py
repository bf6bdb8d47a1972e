"""What cannot be converted is refused in one line that names the thing, and nothing is written."""

import json
import re
import shutil

import pytest
from transformers import AutoConfig, AutoModel

from mabert.cli import main
from tests.conversion.helpers import sentence_files, teacher

NOTES = re.compile(r"^(mabert: reusing the token cache|mabert: compil|tokenising|Loading weights|Writing model)")


@pytest.fixture
def refused(capsys, tmp_path, words_to_learn):
    """Runs a conversion that must be refused in one line, with exit status 2 and no folder left; returns the line."""

    def refused(teacher, *options, text=words_to_learn, output=None):
        capsys.readouterr()
        place = output or tmp_path / "out"
        before = sorted(place.rglob("*"))
        words = ["convert", teacher, "-o", place, "--text", text, "--tokens", "1000", "--length", "30", *options]
        try:
            code = main([str(word) for word in words])
        except SystemExit as stop:
            code = stop.code
        told = [line for part in capsys.readouterr().err.splitlines() for line in part.split("\r")]
        told = [line for line in told if line and not NOTES.match(line)]
        assert (code, len(told)) == (2, 1), told
        assert len(told[0]) < 600
        assert sorted(place.rglob("*")) == before
        return told[0]

    return refused


@pytest.fixture
def copied(embedder, tmp_path):
    """A copy of the embedder to damage."""
    return shutil.copytree(embedder, tmp_path / "teacher")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--tokens", "1M"], "tokens to learn from, 1,000,000 are asked for; give more text, or ask for fewer"),
        (["--tokens", "abc"], "'abc' is no number of tokens such as 400K, 2M or 2000000"),
        (["--tokens", "12"], "must be at least 1000"),
        (["--length", "8"], "must be at least 16"),
        (["--pattern", "MMTM"], "pattern is 'MMTM', 4 layers; the teacher has 3: give as many letters"),
        (["--pattern", "MT"], "pattern is 'MT', 2 layers; the teacher has 3: give as many letters, or a pattern that"),
        (["--pattern", "TTT"], "pattern is 'TTT'; a conversion's has Ts and at least one M"),
        (["--pattern", "MXM"], "pattern is 'MXM'; it must be letters M and T"),
        (["--end-to-end", "1.5"], "must be at least 0 and at most 1"),
        (["--expand", "0"], "must be above 0"),
        (["--direction", "sideways"], "invalid choice: 'sideways'"),
        (["--resume"], "holds no run to resume"),
    ],
)
def test_options(refused, embedder, options, told):
    assert told in refused(embedder, *options)


def test_a_folder_that_holds_another_run(refused, embedder, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/result.json").write_text("{}")
    told = refused(embedder, output=tmp_path / "other")
    assert "other already holds files; name another folder, or go on with that run by --resume" in told


@pytest.mark.parametrize("content", ["", "\n\n  \n"])
def test_text_without_a_word(refused, embedder, tmp_path, content):
    (tmp_path / "empty.txt").write_text(content)
    assert "empty.txt" in refused(embedder, text=tmp_path / "empty.txt")


def test_text_of_one_word(refused, embedder, tmp_path):
    (tmp_path / "short.txt").write_text("bird\n")
    assert "tokens" in refused(embedder, text=tmp_path / "short.txt")


def test_text_that_is_not_there(refused, embedder, tmp_path):
    assert "gone.txt" in refused(embedder, text=tmp_path / "gone.txt")


def test_a_teacher_of_another_family(refused, tmp_path):
    AutoConfig.for_model("gpt2").save_pretrained(tmp_path / "gpt")
    told = refused(tmp_path / "gpt")
    assert "holds a model of type 'gpt2'; those of types bert, distilbert, roberta, xlm-roberta, camembert" in told


def test_a_teacher_with_another_head(refused, copied):
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, "architectures": ["BertForQuestionAnswering"]}))
    assert "saved as BertForQuestionAnswering; encoders, masked language models and" in refused(copied)


def test_a_quantized_teacher(refused, copied):
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "gptq"}}))
    assert "holds quantized weights" in refused(copied)


def test_a_teacher_with_a_setting_that_mabert_lacks(refused, tmp_path, copied):
    model = teacher(
        "bert", more={"is_decoder": True, "vocab_size": AutoModel.from_pretrained(copied).config.vocab_size}
    )
    model.save_pretrained(copied)
    assert "this bert has a setting that cannot be converted" in refused(copied)


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "model.safetensors"])
def test_a_teacher_that_lacks_a_file(refused, copied, name):
    (copied / name).unlink()
    assert str(copied) in refused(copied)


def test_a_teacher_without_a_tokenizer(refused, copied):
    for file in copied.glob("*token*"):
        file.unlink()
    assert "tokenizer" in refused(copied)


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "model.safetensors", "modules.json"])
def test_a_teacher_with_a_damaged_file(refused, copied, name):
    (copied / name).write_bytes((copied / name).read_bytes()[:50])
    assert str(copied) in refused(copied)


def test_a_tokenizer_with_more_entries_than_the_teacher(refused, copied):
    teacher("bert", vocabulary=50).save_pretrained(copied)
    assert re.search(r"the tokenizer in .* has 120 entries, the model's vocabulary 50", refused(copied))


def test_a_teacher_with_another_pooling(refused, copied):
    shutil.rmtree(copied / "1_Pooling")
    sentence_files(copied, "max")
    assert "1_Pooling/config.json pools by pooling_mode_max_tokens; mean or cls is needed" in refused(copied)


def test_a_teacher_with_further_layers(refused, copied):
    modules = json.loads((copied / "modules.json").read_text())
    modules.append({"type": "sentence_transformers.models.Dense", "path": "3_Dense"})
    (copied / "modules.json").write_text(json.dumps(modules))
    assert "modules.json has Dense; an encoder with Pooling and Normalize alone can be converted" in refused(copied)


@pytest.mark.parametrize("path", ["../elsewhere", "/etc"])
def test_a_module_outside_the_folder(refused, copied, path):
    (copied / "modules.json").write_text(json.dumps([{"type": "x.Transformer", "path": path}]))
    assert f"the path {path!r} leads out of the folder" in refused(copied)


@pytest.mark.parametrize("name", ["owner/gone", "nothing-here", "./nothing/here"])
def test_a_teacher_that_cannot_be_had(refused, monkeypatch, name):
    def unreachable(*given, **options):
        raise OSError("no connection")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    assert name.removeprefix("./") in refused(name)


def test_another_conversion_is_not_gone_on_with(refused, capsys, embedder, tmp_path, words_to_learn):
    common = ["convert", str(embedder), "--text", str(words_to_learn), "--tokens", "1000", "--length", "30"]
    assert main([*common, "-o", str(tmp_path / "done"), "--pattern", "MTM"]) == 0
    for option, value in (("--seed", "1"), ("--pattern", "TMM"), ("--expand", "1"), ("--delta", None)):
        told = refused(embedder, *filter(None, ("--resume", option, value)), output=tmp_path / "done")
        assert "done holds another run; it differs in " in told
