"""What a cell's name depends on, which cells are shared, and the speed of a pretraining."""

import json
from dataclasses import replace
from unittest.mock import Mock

import pytest

from mabert_lab.study import plan as plans
from mabert_lab.study.cells import Cell, CellFiles
from mabert_lab.study.plan import at_another_precision, emulated_precision
from mabert_lab.study.results import PEAKS, speed_of
from tests.lab.study.helpers import changed, planned, scale, world
from tests.train.helpers import tokenizer

ARMS = {"map": {"finetune": {"pooling": "map"}}, "cls": {"finetune": {"pooling": "cls"}}}


def names(plan, kind):
    return [name for name, cell in plan.cells.items() if cell.kind == kind]


def test_arms_that_differ_afterwards_share_their_pretraining(tmp_path):
    plan = planned(tmp_path, tmp_path / "root", ARMS)
    assert len(names(plan, "pretraining")) == 1
    assert len(names(plan, "finetuning")) == 2
    assert {row.pretraining for row in plan.rows} == set(names(plan, "pretraining"))
    order = list(plan.cells)
    assert all(cell.needs is None or order.index(cell.needs) < order.index(cell.name) for cell in plan.cells.values())


def test_a_budget_is_a_pretraining_of_its_own_and_studies_share_what_is_the_same(tmp_path):
    fields = world(tmp_path)
    both = planned(tmp_path, tmp_path / "root", ARMS, fields, budgets=("50%", "100%"))
    assert [cell.steps for cell in both.cells.values() if cell.kind == "pretraining"] == [6, 12]
    other = planned(tmp_path, tmp_path / "root", {"named otherwise": ARMS["cls"]}, fields)
    assert set(other.cells) <= set(both.cells)


TRAINING = ("pretrain", "training")


@pytest.mark.parametrize(
    ("path", "value", "kinds"),
    [
        ((*TRAINING, "steps"), 13, {"pretraining", "finetuning"}),
        ((*TRAINING, "seed"), 1, {"pretraining", "finetuning"}),
        ((*TRAINING, "learning_rate"), 2e-2, {"pretraining", "finetuning"}),
        ((*TRAINING, "precision"), "bf16", {"pretraining", "finetuning"}),
        (("pretrain", "model", "hidden_size"), 8, {"pretraining", "finetuning"}),
        (("pretrain", "masking"), {"probability": 0.2}, {"pretraining", "finetuning"}),
        (("finetune", "learning_rates"), [1e-2], {"finetuning"}),
        (("finetune", "epochs"), 2, {"finetuning"}),
        (("tasks",), {"cola": {"finetune": {"dropout": 0.5}}}, {"finetuning"}),
        ((*TRAINING, "eval_windows"), 3, {"pretraining", "finetuning"}),
        (("pretrain", "model", "ssm_direction"), "bidirectional", {"pretraining", "finetuning"}),
        (("pretrain", "model", "ssm_direction"), "forward", set()),
        (("finetune", "pooling"), "map", set()),
        (("finetune", "pooling"), "mean", {"finetuning"}),
        (("finetune", "padding_safe_masking"), "exact", set()),
        ((*TRAINING, "micro_batch_size"), 8, set()),
        ((*TRAINING, "save_steps"), 6, set()),
        ((*TRAINING, "report_to"), ["none"], set()),
        (("finetune", "report_to"), ["tensorboard"], set()),
        (("pretrain", "data", "cache"), "elsewhere", set()),
        (("seeds",), [0, 1, 2], set()),
    ],
)
def test_a_name_changes_with_what_determines_the_outcome_and_with_nothing_else(tmp_path, path, value, kinds):
    fields = world(tmp_path)
    before = planned(tmp_path, tmp_path / "root", fields=fields)
    after = planned(tmp_path, tmp_path / "root", fields=changed(fields, path, value))
    for kind in ("pretraining", "finetuning"):
        assert (names(before, kind) != names(after, kind)) == (kind in kinds), kind


def test_the_seed_that_chooses_a_learning_rate_is_part_of_the_name(tmp_path):
    fields = changed(world(tmp_path), ("finetune", "learning_rates"), [1e-2, 2e-2])
    one, other = (planned(tmp_path, tmp_path / "root", fields=fields, seeds=seeds) for seeds in ([0, 1], [1, 0]))
    assert names(one, "pretraining") == names(other, "pretraining")
    assert names(one, "finetuning") != names(other, "finetuning")


def test_a_name_is_the_same_wherever_files_lie_and_another_for_another_content(tmp_path):
    first = planned(tmp_path / "a", tmp_path / "a/root")
    second = planned(tmp_path / "b", tmp_path / "b/root")
    assert list(first.cells) == list(second.cells)
    sentence = (tmp_path / "b/glue/CoLA/train.tsv").read_text()
    (tmp_path / "b/glue/CoLA/train.tsv").write_text(sentence.replace("bird", "wind", 1))
    fields = changed(world(tmp_path / "c"), ("pretrain", "data", "sources"), [str(tmp_path / "b/text.txt")])
    tasks = planned(tmp_path / "b", tmp_path / "b/root", fields=fields)
    assert names(tasks, "pretraining") == names(second, "pretraining")
    assert names(tasks, "finetuning") != names(second, "finetuning")
    longer = planned(tmp_path / "d", tmp_path / "d/root", fields=world(tmp_path / "d", documents=61))
    assert names(longer, "pretraining") != names(second, "pretraining")


