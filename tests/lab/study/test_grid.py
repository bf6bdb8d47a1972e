"""Studies and scales as data: those that come with the package, and what is refused."""

import pytest

from mabert.schema.check import check
from mabert.train.recipe import load_recipe, recipe_folders
from mabert_lab import cli
from mabert_lab.cli.study import GRIDS
from mabert_lab.report import paper
from mabert_lab.report.studies import QUESTIONS
from mabert_lab.study import grid
from mabert_lab.study.grid import SCALES, STUDIES, Arm, Scale, Study, check_reach, load_scale, load_study
from mabert_lab.study.tasks import IN_PAPER, ROWS, TITLES, StudyTask
from tests.lab.study.helpers import pairs, scale, study, world


def test_the_arms_differ_in_what_their_rows_say():
    components = {name: arm for name, arm in load_study("components").arms.items() if arm.paper}
    fields = {arm.paper: (arm.finetune["padding_safe_masking"], arm.finetune["pooling"]) for arm in components.values()}
    masks = {"full": ("pre+post", "map"), "psm_only": ("pre+post", "cls"), "map_only": ("none", "map")}
    assert fields == {**masks, "none": ("none", "cls")}
    poolings = {arm.paper: arm.finetune["pooling"] for arm in load_study("pooling").arms.values()}
    assert poolings == {"map": "map", "attn": "attention", "cls": "cls", "masked_mean": "mean"}
    for name in ("budget", "baselines"):
        for arm in load_study(name).arms.values():
            assert arm.pretrain.get("architecture", "mabert") == (arm.paper or "modernbert")
    for name, arm in load_study("components").arms.items():
        both = arm.pretrain.get("model.ssm_direction") == "bidirectional"
        assert both == name.endswith(", both directions")


def test_the_pattern_study_is_at_a_tenth_of_the_steps_and_the_budget_study_at_the_papers_four():
    assert load_study("pattern").budgets == [0.1]
    assert load_study("budget").budgets == [0.1, 0.25, 0.5, 1.0]
    for title, arm in load_study("pattern").arms.items():
        assert arm.pretrain == {"model.layer_pattern": title}


def test_the_papers_scale_is_its_recipe_and_all_eight_columns():
    full = load_scale("paper", ["pretrain.data.sources=[text.txt]"])
    assert full.pretraining(Arm(), 1.0) == load_recipe("paper", ["data.sources=[text.txt]"])
    tenth = full.pretraining(Arm(), 0.1)
    assert (tenth.training.steps, tenth.training.warmup_steps) == (100_000, 2_400)
    columns = {"mnli_m", "mnli_mm"} | (set(full.tasks) - {"mnli"})
    assert columns == set(IN_PAPER)
    assert len(full.seeds) == 5


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("size", SCALES)
def test_every_arm_of_every_study_makes_recipes_at_every_scale(name, size):
    packaged = load_scale(size)
    for arm in load_study(name).arms.values():
        assert packaged.pretraining(arm, 1.0).training.steps > 0
        for task in packaged.tasks.values():
            assert packaged.finetuning(arm, task).batch_size == 32


def test_the_study_of_one_gpu_trains_both_models_by_one_recipe_and_as_many_tokens():
    size, both = (
        load(recipe_folders()[1] / kind / "small-gpu.yaml")
        for kind, load in (("scales", load_scale), ("studies", load_study))
    )
    recipes = [size.pretraining(arm, 1.0) for arm in both.arms.values()]
    assert [recipe.architecture for recipe in recipes] == ["mabert", "bert"]
    assert recipes[0].training == recipes[1].training
    assert recipes[0].stages == recipes[1].stages
    assert (len(size.tasks), len(size.seeds)) == (6, 5)


def test_arm_beats_task_beats_scale(tmp_path):
    small = scale(world(tmp_path), tasks={"cola": {"finetune": {"epochs": 2, "dropout": 0.2}}})
    arm = check(Arm, {"finetune": {"dropout": 0.3}, "pretrain": {"model.hidden_size": 8, "training.seed": 5}})
    recipe = small.finetuning(arm, small.tasks["cola"])
    assert (recipe.learning_rates, recipe.epochs, recipe.dropout) == ([2e-2], 2, 0.3)
    pretraining = small.pretraining(arm, 1.0)
    assert (pretraining.model["hidden_size"], pretraining.training.seed) == (8, 5)
    assert pretraining.model["layer_pattern"] == "MT"


