"""The tour on a person's own text, small: every step runs, and the page is self-contained."""

import json
import random
import re
from html.parser import HTMLParser

import pytest

from mabert import demo as demo_module
from mabert.demo import demo, hold_out, make_examples

SUBJECTS = ("the reader", "a quiet river", "the old house", "every small stone", "this bright bird", "her green paper")
VERBS = ("moves under", "was found beside", "can be seen near", "will not stay in", "has always lived over")
PLACES = ("the road", "a cold garden", "the long wall", "an open window", "the wide field")


@pytest.fixture(scope="module")
def own_text(tmp_path_factory):
    draw = random.Random(0)
    pick = draw.choice
    documents = []
    for _ in range(160):
        sentences = [
            f"{pick(SUBJECTS)} {pick(VERBS)} {pick(PLACES)} and {pick(SUBJECTS)} {pick(VERBS)} {pick(PLACES)}."
            for _ in range(6)
        ]
        documents.append("\n".join(sentence.capitalize() for sentence in sentences))
    file = tmp_path_factory.mktemp("text") / "own.txt"
    file.write_text("\n\n".join(documents), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def tour(own_text, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo_module, "EXAMPLES", {"train": 64, "validation": 32})
        patch.setattr(demo_module, "VOCABULARY", 200)
        folder = tmp_path_factory.mktemp("demo") / "out"
        return folder, demo(folder, [str(own_text)], steps=10)


def test_everything_is_measured(tour):
    folder, result = tour
    assert result == json.loads((folder / "demo.json").read_text(encoding="utf-8"))
    assert result["pretraining"]["steps"] == 10
    assert [entry["step"] for entry in result["pretraining"]["history"] if "eval_loss" in entry]
    assert set(result["fine-tuning"]) == {"pretrained", "from scratch"}
    assert all(0 <= run["accuracy"] <= 1 for run in result["fine-tuning"].values())
    assert all(len(mask["guesses"]) == 5 and "[MASK]" in mask["text"] for mask in result["masks"])
    assert (folder / "classifier-pretrained/seed-0/model.safetensors").is_file()


def test_exact_masking_does_not_move_a_token_and_none_does(tour):
    moved = {}
    for row in tour[1]["padding"]:
        moved.setdefault((row["masking"], row["side"]), []).append(row["moved"])
    assert max(moved["exact", "left"] + moved["exact", "right"]) < 1e-5
    assert max(moved["none", "left"]) > 1e-3
    assert max(moved["none", "left"]) > max(moved["pre+post", "left"]) > 1e-4


class Outline(HTMLParser):
    """Headings, drawings, and whatever a page would fetch."""

    def __init__(self):
        super().__init__()
        self.tags, self.fetched = [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        named = dict(attributes)
        self.fetched += [named[key] for key in ("src", "href", "xlink:href") if key in named]


def test_the_page_is_self_contained(tour):
    page = (tour[0] / "index.html").read_text(encoding="utf-8")
    outline = Outline()
    outline.feed(page)
    assert outline.tags.count("svg") == 2
    assert outline.tags.count("table") == 3
    assert "script" not in outline.tags
    assert all(target.startswith("#") for target in outline.fetched)
    assert not re.search(r"@import|url\((?!#)", page)


def test_a_folder_in_use_and_too_little_text_are_refused(tour, tmp_path):
    with pytest.raises(ValueError, match="already holds files"):
        demo(tour[0])
    short = tmp_path / "short.txt"
    short.write_text("The one sentence that is here was not enough.", encoding="utf-8")
    with pytest.raises(ValueError, match="the text has 1 plain sentences"):
        demo(tmp_path / "out", [str(short)])
    assert not (tmp_path / "out").exists()


def test_nobody_is_judged_by_a_sentence_it_learnt(own_text):
    learnt, held_out = hold_out(demo_module.read_documents([str(own_text)]))
    assert len(learnt) + len(held_out) == 160
    examples = make_examples(learnt, held_out)
    real = {row["text_a"] for row in examples["validation"] if row["label"]}
    assert real
    assert not real & set("\n".join(learnt).split("\n"))
