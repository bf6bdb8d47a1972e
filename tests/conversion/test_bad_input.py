"""What cannot be converted is refused in one line that names the thing, and nothing is written."""

import json
import shutil
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

import mabert
from mabert.cli import main
from tests.conversion.helpers import sentence_files, teacher
from tests.refusal import refusal


@pytest.fixture
def refused(capsys, tmp_path, words_to_learn):
    """Runs a conversion that must be refused in one line, with exit status 2 and no folder left; returns the line."""

    def refused(teacher, *options, text=words_to_learn, output=None):
        place = output or tmp_path / "out"
        before = sorted(place.rglob("*"))
        words = ["convert", teacher, "-o", place, "--text", text, "--tokens", "1000", "--length", "30", *options]
        told = refusal(capsys, words)
        assert len(told) < 600
        assert sorted(place.rglob("*")) == before
        return told

    return refused


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--tokens", "1M"], "tokens to learn from, 1,000,000 are asked for; give more text, or ask for fewer"),
        (["--tokens", "12"], "must be at least 1000"),
        (["--length", "8"], "must be at least 16"),
        (["--pattern", "MMTM"], "pattern is 'MMTM', 4 layers; the teacher has 3: give as many letters"),
        (["--pattern", "MT"], "pattern is 'MT', 2 layers; the teacher has 3: give as many letters, or a pattern that"),
        (["--pattern", "MT M"], "pattern is 'MT M'; it must be letters M and T, such as MMT or MMT*2, or auto"),
        (["--pattern", "TTT"], "pattern is 'TTT'; it must have at least one M, and no letters but M and T"),
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


@pytest.mark.parametrize(
    ("content", "told"), [("", "text.txt"), ("\n\n  \n", "text.txt"), ("bird\n", "tokens"), (None, "text.txt")]
)
def test_text_without_enough_words(refused, embedder, tmp_path, content, told):
    if content is not None:
        (tmp_path / "text.txt").write_text(content)
    assert told in refused(embedder, text=tmp_path / "text.txt")


def changed(file, change):
    """A damage of a JSON file: a change of what it holds."""

    def damage(folder):
        content = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(change(content)))

    return damage


def with_fields(**fields):
    """A damage that writes fields of the configuration anew."""
    return changed("config.json", lambda content: content | fields)


def without_tokenizer(folder):
    for file in folder.glob("*token*"):
        file.unlink()


def as_decoder(folder):
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    teacher("bert", more={"is_decoder": True, "vocab_size": size}).save_pretrained(folder)


def with_another_pooling(folder):
    shutil.rmtree(folder / "1_Pooling")
    sentence_files(folder, "max")


FILES = ("tokenizer.json", "config.json", "model.safetensors")


def with_bytes(folder):
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.word_embeddings.weight"] = (weights["embeddings.word_embeddings.weight"] * 50).to(torch.int8)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


DAMAGE = {
    **{f"no {name}": (lambda folder, name=name: (folder / name).unlink(), "FOLDER") for name in FILES},
    **{
        f"half of {name}": (
            lambda folder, name=name: (folder / name).write_bytes((folder / name).read_bytes()[:50]),
            "FOLDER",
        )
        for name in (*FILES, "modules.json")
    },
    "no tokenizer": (without_tokenizer, "tokenizer"),
    "another family": (
        lambda folder: AutoConfig.for_model("gpt2").save_pretrained(folder),
        "holds a model of type 'gpt2'; those of types bert, distilbert, roberta, xlm-roberta, camembert",
    ),
    "another head": (
        with_fields(architectures=["BertForQuestionAnswering"]),
        "saved as BertForQuestionAnswering; encoders, masked language models and",
    ),
    "positions by distance": (
        with_fields(position_embedding_type="relative_key"),
        "has position_embedding_type 'relative_key'; only absolute ones can be converted",
    ),
    "weights in bytes": (
        with_bytes,
        "embeddings.word_embeddings.weight is of I8; weights must be one of F64, F32, F16, BF16",
    ),
    "quantized": (with_fields(quantization_config={"quant_method": "gptq"}), "holds quantized weights"),
    "a decoder": (as_decoder, "this bert has a setting that cannot be converted"),
    "fewer rows than words": (
        lambda folder: teacher("bert", vocabulary=50).save_pretrained(folder),
        "has 120 entries, the model's vocabulary 50",
    ),
    "another pooling": (
        with_another_pooling,
        "1_Pooling/config.json pools by pooling_mode_max_tokens; mean or cls is needed",
    ),
    "further layers": (
        changed(
            "modules.json",
            lambda modules: [*modules, {"type": "x.Dense", "path": "3_Dense"}],
        ),
        "modules.json has Dense; only Pooling and Normalize are supported",
    ),
    **{
        f"a module in {path}": (
            changed("modules.json", lambda _, path=path: [{"type": "x.Transformer", "path": path}]),
            f"the path {path!r} leads out of the folder",
        )
        for path in ("../elsewhere", "/etc")
    },
}
"""What may be wrong with a teacher: what makes it so of a whole one, and what the line says."""


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_teacher_that_cannot_be_converted(refused, embedder, tmp_path, damage):
    make, told = DAMAGE[damage]
    make(shutil.copytree(embedder, tmp_path / "teacher"))
    assert told.replace("FOLDER", str(tmp_path / "teacher")) in refused(tmp_path / "teacher")


@pytest.mark.parametrize("name", ["owner/gone", "nothing-here", "./nothing/here"])
def test_a_teacher_that_cannot_be_had(refused, monkeypatch, name):
    monkeypatch.setattr("huggingface_hub.snapshot_download", Mock(side_effect=OSError("no connection")))
    assert name.removeprefix("./") in refused(name)


def test_without_a_text_it_says_so(embedder, tmp_path):
    with pytest.raises(ValueError, match="texts is empty; name at least one file, folder or hub data set"):
        mabert.convert(embedder, [], tmp_path / "out")


def test_another_conversion_is_not_gone_on_with(refused, embedder, tmp_path, words_to_learn):
    common = ["convert", str(embedder), "--text", str(words_to_learn), "--tokens", "1000", "--length", "30"]
    assert main([*common, "-o", str(tmp_path / "done"), "--pattern", "MTM"]) == 0
    for option, value in (("--seed", "1"), ("--pattern", "TMM"), ("--expand", "1"), ("--delta", None)):
        told = refused(embedder, *filter(None, ("--resume", option, value)), output=tmp_path / "done")
        assert "done holds another run; it differs in " in told
