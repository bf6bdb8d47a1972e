import datasets
import numpy as np
import pytest

from mabert.data.glue import TASKS, glue_task, load_glue

QUOTED = 'He said " so , and left it'
MRPC = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
FILES = {
    "cola": {
        "train.tsv": "gj04\t1\t\tThe cat sat.\ngj04\t0\t*\tThe cat sat the.\n",
        "dev.tsv": "gj04\t1\t\tIt rained.",
        "test.tsv": "index\tsentence\n0\tWho knows?\n1\tKnows who.\n",
    },
    "sst2": {
        "train.tsv": f"sentence\tlabel\n{QUOTED}\t1\nbad \t0\n",
        "dev.tsv": "sentence\tlabel\nfine \t1\n",
        "test.tsv": "index\tsentence\n0\tfine\n",
    },
    "mrpc": {
        "train.tsv": f"\ufeff{MRPC}\n1\t7\t8\t{QUOTED}\tHe left .\n0\t1\t2\ta\tb\n",
        "dev.tsv": f"\ufeff{MRPC}\n0\t1\t2\ta\tb\n",
        "test.tsv": "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1\t2\ta\tb\n",
    },
    "qqp": {
        "train.tsv": f"{QQP}\n9\t1\t2\tWhy?\tHow?\t0\n8\t1\t2\tcut\n7\t3\t4\tA?\tA?\t1\n",
        "dev.tsv": f"{QQP}\n9\t1\t2\tWhy?\tWhy?\t1\n",
        "test.tsv": "id\tquestion1\tquestion2\n0\tA?\tB?\n",
    },
    "mnli": {
        "train.tsv": "index\tpromptID\tsentence1\tsentence2\tlabel1\tgold_label\n0\t1\tA b.\tA.\tneutral\tentailment\n",
        "dev_matched.tsv": "index\tsentence1\tsentence2\tlabel1\tgold_label\n0\tA b.\tNot a.\tneutral\tcontradiction\n",
        "dev_mismatched.tsv": "index\tsentence1\tsentence2\tgold_label\n0\tA b.\tC.\tneutral\n",
        "test_matched.tsv": "index\tsentence1\tsentence2\n9794\tA.\tB.\n",
        "test_mismatched.tsv": "index\tsentence1\tsentence2\n0\tA.\tB.\n",
    },
    "qnli": {
        "train.tsv": f"index\tquestion\tsentence\tlabel\n0\tWho?\t{QUOTED}\tentailment\n1\tWho?\tA.\tnot_entailment\n",
        "dev.tsv": "index\tquestion\tsentence\tlabel\n0\tWho?\tA.\tnot_entailment\n",
        "test.tsv": "index\tquestion\tsentence\n0\tWho?\tA.\n",
    },
    "rte": {
        "train.tsv": "index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\tnot_entailment\n",
        "dev.tsv": "index\tsentence1\tsentence2\tlabel\n0\tA.\tA.\tentailment\n",
        "test.tsv": "index\tsentence1\tsentence2\n0\tA.\tB.\n",
    },
    "stsb": {
        "train.tsv": "index\tgenre\tsentence1\tsentence2\tscore\n0\tx\tA man.\tA man.\t5.000\n1\tx\tA.\tB.\t0.2\n",
        "dev.tsv": "index\tgenre\tsentence1\tsentence2\tscore\n0\tx\tA.\tB.\t2.6\n",
        "test.tsv": "index\tgenre\tsentence1\tsentence2\n0\tx\tA.\tB.\n",
    },
}


@pytest.fixture
def glue(tmp_path):
    for task, files in FILES.items():
        folder = tmp_path / "glue" / TASKS[task].folder
        folder.mkdir(parents=True)
        for name, content in files.items():
            (folder / name).write_text(content, encoding="utf-8")
    return tmp_path / "glue"


