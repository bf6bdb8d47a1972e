"""The tour on a person's own text and by a tiny teacher: every step runs, and the page is self-contained."""

import ast
import dataclasses
import io
import json
import random
import re
import shlex
import sys
import textwrap
from functools import reduce
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

import mabert
from mabert.model.packing import Unpadding
from mabert.train.recipe import Stage, load_recipe
from mabert_lab import cli
from mabert_lab import demo as tour
from mabert_lab.demo import demo, free_folder, hold_out, make_examples, read_documents
from mabert_lab.english import sentences
from tests.conversion.conftest import make_small
from tests.conversion.helpers import is_installed, saved_teacher
from tests.lab.pages import fetched

SUBJECTS = ("the reader", "a quiet river", "the old house", "every small stone", "this bright bird", "her green paper")
VERBS = ("moves under", "was found beside", "can be seen near", "will not stay in", "has always lived over")
PLACES = ("the road", "a cold garden", "the long wall", "an open window", "the wide field")


def one_clause(pick):
    return f"{pick(SUBJECTS)} {pick(VERBS)} {pick(PLACES)}"


@pytest.fixture(scope="module")
def documents():
    """160 documents of six paragraphs, each a sentence."""
    pick = random.Random(0).choice
    return [[f"{one_clause(pick)} and {one_clause(pick)}.".capitalize() for _ in range(6)] for _ in range(160)]


