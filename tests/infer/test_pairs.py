"""A fine-tuned model predicts what the run that made it predicted, pairs and single texts alike."""

import csv
import random
import shutil

import pytest
from safetensors.torch import load_file, save_file

import mabert
from mabert.data.own import load_own
from mabert.data.tasks import Columns
from mabert.infer.texts import read_rows, read_texts
from mabert.train.finetune import finetune
from mabert.train.recipe import FinetuneRecipe
from tests.train.helpers import WORDS


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Two texts of two to four words, a score and a class."""
    folder, draw = tmp_path_factory.mktemp("tables"), random.Random(0)
    for split, size in (("train", 24), ("validation", 12)):
        with (folder / f"{split}.csv").open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow(["one", "two", "score", "class"])
            for row in range(size):
                texts = [" ".join(draw.choices(WORDS, k=draw.randint(2, 4))) for _ in range(2)]
                table.writerow([*texts, draw.randint(0, 5), ["no", "yes"][row % 2]])
    return folder


@pytest.fixture(scope="module")
def pretrained(masked_lm, tmp_path_factory):
    """A model to which it matters which of a pair a token is in."""
    folder = shutil.copytree(masked_lm, tmp_path_factory.mktemp("pretrained"), dirs_exist_ok=True)
    weights = load_file(folder / "model.safetensors")
    weights["mabert.embeddings.token_type_embeddings.weight"] *= 5
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def tuned(pretrained, tables, output, columns, **how):
    """A run's folder of seed 0, and what it predicted on validation."""
    files = {split: tables / f"{split}.csv" for split in ("train", "validation")}
    task, splits = load_own(files, columns, kind="regression" if columns.label == "score" else "classification")
    recipe = FinetuneRecipe(learning_rates=[1e-2], epochs=1, batch_size=8, precision="fp32", **how)
    finetune(pretrained, task, splits, output, recipe, [0], progress=False)
    lines = (output / "seed-0/validation.tsv").read_text(encoding="utf-8").splitlines()[1:]
    return output / "seed-0", [line.split("\t")[1] for line in lines]


def test_scores_of_pairs(pretrained, tables, tmp_path):
    model, said = tuned(pretrained, tables, tmp_path, Columns("one", "two", "score"))
    first, second = zip(*read_rows(tables / "validation.csv", "one", "two"), strict=True)
    assert len(set(said)) == 12
    assert [f"{row['score']:.4f}" for row in mabert.load(model).predict(first, second)] == said
    turned = [f"{row['score']:.4f}" for row in mabert.load(model).predict(second, first)]
    assert sum(a != b for a, b in zip(turned, said, strict=True)) == 12
    with pytest.raises(ValueError, match="12 first texts and 11 second ones"):
        mabert.load(model).predict(first, second[1:])


def test_classes_of_single_texts(pretrained, tables, tmp_path):
    model, said = tuned(pretrained, tables, tmp_path, Columns("one", None, "class"))
    texts = read_texts(tables / "validation.csv", "one")
    assert [row["label"] for row in mabert.load(model).predict(texts)] == said


def test_texts_are_cut_as_in_fine_tuning_unless_something_else_is_asked_for(pretrained, tables, tmp_path):
    columns = Columns("one", "two", "score")
    model, said = tuned(pretrained, tables, tmp_path, columns, max_length=9, truncate=True)
    first, second = zip(*read_rows(tables / "validation.csv", "one", "two"), strict=True)
    assert [f"{row['score']:.4f}" for row in mabert.load(model).predict(first, second)] == said
    with pytest.raises(ValueError, match=r"texts are longer than 9 tokens"):
        mabert.load(model).predict(first, second, truncate=False)
    longer = mabert.load(model).predict(first, second, max_length=12)
    assert longer == mabert.load(model).predict(first, second, max_length=12, truncate=True)
    assert [f"{row['score']:.4f}" for row in longer] != said
    (model / "encoding.json").unlink()
    assert [f"{row['score']:.4f}" for row in mabert.load(model).predict(first, second)] != said


def test_pairs_for_single_texts_and_the_other_way_round_are_refused(pretrained, tables, tmp_path):
    pairs, _ = tuned(pretrained, tables, tmp_path / "pairs", Columns("one", "two", "score"))
    single, _ = tuned(pretrained, tables, tmp_path / "single", Columns("one", None, "class"))
    with pytest.raises(ValueError, match=r"seed-0 was fine-tuned on pairs of texts, and the second ones are missing"):
        mabert.load(pairs).predict(["the bird"])
    with pytest.raises(ValueError, match=r"seed-0 was fine-tuned on single texts, and pairs are given"):
        mabert.load(single).predict(["the bird"], ["a river"])
    (single / "encoding.json").write_text('{"max_length": "9", "truncate": false, "pairs": false}')
    with pytest.raises(ValueError, match=r"encoding\.json: holds .*, where max_length, truncate, pairs are needed"):
        mabert.load(single).predict(["the bird"])