@pytest.mark.parametrize(
    ("task", "split", "expected"),
    [
        ("cola", "train", [["The cat sat.", 1, 0], ["The cat sat the.", 0, 1]]),
        ("cola", "validation", [["It rained.", 1, 0]]),
        ("cola", "test", [["Who knows?", 0], ["Knows who.", 1]]),
        ("sst2", "train", [[QUOTED, 1, 0], ["bad ", 0, 1]]),
        ("mrpc", "train", [[QUOTED, "He left .", 1, 0], ["a", "b", 0, 1]]),
        ("qqp", "train", [["Why?", "How?", 0, 0], ["A?", "A?", 1, 1]]),
        ("mnli", "train", [["A b.", "A.", 0, 0]]),
        ("mnli", "validation_matched", [["A b.", "Not a.", 2, 0]]),
        ("mnli", "validation_mismatched", [["A b.", "C.", 1, 0]]),
        ("mnli", "test_matched", [["A.", "B.", 9794]]),
        ("qnli", "train", [["Who?", QUOTED, 0, 0], ["Who?", "A.", 1, 1]]),
        ("rte", "validation", [["A.", "A.", 0, 0]]),
        ("stsb", "train", [["A man.", "A man.", 5.0, 0], ["A.", "B.", 0.2, 1]]),
    ],
)
def test_rows_are_read_as_the_official_loader_reads_them(glue, caplog, task, split, expected):
    loaded = load_glue(task, glue)
    assert list(loaded) == list(TASKS[task].splits)
    texts = ["text_a", "text_b"][: len(TASKS[task].texts)]
    assert loaded[split].column_names == [*texts, *([] if split.startswith("test") else ["label"]), "index"]
    assert [list(row.values()) for row in loaded[split]] == expected
    assert ("left out 1 rows with missing columns" in caplog.text) == (task == "qqp")


def test_the_task_folder_itself_will_do_and_test_files_may_be_missing(glue):
    (glue / "RTE" / "test.tsv").unlink()
    assert list(load_glue("rte", glue / "RTE")) == ["train", "validation"]
    (glue / "RTE" / "train.tsv").unlink()
    assert list(load_glue("rte", glue, ["validation"])) == ["validation"]
    with pytest.raises(FileNotFoundError, match=r"RTE/train\.tsv: no such file"):
        load_glue("rte", glue)


@pytest.mark.parametrize(
    ("task", "file", "content", "message"),
    [
        ("cola", "train.tsv", "gj04\t1\tshort\n", r"train\.tsv, line 1: 3 columns where 4 are expected"),
        (
            "cola",
            "train.tsv",
            "gj04\t1\t\ta\n\ngj04\t2\t\tb\n",
            r"train\.tsv, line 3: unknown label '2'; known are 0, 1",
        ),
        ("sst2", "dev.tsv", "text\tlabel\na\t1\n", r"dev\.tsv: no column 'sentence'; the columns are text, label"),
        ("sst2", "dev.tsv", "sentence\na\n", r"dev\.tsv: no column 'label'; the columns are sentence$"),
        ("sst2", "dev.tsv", "sentence\tlabel\n", r"dev\.tsv: a header line but no rows"),
        ("sst2", "test.tsv", "index\tsentence\nx\ta\n", r"test\.tsv, line 2: the index 'x' is not a number"),
        ("mnli", "dev_matched.tsv", "sentence1\tsentence2\tgold_label\na\tb\t-\n", "line 2: unknown label '-'"),
        ("stsb", "dev.tsv", "sentence1\tsentence2\tscore\na\tb\thigh\n", "line 2: the score 'high' is not a number"),
        ("sst2", "dev.tsv", "\n", r"dev\.tsv: empty \(no header line\)"),
    ],
)
def test_bad_files_get_one_clear_line(glue, task, file, content, message):
    (glue / TASKS[task].folder / file).write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        load_glue(task, glue)
    assert "\n" not in str(error.value)


def test_bad_names(tmp_path):
    with pytest.raises(ValueError, match="unknown GLUE task 'wnli'; known are cola, sst2"):
        glue_task("wnli")
    with pytest.raises(ValueError, match="mnli has no split 'validation'; its splits are train, validation_matched"):
        load_glue("mnli", tmp_path, ["validation"])
    with pytest.raises(
        FileNotFoundError, match=r"nowhere: no such folder \(the hub's data set is written hub:nyu-mll/glue"
    ):
        load_glue("cola", tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"no folder CoLA, nor any of train\.tsv, dev\.tsv, test\.tsv"):
        load_glue("cola", tmp_path)