@pytest.fixture(scope="module")
def own_text(documents, tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "own.txt"
    file.write_text("\n\n".join("\n".join(paragraphs) for paragraphs in documents), encoding="utf-8")
    return file


def small(name):
    """The demo's recipe with a small model and short windows."""
    recipe = load_recipe(name)
    model = {"layer_pattern": "MT", "hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 64}
    model["initializer_range"] = 0.1
    training = dataclasses.replace(recipe.training, batch_size=4, micro_batch_size=4, eval_windows=4, eval_steps=5)
    stages = [Stage(16, 0.8), Stage(32, 0.2)]
    return dataclasses.replace(recipe, model={**recipe.model, **model}, training=training, stages=stages)


def walked(folder, own_text, teacher, patch):
    """A small tour's result."""
    make_small(patch)
    patch.setenv("MABERT_CACHE", str(folder.parent / "cache"))
    patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    patch.setattr(tour, "EXAMPLES", {"train": 64, "validation": 32})
    patch.setattr(tour, "load_recipe", small)
    patch.setattr(tour, "VOCABULARY", 200)
    return demo(folder, [str(own_text)], steps=10, teacher=str(teacher), tokens=1000)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    return saved_teacher(tmp_path_factory.mktemp("teacher"), sentences="mean", positions=512)


@pytest.fixture(scope="module")
def walk(own_text, teacher, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("demo") / "out"
        # A fixture of a module comes before the one that keeps every test to one thread.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return folder, walked(folder, own_text, teacher, patch)
        finally:
            torch.set_num_threads(threads)


@pytest.mark.slow
def test_everything_is_measured(walk):
    folder, result = walk
    assert result == json.loads((folder / "demo.json").read_text(encoding="utf-8"))
    assert result["pretraining"]["steps"] == 10
    assert result["pretraining"]["stages"] == [{"length": 16, "steps": 8}, {"length": 32, "steps": 2}]
    assert [entry["step"] for entry in result["pretraining"]["history"] if "eval_loss" in entry]
    assert set(result["fine-tuning"]) == {"pretrained", "from scratch"}
    assert all(0 <= run["accuracy"] <= 1 for run in result["fine-tuning"].values())
    assert all(len(mask["guesses"]) == 5 and "[MASK]" in mask["text"] for mask in result["masks"])
    assert (folder / "classifier-pretrained/seed-0/model.safetensors").is_file()
    assert 0 < sum(result["steps"].values()) <= result["seconds"] + 0.1 * len(result["steps"]), "each is rounded"


def test_the_teacher_is_converted_and_both_are_asked(walk):
    folder, result = walk
    outcome = result["conversion"]["outcome"]
    assert outcome["pattern"].count("M") == 2
    assert sum(stage["tokens"] for stage in outcome["stages"].values()) >= result["conversion"]["wanted"] == 1000
    assert (folder / "converted/conversion.html").is_file()
    answers = result["questions"]["answers"]
    assert len({answer["question"] for answer in answers}) == 5
    questions = {answer["question"] for answer in answers}
    for answer in answers:
        assert not questions & {answer["answer"], answer["teacher"]}
        assert (answer["place"] == 1) == (answer["answer"] == answer["teacher"])
        assert -1.001 < answer["cosine"] < 1.001


def test_a_student_that_is_its_teacher_finds_what_it_finds(teacher, documents):
    model = mabert.load(teacher)
    passages = [paragraph for paragraphs in documents[:9] for paragraph in paragraphs]
    found = tour.search(model, model, passages[:5], passages[5:])
    assert found["alike"] == pytest.approx(1, abs=1e-5)
    assert [answer["place"] for answer in found["answers"]] == [1] * 5
    assert tour.search(model, model, passages[:2], passages)["answers"][1]["answer"] == passages[1]


def test_the_questions_suit_the_help_of_this_python():
    questions, passages = tour.asked(tour.help_topics(), [])
    assert questions == tour.QUESTIONS
    assert len(passages) > 100
    for words in ("garbage-collected", "Default parameter values", "items of a tuple", "finding and loading modules"):
        assert any(words in passage for passage in passages), words


def test_a_tour_without_a_teacher_says_so_and_goes_on(own_text, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(tour, "train_wordpiece", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        demo(tmp_path / "out", [str(own_text)], teacher="owner/none")
    told = " ".join(capsys.readouterr().err.split())
    why = "neither a folder here nor to be had from the hub: offline (no network, or HF_HUB_OFFLINE)"
    assert (
        f"no conversion: no model 'owner/none': {why}; the tour goes on with pretraining 2 training a tokenizer" in told
    )


def test_of_a_short_text_nearly_all_is_learnt_from_and_of_next_to_none_nothing(teacher):
    _, tokens = tour.teacher_here(str(teacher), ["the old house"] * 1000, 10**6)
    assert tokens == int(tour.SHARE * 3000)
    assert tour.teacher_here(str(teacher), ["the old house"] * 1000, 2000)[1] == 2000
    with pytest.raises(ValueError, match="the text has 30 tokens, too few for a conversion"):
        tour.teacher_here(str(teacher), ["the old house"] * 10, 2000)


def test_exact_masking_does_not_move_a_token_and_none_does(walk):
    as_run, exact, papers, none = walk[1]["padding"].values()
    assert max(as_run, exact) < 1e-5
    assert none > papers > 1e-4
    assert none > 1e-3


def test_the_masks_are_measured_where_padding_is_run(walk, monkeypatch):
    """Unpadded, a model never comes to its masks."""
    unpadded = Mock(wraps=Unpadding.of)
    monkeypatch.setattr(Unpadding, "of", unpadded)
    tour.moved_by_padding(walk[0] / "converted", "the reader moves under the road")
    assert unpadded.call_count == 2 * len(tour.PADDINGS)


def test_an_interrupted_tour_says_what_to_do(own_text, tmp_path, monkeypatch, capsys):
    """Its trainings would be gone on with by --resume, which the tour has not."""
    stop = Mock(side_effect=KeyboardInterrupt("saved checkpoint-3; go on with --resume"))
    monkeypatch.setattr(tour, "teacher_here", stop)
    assert cli.main(["demo", "--text", str(own_text), "-o", str(tmp_path / "out")]) == 130
    told = capsys.readouterr().err
    assert f"the tour does not go on, it begins anew; remove {tmp_path / 'out'}, where it got to" in told
    assert "--resume" not in told


def test_the_commands_that_the_tour_ends_with_run_on_what_it_leaves(walk, monkeypatch, capsys):
    *activating, embed, predict, fill = tour.next_commands(walk[0])
    assert all(line.startswith(". ") for line in activating)
    answers = []
    for line in (embed, predict, fill):
        echo, text, pipe, program, *arguments = shlex.split(line)
        assert (echo, pipe, program) == ("echo", "|", "mabert")
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{text}\n".encode())))
        assert cli.main(arguments) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert [set(answer) - {"text"} for answer in answers] == [{"vector"}, {"label", "probability"}, {"masks"}]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_readmes_python_runs_on_what_the_tour_leaves(walk, teacher, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mabert.conversion.agreement.BUDGET", 0.0)
    (tmp_path / "demo-out").symlink_to(walk[0])
    project = Path(__file__).parents[2]
    (tmp_path / "docs").symlink_to(project / "docs")
    printed = {}
    for page in ("README.md", "docs/python.md"):
        text = (project / page).read_text(encoding="utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        if page == "README.md" and not is_installed():
            del blocks[0]  # which needs a teacher's weights
        small = ("tokens=30_000", "tokens=3_000"), ("sentence-transformers/all-MiniLM-L6-v2", str(teacher))
        blocks = [reduce(lambda text, pair: text.replace(*pair), small, block) for block in blocks]
        exec("\n".join(blocks), {})
        printed[page] = capsys.readouterr().out
    label, shape, guesses = printed["README.md"].splitlines()[-3:]
    assert set(ast.literal_eval(label)["probability"]) == {"scrambled", "real"}
    assert ast.literal_eval(shape) == (2, 32), "two texts, by the small tour's width"
    assert [len(masks) for masks in ast.literal_eval(guesses)] == [1], "one mask in the one text"
    assert printed["docs/python.md"].count("[0.") == 2, "two texts, the probabilities of each"


def test_the_page_is_self_contained(walk):
    page = (walk[0] / "index.html").read_text(encoding="utf-8")
    drawn = {tag: len(re.findall(rf"<{tag}\b", page)) for tag in ("svg", "section", "table", "script")}
    assert drawn == {"svg": 4, "section": 5, "table": 5, "script": 0}
    assert not fetched(page)


def test_a_folder_in_use_and_too_little_text_are_refused(walk, tmp_path):
    with pytest.raises(ValueError, match="already holds files"):
        demo(walk[0])
    short = tmp_path / "short.txt"
    short.write_text("The one sentence that is here was not enough.", encoding="utf-8")
    with pytest.raises(ValueError, match=r"has 0 plain .* to learn from and 1 others .*; at least 50 of each"):
        demo(tmp_path / "out", [str(short)])
    assert not (tmp_path / "out").exists()


def wrapped(paragraphs, width):
    return textwrap.fill(" ".join(paragraphs), width)


WAYS = {
    "documents": (160, lambda documents: "\n\n".join("\n".join(paragraphs) for paragraphs in documents)),
    "wrapped paragraphs": (160, lambda documents: "\n\n".join(wrapped(paragraphs, 72) for paragraphs in documents)),
    "one document": (960, lambda documents: "\n".join("\n".join(paragraphs) for paragraphs in documents)),
    "one document, wrapped": (None, lambda documents: "\n".join(wrapped(paragraphs, 64) for paragraphs in documents)),
    "one line": (960, lambda documents: " ".join(" ".join(paragraphs) for paragraphs in documents)),
    "two documents": (960, lambda documents: "\n\n".join(WAYS["one document"][1](documents[at::2]) for at in (0, 1))),
}


@pytest.mark.parametrize("way", WAYS)
def test_nobody_is_judged_by_a_sentence_it_learnt(documents, way, tmp_path):
    pieces, write = WAYS[way]
    (tmp_path / "own.txt").write_text(write(documents), encoding="utf-8")
    learnt, held_out = hold_out(read_documents([str(tmp_path / "own.txt")]))
    assert pieces in (None, len(learnt) + len(held_out))
    assert set(sentences(learnt + held_out)) == {sentence for paragraphs in documents for sentence in paragraphs}
    examples = make_examples(learnt, held_out)
    real = {row["text_a"] for row in examples["validation"] if row["label"]}
    assert len(real) >= 25
    assert not real & set(sentences(learnt))


def test_without_a_name_the_next_free_folder_is_taken(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    taken = []
    monkeypatch.setattr(tour, "read_documents", lambda text: [])
    monkeypatch.setattr(tour, "make_examples", lambda learnt, held_out: {})
    monkeypatch.setattr(tour, "teacher_here", lambda *given: 1 / 0)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            cli.main(["demo"])
        assert "ten to twenty minutes" in capsys.readouterr().err, "the reader knows before the wait"
        taken.append(sorted(path.name for path in tmp_path.iterdir()))
    assert taken[-1] == ["demo-out", "demo-out-2", "demo-out-3"]
    (tmp_path / "demo-out-4").write_text("a file", encoding="utf-8")
    (tmp_path / "demo-out-5").mkdir()
    assert free_folder() == Path("demo-out-5")
    assert cli.main(["demo", "-o", "demo-out-4"]) == 2
