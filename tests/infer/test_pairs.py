"""A fine-tuned model predicts what the run that made it predicted, pairs and single texts alike."""

import functools
import random
import shutil

import pytest
from safetensors.torch import load_file, save_file

import mabert
from mabert.data.own import load_own
from mabert.data.tasks import Columns
from mabert.infer.texts import read_texts, text_rows
from mabert.train.finetune import finetune
from mabert.train.recipe import FinetuneRecipe
from tests.data.conftest import write_table
from tests.train.helpers import WORDS


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Two texts of two to four words, a score and a class."""
    folder, draw = tmp_path_factory.mktemp("tables"), random.Random(0)
    for split, size in (("train", 24), ("validation", 12)):
        rows = []
        for row in range(size):
            one, two = (" ".join(draw.choices(WORDS, k=draw.randint(2, 4))) for _ in range(2))
            rows.append({"one": one, "two": two, "score": draw.randint(0, 5), "class": ["no", "yes"][row % 2]})
        write_table(folder / f"{split}.csv", rows)
    return folder


@pytest.fixture(scope="module")
def pretrained(masked_lm, tmp_path_factory):
    """A model to which it matters which of a pair a token is in."""
    folder = shutil.copytree(masked_lm, tmp_path_factory.mktemp("pretrained"), dirs_exist_ok=True)
    weights = load_file(folder / "model.safetensors")
    weights["mabert.embeddings.token_type_embeddings.weight"] *= 5
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def tuned(pretrained, tables, tmp_path_factory):
    """Gives a run's folder of seed 0, and what it predicted on validation."""

    @functools.cache
    def tuned(second, label, **how):
        output, columns = tmp_path_factory.mktemp("run"), Columns("one", second, label)
        files = {split: tables / f"{split}.csv" for split in ("train", "validation")}
        task, splits = load_own(files, columns, kind="regression" if label == "score" else "classification")
        recipe = FinetuneRecipe(learning_rates=[1e-2], epochs=1, batch_size=8, precision="fp32", **how)
        finetune(pretrained, task, splits, output, recipe, [0], progress=False)
        lines = (output / "seed-0/validation.tsv").read_text(encoding="utf-8").splitlines()[1:]
        return output / "seed-0", [line.split("\t")[1] for line in lines]

    return tuned


@pytest.fixture
def pairs(tables):
    return list(zip(*text_rows(tables / "validation.csv", "one", "two"), strict=True))


def scores(model, *texts, **how):
    return [f"{row['score']:.4f}" for row in mabert.load(model).predict(*texts, **how)]


def test_scores_of_pairs(tuned, pairs):
    model, said = tuned("two", "score")
    assert len(set(said)) == 12
    assert scores(model, *pairs) == said
    assert sum(a != b for a, b in zip(scores(model, *pairs[::-1]), said, strict=True)) == 12
    with pytest.raises(ValueError, match="12 first texts and 11 second ones"):
        mabert.load(model).predict(pairs[0], pairs[1][1:])


def test_classes_of_single_texts(tuned, tables):
    model, said = tuned(None, "class")
    texts = read_texts(tables / "validation.csv", "one")
    assert [row["label"] for row in mabert.load(model).predict(texts)] == said


def test_texts_are_cut_as_in_fine_tuning_unless_something_else_is_asked_for(tuned, pairs):
    model, said = tuned("two", "score", max_length=9, truncate=True)
    assert scores(model, *pairs) == said
    with pytest.raises(ValueError, match=r"texts are longer than 9 tokens"):
        mabert.load(model).predict(*pairs, truncate=False)
    longer = scores(model, *pairs, max_length=12)
    assert longer == scores(model, *pairs, max_length=12, truncate=True)
    assert longer != said
    (model / "encoding.json").unlink()
    assert scores(model, *pairs) != said


def test_pairs_for_single_texts_and_the_other_way_round_are_refused(tuned, tmp_path):
    with pytest.raises(ValueError, match=r"seed-0 was fine-tuned on pairs of texts, and the second ones are missing"):
        mabert.load(tuned("two", "score")[0]).predict(["the bird"])
    single = shutil.copytree(tuned(None, "class")[0], tmp_path / "seed-0")
    with pytest.raises(ValueError, match=r"seed-0 was fine-tuned on single texts, and pairs are given"):
        mabert.load(single).predict(["the bird"], ["a river"])
    (single / "encoding.json").write_text('{"max_length": "9", "truncate": false, "pairs": false}')
    with pytest.raises(ValueError, match=r"encoding\.json: holds .*, where max_length, truncate, pairs are needed"):
        mabert.load(single).predict(["the bird"])