def test_an_arm_may_be_nested_and_keeps_what_it_does_not_name(tmp_path):
    small = scale(world(tmp_path))
    nested = check(Arm, {"pretrain": {"training": {"learning_rate": 0.5}, "masking": {"probability": 0.2}}})
    dotted = check(Arm, {"pretrain": {"training.learning_rate": 0.5, "masking.probability": 0.2}})
    assert small.pretraining(nested, 1.0) == small.pretraining(dotted, 1.0)
    assert small.pretraining(nested, 1.0).training.steps == 12


def test_a_field_of_a_task_that_has_none_yet_can_be_set():
    assert load_scale("paper", ["tasks.rte.finetune.epochs=1"]).tasks["rte"].finetune == {"epochs": 1}


def test_a_file_of_ones_own_is_never_called_as_one_of_the_packages(tmp_path):
    assert grid.label_of("pattern") == "pattern"
    names = set()
    for reference in ("one", "other"):
        for words in ("title: A\n", "title: B\nnote: of some use\nlearnt_below: 6\n"):
            (tmp_path / "pattern.yaml").write_text(f"{words}reference: {reference}\n")
            names.add(grid.label_of(tmp_path / "pattern.yaml"))
    assert len(names | {"pattern"}) == 3, "what changes no run changes no name"
    assert all(name.startswith("pattern-") for name in names)


def test_what_all_arms_share_stands_once_and_gives_way_to_an_arms_own():
    arms = {"one": {}, "other": {"finetune": {"packing": "pack"}}}
    made = check(Study, {"title": "A", "arms": arms, "reference": "one", "finetune": {"packing": "none"}})
    assert [arm.finetune["packing"] for arm in made.arms.values()] == ["none", "pack"]


@pytest.mark.parametrize("study", ["components", "pooling"])
def test_what_padding_could_do_is_measured_on_padded_batches(study):
    for arm in load_study(study).arms.values():
        recipe = load_scale("tiny").finetuning(arm, load_scale("tiny").tasks["cola"])
        assert (recipe.packing, recipe.batches) == ("none", "random")


def test_a_scale_may_stand_on_a_recipe():
    own = check(Scale, {"recipe": "mini", "pretrain": {"training": {"steps": 7}}, "tasks": {"rte": None}})
    mini = load_recipe("mini")
    assert own.pretrain["training"]["steps"] == 7
    assert own.pretrain["training"]["batch_size"] == mini.training.batch_size
    assert own.pretrain["model"] == mini.model


def test_names_that_stand_in_two_places_agree():
    assert tuple(paper.TASKS) == IN_PAPER
    assert {name: TITLES[name] for name in paper.TASKS} == {name: task["title"] for name, task in paper.TASKS.items()}
    assert tuple(GRIDS) == STUDIES