# Text columns and classes of each configuration of nyu-mll/glue, as its page lists them; STS-B has scores.
PLAIN, MATCHED = ("train", "validation", "test"), ("validation_matched", "validation_mismatched")
ON_THE_HUB = {
    "cola": (("sentence",), ("unacceptable", "acceptable"), PLAIN),
    "sst2": (("sentence",), ("negative", "positive"), PLAIN),
    "mrpc": (("sentence1", "sentence2"), ("not_equivalent", "equivalent"), PLAIN),
    "qqp": (("question1", "question2"), ("not_duplicate", "duplicate"), PLAIN),
    "mnli": (
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        ("train", *MATCHED, "test_matched", "test_mismatched"),
    ),
    "qnli": (("question", "sentence"), ("entailment", "not_entailment"), PLAIN),
    "rte": (("sentence1", "sentence2"), ("entailment", "not_entailment"), PLAIN),
    "stsb": (("sentence1", "sentence2"), (), PLAIN),
}


def hub_set(folder, task, classes=None):
    """A data set as the hub has it, of one task: the label of training is the last class, or 2.5."""
    texts, published, splits = ON_THE_HUB[task]
    classes = classes or published
    label = datasets.ClassLabel(names=list(classes)) if classes else datasets.Value("float32")
    kinds = {name: datasets.Value("string") for name in texts} | {"label": label, "idx": datasets.Value("int32")}
    for split in splits:
        value = -1 if split.startswith("test") else len(classes) - 1 if classes else 2.5
        row = {name: [f"{name} of {split}"] for name in texts} | {"label": [value], "idx": [4]}
        (folder / task).mkdir(parents=True, exist_ok=True)
        path = folder / task / f"{split}-00000.parquet"
        datasets.Dataset.from_dict(row, features=datasets.Features(kinds)).to_parquet(path)
    (folder / "README.md").write_text(
        f"---\nconfigs:\n- config_name: {task}\n  data_files:\n"
        + "".join(f"  - {{split: {split}, path: {task}/{split}-*}}\n" for split in splits)
        + "---\n"
    )
    return folder


@pytest.mark.usefixtures("prepared_here")
@pytest.mark.parametrize("task", TASKS)
def test_the_hub_gives_the_same_columns(tmp_path, task):
    texts, classes, splits = ON_THE_HUB[task]
    loaded = load_glue(task, f"hub:{hub_set(tmp_path / 'set', task)}")
    assert tuple(loaded) == splits
    for split, rows in loaded.items():
        read = dict(zip(("text_a", "text_b"), (f"{name} of {split}" for name in texts), strict=False))
        label = {} if split.startswith("test") else {"label": len(classes) - 1 if classes else 2.5}
        assert rows[0] == {**read, **label, "index": 4}


@pytest.mark.usefixtures("prepared_here")
def test_a_hub_set_with_other_classes_is_refused(tmp_path):
    source = hub_set(tmp_path / "set", "mrpc", ["equivalent", "not_equivalent"])
    with pytest.raises(ValueError, match=r"the classes are \['equivalent', 'not_equivalent'\], not \['not_equivalent'"):
        load_glue("mrpc", f"hub:{source}")


def test_submissions_have_the_leaderboards_form():
    files = {name: list(task.submissions.values()) for name, task in TASKS.items()}
    of_two = {"qnli": "QNLI.tsv", "rte": "RTE.tsv", "cola": "CoLA.tsv", "sst2": "SST-2.tsv", "mrpc": "MRPC.tsv"}
    of_two |= {"qqp": "QQP.tsv", "stsb": "STS-B.tsv"}
    assert files == {name: [file] for name, file in of_two.items()} | {"mnli": ["MNLI-m.tsv", "MNLI-mm.tsv"]}
    written = {name: task.submitted(np.array([1, 0])) for name, task in TASKS.items() if name != "stsb"}
    named = {name: ["not_entailment", "entailment"] for name in ("qnli", "rte")} | {"mnli": ["neutral", "entailment"]}
    assert written == {name: named.get(name, ["1", "0"]) for name in written}
    assert TASKS["stsb"].submitted(np.array([5.7, -0.1, 3.14159])) == ["5.000", "0.000", "3.142"]
