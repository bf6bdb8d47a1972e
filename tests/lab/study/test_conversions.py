"""Arms that are conversions of one encoder: their cells, what names them, and runs that are killed."""

import json
import re
import signal
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerBase

from mabert import MaBertModel
from mabert.train.folder import RunFolder
from mabert_lab.cli import main
from mabert_lab.report.found import find
from mabert_lab.report.verdicts import judged
from mabert_lab.report.whole import report
from mabert_lab.study.cells import CellFiles
from mabert_lab.study.conversions import BLOCK
from mabert_lab.study.grid import CONVERT_SCALES, CONVERTED, load_scale, load_study
from mabert_lab.study.plan import Planner
from mabert_lab.study.results import by_conversion, gathered, results_file, write_results
from mabert_lab.study.runner import Runner, Status
from mabert_lab.study.work import do_conversion
from tests.conversion.helpers import saved_teacher
from tests.lab.study.helpers import FINETUNE, changed, cola, ended, planned, serve_until, study
from tests.train.helpers import corpus, of_family

ARMS = {"T": {"convert": {"pattern": "T"}}, "MTM": {"convert": {"pattern": "MTM", "direction": "forward"}}}
RECIPE = {"tokens": 1000, "length": 30, "precision": "fp32", "batch_tokens": 160}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("MABERT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="session")
def encoders(tmp_path_factory):
    """Random encoders of three layers and of six, as folders."""
    place = tmp_path_factory.mktemp("encoders")
    return {depth: saved_teacher(place / str(depth), depth=depth) for depth in (3, 6)}


@pytest.fixture
def fields(tmp_path, encoders):
    """A scale by which the encoder of three layers is converted twice an arm; a text and a task are there."""
    cola(tmp_path)
    text = corpus(tmp_path / "text.txt", 80)
    convert = {"teacher": str(encoders[3]), "texts": [str(text)], "seeds": [0, 1], "recipe": RECIPE}
    return {"convert": convert, "finetune": FINETUNE, "tasks": {"cola": {}}, "seeds": [0, 1]}


def of_kind(plan, kind):
    return [cell for cell in plan.cells.values() if cell.kind == kind]


def test_an_arm_has_a_cell_for_each_conversion_and_the_encoder_itself_one(tmp_path, fields):
    plan = planned(tmp_path, tmp_path / "root", ARMS, fields)
    titles = ["convert T", "convert MTM, conversion 0", "convert MTM, conversion 1"]
    assert [cell.title for cell in of_kind(plan, "conversion")] == titles
    assert [row.arm for row in plan.rows] == ["T", "MTM", "MTM"]
    tuned = {cell.title: cell.seeds for cell in of_kind(plan, "finetuning")}
    assert tuned == {
        "CoLA, T": (0, 1, BLOCK, BLOCK + 1),
        "CoLA, MTM, conversion 0": (0, 1),
        "CoLA, MTM, conversion 1": (BLOCK, BLOCK + 1),
    }, "no two conversions share a seed, and the encoder has those of all"


def test_arms_that_are_the_same_conversion_share_its_cells(tmp_path, fields):
    arms = {
        "M": {"convert": {"pattern": "M"}},
        "spelt out": {"convert": {"pattern": "MMM", "direction": "bidirectional"}},
        "tuned otherwise": {"convert": {"pattern": "M"}, "finetune": {"pooling": "cls"}},
    }
    plan = planned(tmp_path, tmp_path / "root", arms, fields)
    assert len(of_kind(plan, "conversion")) == 2
    assert len(of_kind(plan, "finetuning")) == 4


def test_more_conversions_and_more_seeds_leave_what_is_there_as_it_is(tmp_path, fields):
    few = planned(tmp_path, tmp_path / "root", ARMS, fields)
    fields = changed(changed(fields, ("convert", "seeds"), [0, 1, 2]), ("seeds",), [0, 1, 2])
    more = planned(tmp_path, tmp_path / "root", ARMS, fields)
    assert set(few.cells) < set(more.cells)
    assert all(set(cell.seeds) <= set(more.cells[name].seeds) for name, cell in few.cells.items())


@pytest.mark.parametrize("depth", [3, 6])
def test_parameters_are_known_before_auto_has_chosen_its_layers(tmp_path, fields, encoders, depth):
    arms = {"auto": {"convert": {"pattern": "auto", "direction": "forward"}}, "MTM": ARMS["MTM"]}
    plan = planned(tmp_path, tmp_path / "root", arms, changed(fields, ("convert", "teacher"), str(encoders[depth])))
    assert len({cell.parameters for cell in plan.cells.values()}) == 1, "both keep the attention of a third"


@pytest.mark.parametrize(
    ("path", "value", "kinds"),
    [
        (("convert", "recipe", "tokens"), 1200, {"MTM"}),
        (("convert", "recipe", "expand"), 1, {"MTM"}),
        (("convert", "recipe", "precision"), "bf16", {"MTM"}),
        (("convert", "recipe", "length"), 20, {"T", "MTM"}),
        (("convert", "seeds"), [2, 3], {"MTM"}),
        (("finetune", "epochs"), 2, set()),
        (("convert", "recipe", "pattern"), "M", set()),
    ],
)
def test_a_conversions_name_changes_with_its_outcome_alone(tmp_path, fields, path, value, kinds):
    def names(own):
        plan = planned(tmp_path, tmp_path / "root", ARMS, own)
        return {arm: [row.pretraining for row in plan.rows if row.arm == arm] for arm in ARMS}

    before, after = names(fields), names(changed(fields, path, value))
    assert {arm for arm in ARMS if before[arm] != after[arm]} == kinds


def test_text_and_encoder_name_a_conversion_by_what_they_hold_and_not_by_where_they_lie(tmp_path, fields, encoders):
    def names(**convert):
        own = {**fields, "convert": {**fields["convert"], **convert}}
        return [cell.name for cell in of_kind(planned(tmp_path, tmp_path / "root", ARMS, own), "conversion")]

    first = names()
    moved = Path(fields["convert"]["texts"][0]).rename(tmp_path / "moved.txt")
    (tmp_path / "linked").symlink_to(encoders[3])
    assert names(texts=[str(moved)], teacher=str(tmp_path / "linked")) == first
    other = names(texts=[str(corpus(tmp_path / "other.txt", 81))])
    assert (other[0], set(other) & set(first)) == (first[0], {first[0]}), "the encoder itself reads no text"
    assert not set(names(texts=[str(moved)], teacher=str(saved_teacher(tmp_path / "b", seed=1)))) & set(first)


@given(st.dictionaries(st.integers(0, 5), st.lists(st.floats(0, 1), min_size=3, max_size=3), max_size=5))
def test_a_conversion_scores_the_mean_of_its_finetunings_once_all_are_there(scores):
    given = {str(BLOCK * which + seed): each for which, of in scores.items() for seed, each in enumerate(of)}
    found = by_conversion(given, [0, 1, 2])
    assert found == {str(which): pytest.approx(sum(of) / 3) for which, of in scores.items()}
    assert by_conversion(given, [0, 1, 2, 3]) == {}


@pytest.mark.parametrize("name", CONVERTED.values())
def test_the_packaged_studies_fit_an_encoder_of_six_layers(tmp_path, fields, encoders, name):
    packaged = load_study(name)
    assert packaged.label is None, "the paper's table is of models from scratch"
    for size in CONVERT_SCALES:
        given = [f"convert.teacher={encoders[6]}", f"convert.texts={fields['convert']['texts']}"]
        scale = load_scale(size, [*given, "convert.recipe.tokens=1000", "finetune.max_length=32"])
        scale.tasks = {"cola": scale.tasks["cola"]}
        plan = Planner(tmp_path / "root", scale, str(tmp_path / "glue")).plan(name, size, packaged)
        count = len(scale.convert.seeds)
        made = {"convert-pattern": 11 * count + 1}.get(name, count)
        assert len(of_kind(plan, "conversion")) == made, "components and poolings share theirs"
        assert len(of_kind(plan, "finetuning")) == made * (1 if made > count else len(packaged.arms))


def test_the_first_rows_of_a_task_are_a_sample_of_it(tmp_path, fields):
    fields = changed(fields, ("tasks", "cola"), {"rows": 10})
    task = planned(tmp_path, tmp_path / "root", ARMS, fields).tasks["cola"]
    assert (len(task.splits["train"]), len(task.splits["validation"])) == (10, 16)
    assert task.columns(1)[0]["sample"].startswith("10 train rows")
    whole = planned(tmp_path, tmp_path / "root", ARMS, changed(fields, ("tasks", "cola"), {})).tasks["cola"]
    assert whole.digest() != task.digest()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("convert", "recipe", "pattern"), "MTMT", "the conversion of as asked: pattern is 'MTMT', 4 layers; the"),
        (("convert", "recipe"), {"tokens": -1}, "convert.recipe: tokens is -1"),
        (("convert", "recipe"), {"seed": 1}, "convert.recipe.seed is 1; the seeds of conversion are"),
        (("convert", "teacher"), None, "the study converts an encoder; give --from MODEL, a folder or hub name"),
        (("convert", "teacher"), "./not-there", "no model folder not-there"),
        (("convert", "texts"), [], "the study names no text; give --text"),
        (("convert", "seeds"), [], r"convert.seeds is \[\]"),
        (("seeds",), [0, 100], r"seeds are \[0, 100\]; where arms are conversions, they must be below 100"),
        (("convert", "teacher"), "albert", "holds a model of type 'albert'; those of types"),
    ],
)
def test_what_is_no_conversion_is_told_in_a_line(tmp_path, fields, path, value, message):
    value = str(of_family(value, tmp_path / value)) if value == "albert" else value
    with pytest.raises((ValueError, FileNotFoundError), match=message) as told:
        planned(tmp_path, tmp_path / "root", {"as asked": {"convert": {}}}, changed(fields, path, value))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        ({"a": {"convert": {}}, "b": {}}, "arms.b: the arms of a study have all convert and no pretrain, or none conv"),
        ({"a": {"convert": {}, "pretrain": {"training.seed": 1}}}, "arms.a: the arms of a study have all convert"),
        ({"a": {"convert": {"seed": 1}}}, "arms.a.convert.seed is 1"),
        ({"a": {"convert": {"patern": "M"}}}, "arms.a.convert: unknown field 'patern'; did you mean 'pattern'"),
    ],
)
def test_arms_are_all_conversions_or_none(arms, message):
    with pytest.raises(ValueError, match=message):
        study(arms)
    with pytest.raises(ValueError, match="budgets are shares of a pretraining's steps"):
        study(ARMS, budgets=["10%"])