TABLES = {"files": {"train": {"path": "a"}, "validation": {"path": "b"}}}
EPOCHS = {"finetune": {"epochs": 3}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": [1, 1]}, r"seeds is \[1, 1\]; it must be at least one, and none twice"),
        ({"budgets": {"pattern": []}}, r"budgets.pattern is \[\]; it must be at least one, and none twice"),
        ({"budgets": {"pattern": ["10%", 0.1]}}, "budgets.pattern is .*none twice"),
        ({"tasks": {}}, "tasks is empty"),
        ({"tasks": {"wnli": {}}}, "unknown GLUE task 'wnli'"),
        ({"tasks": {"cola": {"epoch": 3}}}, "unknown field 'tasks.cola.epoch'"),
        ({"finetune": {"pool": "map"}}, r"unknown field 'finetune.pool'; did you mean 'finetune.pooling'\?"),
        ({"pretrain": {"training": {"step": 3}}}, "unknown field 'pretrain.training.step'"),
        ({"pretrain": {"steps": 3}}, "unknown field 'pretrain.steps'; did you mean 'pretrain.training.steps'"),
        ({"steps": 3}, "unknown field 'steps'; there are budgets, convert, finetune"),
        ({"tasks": {"cola": {"finetune": {"epoch": 3}}}}, "tasks.cola.finetune: unknown field 'epoch'; did you mean"),
        ({"tasks": {"cola": {"finetune": {"epochs": 0}}}}, "tasks.cola.finetune: epochs is 0; it must be at least 1"),
        ({"budgets": {"patern": ["10%"]}}, "budgets names 'patern'; it must be one of 'pattern', 'components'"),
        ({"tokenizers": {"MaBERT": "x"}}, "tokenizers: there is no model 'MaBERT'; there are bert, albert"),
        ({"tasks": {"sst2": {"paper": "cola"}}}, "tasks.sst2.paper is 'cola'; a GLUE task has its own, it goes with"),
        ({"tasks": {"mnli": {"title": "QQP"}}}, "tasks.mnli.title is 'QQP'; a GLUE task has its own, it goes with"),
        ({"budgets": {"pattern": ["0%"]}}, r"budgets.pattern\[0\] is '0%'; it must be above 0% and at most 100%"),
        ({"tasks": {"cola": TABLES}}, "files and sample"),
        ({"tasks": {"x": {"sample": "s", "files": {"train": {"path": "a"}}}}}, "train and validation are needed"),
        (
            {"tasks": {"quora": {"title": "QQP", "sample": "20k pairs", **TABLES}}},
            "tasks.quora.title is 'QQP', an official task's name; it must say what these rows are, such as 'QQP, 20k",
        ),
        ({"tasks": {"mnli": {"sample": "s", **TABLES}}}, "only GLUE's official ones may go by that name"),
    ],
)
def test_a_scale_that_cannot_be_is_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        scale(world(tmp_path), **changes)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"arms": {}}, "arms is empty"),
        ({"reference": "b"}, "reference is 'b'; the arms are a"),
        ({"budgets": ["200%"]}, r"budgets\[0\] is '200%'; it must be above 0%"),
        ({"arms": {1: {}}, "reference": "1"}, "arms names 1; it must be text: write '1' in quotes"),
        ({"a": {"finetune": {"pool": "map"}}}, "arms.a.finetune: unknown field 'pool'; did you mean 'pooling'"),
        ({"a": {"finetune": {"xyz": "map"}}}, "arms.a.finetune: unknown field 'xyz'; there are"),
        ({"a": {"pretrain": {"training.step": 3}}}, "arms.a.pretrain: unknown field 'training.step'; did you"),
        ({"finetune": {"pool": "map"}}, "finetune: unknown field 'pool'; did you mean 'pooling'"),
        ({"a": {"pretrian": {}}}, r"unknown field 'arms.a.pretrian'; did you mean 'arms.a.pretrain'\?"),
    ],
)
def test_a_study_that_cannot_be_is_refused(fields, message):
    """Fields of a study, or its one arm."""
    fields = {"arms": fields} if "a" in fields else fields
    with pytest.raises(ValueError, match=message):
        study(**{"arms": {"a": {}}, "reference": "a", **fields})


@pytest.mark.parametrize("name", STUDIES)
def test_a_packaged_study_stands_beside_the_paper_as_a_copy_of_it_does(tmp_path, name):
    (tmp_path / "copy.yaml").write_text(grid.find(name, "studies", STUDIES).read_text())
    assert load_study(tmp_path / "copy.yaml") == load_study(name)
    assert QUESTIONS[load_study(name).label] == name


def beside(folder, column, classes=("other", "same"), more=""):
    """The table of pairs, its classes spelt so, to stand beside a column of the paper."""
    glue = folder / "glue"
    glue.mkdir(exist_ok=True)
    task = StudyTask.of("pairs", {**pairs(glue), "paper": column})
    for file in ("pairs.tsv", "pairs.jsonl"):
        text = (glue / file).read_text()
        for name, other in zip(("other", "same"), classes, strict=True):
            text = text.replace(f"\t{name}\n", f"\t{other}\n").replace(f'"{name}"', f'"{other}"')
        (glue / file).write_text(text + (more if file == "pairs.tsv" else ""))
    return task.load(str(glue))


def official_cola(folder):
    """CoLA of the world of a folder."""
    world(folder)
    return StudyTask.of("cola", None).load(str(folder / "glue"))


def test_a_column_knows_what_one_class_for_all_would_score(tmp_path):
    assert official_cola(tmp_path).columns(1)[0]["constant"] == 0, "a correlation"
    loaded = beside(tmp_path, "mnli_m")
    dev = list(loaded.splits["validation"]["label"])
    assert loaded.columns(1)[0]["constant"] == max(dev.count(0), dev.count(1)) / len(dev)
    positive = dev.count(1) / len(dev)
    (scored,) = beside(tmp_path, "mrpc", ("not_equivalent", "equivalent")).columns(1)
    assert scored["constant"] == pytest.approx(2 * positive / (1 + positive)), "F1 of always 1"


def test_an_official_task_with_other_rows_says_so(tmp_path, monkeypatch):
    cola = official_cola(tmp_path)
    assert cola.columns(1)[0]["sample"] == "48 train rows and 16 validation rows"
    monkeypatch.setitem(ROWS, "cola", (48, 16))
    assert cola.columns(1)[0]["sample"] is None
    monkeypatch.setitem(ROWS, "cola", (8551, 16))
    assert cola.columns(1)[0]["sample"] == "48 train rows"