def test_a_family_keeps_the_vocabulary_that_was_found_first(tmp_path, monkeypatch):
    fields = world(tmp_path)
    del fields["tokenizers"]["mabert"]
    find = Mock(return_value=(tokenizer(), "trained on data.sources"))
    monkeypatch.setattr(plans, "find_tokenizer", find)
    first = planned(tmp_path, tmp_path / "root", fields=fields)
    origin = next((tmp_path / "root/tokenizers").glob("mabert-*/origin.json"))
    assert json.loads(origin.read_text())["tokenizer"] == "trained on data.sources"
    again = planned(tmp_path, tmp_path / "root", fields=fields)
    assert list(again.cells) == list(first.cells)
    assert [given.args[1] for given in find.call_args_list] == [None], "it is looked for once"


def test_another_vocabulary_at_the_same_place_is_another_cell(tmp_path):
    fields = world(tmp_path)
    first = planned(tmp_path, tmp_path / "root", fields=fields)
    file = tmp_path / "vocabulary/tokenizer.json"
    vocabulary = json.loads(file.read_text())
    ids = vocabulary["model"]["vocab"]
    *_, one, other = ids
    ids[one], ids[other] = ids[other], ids[one]
    file.write_text(json.dumps(vocabulary))
    assert not set(planned(tmp_path, tmp_path / "root", fields=fields).cells) & set(first.cells)


PACK = {"packing": "pack"}


def of_bert(fields):
    """The same world for a model that has no Mamba layers."""
    copy = json.loads(json.dumps(fields))
    del copy["pretrain"]["model"]["ssm_state_size"]
    copy["pretrain"]["architecture"] = "bert"
    return copy


@pytest.mark.parametrize(
    ("model", "finetune", "message"),
    [
        ("bert", {"pooling": "cls"}, "fine-tuning of map on CoLA: pooling is 'cls'; that is MaBERT's, and this is a"),
        ("bert", {"padding_safe_masking": "none"}, "padding_safe_masking is 'none'; that is MaBERT's"),
        ("bert", PACK, "packing is 'pack', the model bert: only MaBERT takes packed rows here"),
        ("mabert", {"pooling": "max"}, "finetune.pooling is 'max'; it must be one of"),
        ("mabert", PACK | {"padding_safe_masking": "none"}, "packing is 'pack', padding_safe_masking 'none'"),
        ("mabert", PACK | {"pooling": "attention"}, "packing is 'pack', pooling 'attention'"),
        ("mabert", {"max_length": 25}, "max_length is 25, the model has positions for 24 tokens"),
    ],
)
def test_what_the_model_will_not_take_in_fine_tuning_is_told_before_it_is_pretrained(
    tmp_path, model, finetune, message
):
    fields = world(tmp_path)
    fields = of_bert(fields) if model == "bert" else fields
    assert planned(tmp_path, tmp_path / "root", fields=fields).cells
    fields["finetune"] = {**fields["finetune"], **finetune}
    with pytest.raises(ValueError, match=message) as told:
        planned(tmp_path, tmp_path / "root", fields=fields)
    assert "\n" not in str(told.value)


def test_budgets_that_differ_by_less_than_a_hundredth_have_titles_of_their_own(tmp_path):
    plan = planned(tmp_path, tmp_path / "root", budgets=("12%", "12.5%"))
    titles = [cell.title for cell in plan.cells.values() if cell.kind == "finetuning"]
    assert titles == ["CoLA, map, 12%", "CoLA, map, 12.5%"]


@pytest.mark.parametrize("kind", ["pretraining", "finetuning"])
def test_a_cell_that_another_machine_left_at_its_own_precision_is_named(tmp_path, monkeypatch, kind):
    fields, root = world(tmp_path), tmp_path / "root"
    place = (*TRAINING, "precision") if kind == "pretraining" else ("finetune", "precision")

    def plan(asked, machines="fp32"):
        monkeypatch.setattr(plans, "resolve_precision", lambda given: machines if given == "auto" else given)
        return planned(tmp_path, root, fields=changed(fields, place, asked))

    there = plan("auto", "bf16")
    (root / "cells").mkdir()
    assert at_another_precision(plan("auto"), root) is None
    cell = next(cell for cell in there.cells.values() if cell.kind == kind)
    CellFiles(root, cell.name).order.write_text("{}")
    told = at_another_precision(plan("auto"), root)
    assert told.startswith(f"precision auto is fp32 on this machine, and {root} has {cell.title!r} at bf16")
    field = {"pretraining": "pretrain.training.precision", "finetuning": "finetune.precision"}[kind]
    assert told.endswith(f"; to go on with it: {field}=bf16"), "the other is set already"
    assert cell.name in plan("bf16").cells
    assert at_another_precision(plan("fp32"), root) is None, "that was asked for"
    assert at_another_precision(there, root) is None