def test_the_dry_run_counts_conversions_refuses_a_text_that_is_too_short_and_runs_none(
    capsys, tmp_path, fields, encoders
):
    given = ["--text", *fields["convert"]["texts"], "--data", str(tmp_path / "glue"), "-o", str(tmp_path / "root")]
    words = ["pattern", "--from", str(encoders[6]), "--scale", "convert-tiny", *given, "finetune.max_length=40"]
    assert main(["study", *words, "--conversions", "2", "convert.recipe.tokens=1000", "--dry-run"]) == 0
    assert "23 conversions and 23 fine-tunings to run" in " ".join(capsys.readouterr().out.split())
    assert main(["study", *words, "convert.recipe.tokens=50000", "--dry-run"]) == 2
    told = capsys.readouterr().err.strip()
    assert re.search(r"the conversion of M: the text has [\d,]+ tokens to learn from, 50,000 are asked for", told)
    assert len(told.splitlines()) == 1
    assert not (tmp_path / "root/cells").exists()


def test_an_arm_tells_of_the_conversion_that_failed(tmp_path, fields):
    plan = planned(tmp_path, tmp_path / "root", ARMS, fields)
    states = {cell.name: Status("waiting") for cell in plan.cells.values()}
    states[of_kind(plan, "conversion")[2].name] = Status("failed", "ValueError: nothing")
    kept, made = gathered(plan, tmp_path / "root", states)["rows"]
    assert (kept["pretraining"]["status"], made["pretraining"]["status"]) == ("missing", "failed")
    assert made["pretraining"]["reason"] == "ValueError: nothing"
    assert [each["status"] for each in made["pretraining"]["conversions"]] == ["missing", "failed"]