def test_a_name_that_is_none_is_refused():
    with pytest.raises(FileNotFoundError, match="no file 'ladder', nor one of pattern, components"):
        load_study("ladder")
    with pytest.raises(FileNotFoundError, match="no file 'huge', nor one of tiny, mini, small, paper"):
        load_scale("huge")


@pytest.mark.parametrize(
    ("column", "metric"), [("cola", "matthews_correlation"), ("mrpc", "f1"), ("qqp", "f1"), ("mnli_mm", "accuracy")]
)
def test_a_table_is_scored_as_the_column_that_it_stands_beside(tmp_path, column, metric):
    (found,) = beside(tmp_path, column, ("0", "1")).columns(1)
    assert found["metric"] == metric


@pytest.mark.parametrize(
    ("column", "classes"),
    [("mrpc", ("not_equivalent", "equivalent")), ("mrpc", ("0", "1")), ("qqp", ("not_duplicate", "duplicate"))],
)
def test_f1_beside_the_papers_is_of_the_papers_class_however_it_sorts(tmp_path, column, classes):
    loaded = beside(tmp_path, column, classes)
    assert loaded.task.label_names == classes
    assert loaded.task.positive == classes[1]
    assert list(loaded.splits["validation"]["label"][:3]) == [0, 1, 1]


@pytest.mark.parametrize(
    ("column", "more", "message"),
    [
        (
            "qqp",
            "",
            "tasks.pairs has the classes other and same; the paper's qqp is scored by the F1 of duplicate, so they "
            "must be not_duplicate and duplicate, or 0 and 1",
        ),
        (
            "mrpc",
            "a\tb\tthird\n",
            "beside the paper's mrpc, which is scored by f1; a table of 3 classes has accuracy, f1_macro, matthews",
        ),
        ("wnli", "", "tasks.pairs.paper is 'wnli'; the paper's columns are cola, sst2"),
    ],
)
def test_a_table_that_cannot_be_scored_as_its_column_is_refused(tmp_path, column, more, message):
    with pytest.raises(ValueError, match=message):
        beside(tmp_path, column, more=more)


@pytest.mark.parametrize(
    ("tasks", "arms", "owners"),
    [
        (
            {"cola": EPOCHS, "rte": EPOCHS},
            {"a": {}},
            "task of the scale has its own; set tasks.cola.finetune.epochs, tasks.rte.finetune.epochs",
        ),
        ({"cola": {}}, {"a": EPOCHS, "b": EPOCHS}, "arm of the study has its own"),
    ],
)
def test_a_fine_tuning_field_that_would_reach_nothing_is_refused(tmp_path, tasks, arms, owners):
    small = scale(world(tmp_path), tasks=tasks)
    check_reach(study(arms), small, ["finetune.dropout=0.2", "pretrain.training.steps=3"])
    for given in ("finetune.epochs=1", "finetune={epochs: 1}"):
        with pytest.raises(ValueError, match=f"finetune.epochs would change nothing: every {owners}"):
            check_reach(study(arms), small, [given])


def test_tasks_that_keep_their_own_fine_tuning_field_are_named(tmp_path, caplog):
    small = scale(world(tmp_path), tasks={"cola": EPOCHS, "rte": {}})
    check_reach(study(), small, ["finetune.dropout=0.2"])
    assert not caplog.messages
    check_reach(study(), small, ["finetune.epochs=1"])
    (told,) = caplog.messages
    assert told == "finetune.epochs does not change the tasks that have their own: tasks.cola.finetune.epochs"


def test_mnli_fills_two_columns_and_a_sample_never_an_official_one(tmp_path):
    cola, table = official_cola(tmp_path), beside(tmp_path, "mnli_m")
    (column,) = table.columns(epochs=2)
    assert (column["key"], column["title"], column["sample"]) == ("pairs", "Pairs, 30 rows", "30 rows")
    assert (column["train"], column["validation"], column["epochs"]) == (30, 10, 2)
    assert table.task.label_names == ("other", "same")
    assert list(table.splits["validation"]["label"][:3]) == [0, 1, 1]
    assert [(column["title"], column["metric"]) for column in cola.columns(1)] == [("CoLA", "matthews_correlation")]
    assert set(cola.splits) == {"train", "validation"}


def test_a_missing_folder_of_data_is_refused_before_anything_is_loaded(monkeypatch, capsys, tmp_path):
    for loader in ("mabert_lab.cli.study.load_libraries", "mabert.machine.processes.context"):
        monkeypatch.setattr(loader, lambda *_: pytest.fail("libraries were loaded"))
    assert cli.main(["study", "pattern", "-o", str(tmp_path / "run"), "--data", "nowhere"]) != 0
    assert "nowhere: no such folder" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