class ReadWhole(list):
    """A data set that gives its columns at once and its first row; row by row, full GLUE would take minutes."""

    def __iter__(self):
        yield super().__getitem__(0)
        raise AssertionError("read row by row")

    def __getitem__(self, name):
        return OfColumn(row[name] for row in super().__getitem__(slice(None)))


class OfColumn(list):
    def __getitem__(self, key):
        assert isinstance(key, slice), "read value by value"
        return super().__getitem__(key)


def test_the_columns_of_large_tasks_are_read_at_once(tmp_path):
    fields = world(tmp_path)
    task = scale(fields).tasks["cola"].load(str(tmp_path / "glue"))
    whole = replace(task, splits={name: ReadWhole(list(rows)) for name, rows in task.splits.items()})
    assert whole.digest() == task.digest()
    assert whole.constants == task.constants


@pytest.mark.parametrize("here", ["float32", "bfloat16"])
def test_bf16_on_a_machine_without_instructions_for_it_is_named_with_its_fields(tmp_path, monkeypatch, here):
    monkeypatch.setattr(plans, "fast_dtype", lambda: here)
    fields = changed(world(tmp_path), (*TRAINING, "precision"), "bf16")
    root = tmp_path / "root"

    def complaint(fields):
        return emulated_precision(planned(tmp_path, root, fields=fields), root)

    told, both = complaint(fields), complaint(changed(fields, ("finetune", "precision"), "bf16"))
    assert complaint(world(tmp_path / "other")) is None
    if here == "bfloat16":
        assert (told, both) == (None, None)
    else:
        assert told.startswith("pretrain.training.precision: bf16, for which this machine has no instructions")
        assert both.startswith("pretrain.training.precision and finetune.precision: bf16, ")
        plan = planned(tmp_path, root, fields=fields)
        name = next(name for name, cell in plan.cells.items() if cell.kind == "pretraining")
        CellFiles(root, name).run.mkdir(parents=True)
        (CellFiles(root, name).run / "result.json").write_text("{}")
        assert emulated_precision(plan, root) is None, "what is finished is not computed again"


@pytest.mark.parametrize(
    ("pretrain", "message"),
    [
        ({"data": {"sources": []}}, "the study names no text; give --text"),
        ({"model": {}, "start_from": "runs/mini"}, "start_from is 'runs/mini'; cells begin with random weights"),
    ],
)
def test_a_pretraining_needs_text_and_begins_with_random_weights(tmp_path, pretrain, message):
    fields = world(tmp_path)
    fields["pretrain"] |= pretrain
    with pytest.raises(ValueError, match=message):
        planned(tmp_path, tmp_path / "root", fields=fields)


def test_the_steps_of_every_seed_count(tmp_path):
    fields = world(tmp_path)
    pretraining, finetuning = planned(tmp_path, tmp_path / "root", fields=fields).cells.values()
    assert pretraining.steps == 12
    assert finetuning.steps == 2 * 3, "two seeds, one epoch of 48 examples in batches of 16"
    assert pretraining.parameters > 1000
    by_tokens = changed(fields, ("finetune", "batch_tokens"), 100)
    assert [*planned(tmp_path, tmp_path / "root", fields=by_tokens).cells.values()][1].steps is None, "not known yet"


MODEL = {"vocab_size": 100, "hidden_size": 8}


def result(seconds, device):
    return {"outcome": {"tokens": 6000}, "seconds": seconds, "environment": {"device": device}}


@pytest.mark.parametrize(("more", "table"), [({}, 800), ({"embedding_size": 2}, 200), ({"embedding_size": None}, 800)])
def test_the_share_counts_six_operations_a_token_and_parameter_outside_the_table(more, table):
    cell = Cell({"kind": "pretraining", "recipe": {"model": MODEL | more}}, {}, "a", parameters=5800)
    found = speed_of(cell, result(3.0, "NVIDIA H200"))
    assert found["tokens_per_second"] == 2000
    assert found["share_of_peak"] == pytest.approx(2000 * 6 * (5800 - table) / PEAKS["NVIDIA H200"])


def test_a_device_of_unknown_peak_has_no_share_and_a_run_without_time_no_speed():
    cell = Cell({"kind": "pretraining", "recipe": {"model": MODEL}}, {}, "a", parameters=5800)
    for slower in ("cpu", "NVIDIA H100 PCIe", "NVIDIA H200 NVL"):
        assert speed_of(cell, result(3.0, slower)) == {"tokens_per_second": 2000, "share_of_peak": None}
    assert speed_of(cell, result(0.0, "NVIDIA H100 80GB HBM3")) == {"tokens_per_second": None, "share_of_peak": None}