@pytest.mark.parametrize(("what", "arm"), [("text", "MTM"), ("teacher", "MTM"), ("teacher", "T")])
def test_a_conversion_is_not_made_from_what_changed_since_it_was_planned(tmp_path, fields, what, arm):
    teacher = saved_teacher(tmp_path / "teacher", depth=3)
    plan = planned(tmp_path, tmp_path / "root", {arm: ARMS[arm]}, changed(fields, ("convert", "teacher"), str(teacher)))
    cell = of_kind(plan, "conversion")[0]
    if what == "text":
        text = Path(fields["convert"]["texts"][0])
        text.write_text(text.read_text() + "the river\n")
    else:
        weights = load_file(teacher / "model.safetensors")
        save_file({name: weight + 1e-3 for name, weight in weights.items()}, teacher / "model.safetensors")
    files = CellFiles(tmp_path / "root", cell.name)
    with pytest.raises(ValueError, match=f"the {what} changed since this start of the study"):
        do_conversion(files, {**cell.order, "content": cell.content})
    assert not files.run.exists()


@pytest.mark.parametrize("last", ["student.save_pretrained", "tokenizer.save_pretrained", "write_result"])
def test_the_encoders_own_arm_goes_on_after_a_stop(tmp_path, fields, monkeypatch, last):
    plan = planned(tmp_path, tmp_path / "root", {"T": ARMS["T"]}, fields)
    (cell,) = of_kind(plan, "conversion")
    files, order = CellFiles(tmp_path / "root", cell.name), {**cell.order, "content": cell.content}
    holder = {"student": MaBertModel, "tokenizer": PreTrainedTokenizerBase}.get(last.partition(".")[0], RunFolder)

    with monkeypatch.context() as stop:
        stop.setattr(holder, last.rpartition(".")[2], Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            do_conversion(files, order)
    assert files.begun
    assert not files.finished(cell.seeds)
    do_conversion(files, order)
    assert files.finished(cell.seeds)
    assert MaBertModel.from_pretrained(files.run).config.layer_pattern == "TTT"


@pytest.mark.skipif(sys.platform != "linux", reason="processes are begun and killed as Linux does")
@pytest.mark.slow
def test_a_conversion_killed_at_any_point_ends_with_the_same_weights_and_the_study_goes_on(tmp_path, fields):
    root, whole = tmp_path / "root", tmp_path / "whole"
    plan = planned(tmp_path, root, ARMS, changed(fields, ("convert", "seeds"), [1]))
    cell = of_kind(plan, "conversion")[1]
    for place in (root, whole):
        (place / "cells").mkdir(parents=True)
    for last in ("align/checkpoint-2", "end-to-end/checkpoint-1"):
        (root / "last").write_text(last)
        assert ended(cell, root, serve_until) == -signal.SIGKILL
        assert (CellFiles(root, cell.name).run / "unfinished" / last).is_dir()
        assert not CellFiles(root, cell.name).finished(cell.seeds)
    (root / "last").unlink()
    assert (ended(cell, root, serve_until), ended(cell, whole, serve_until)) == (0, 0)
    ours, theirs = (CellFiles(place, cell.name).run / "model.safetensors" for place in (root, whole))
    assert ours.read_bytes() == theirs.read_bytes()

    runner = Runner(plan, root)
    assert {status.state for status in runner.run().values()} == {"done"}
    write_results(plan, root, runner.states)
    result = json.loads(results_file(plan, root).read_text())
    for row in result["rows"]:
        assert row["pretraining"]["status"] == "done"
        assert list(row["scores"]["cola"]["accuracy"]) == ["1"], "by conversion"
    (kept,), (made,) = (row["pretraining"]["conversions"] for row in result["rows"])
    assert (kept["pattern"], kept["cosine"], made["pattern"]) == ("TTT", None, "MTM")
    assert -1 <= made["floor"] <= 1
    found = find([root])
    page = report(found, judged(found)).text
    assert "2 of 2 models are converted: each arm under 1 seed from" in page
    assert "Mean ± sample standard deviation over conversions" in page
