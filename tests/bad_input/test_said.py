"""What is said of a run: about what was set, about what there is to learn, and where it may be gone on with."""

import json
import re
import shutil

import pytest
import yaml

from mabert_lab.cli import main
from mabert_lab.report.document import Page, markdown
from mabert_lab.report.document import table as shown_table
from tests.data.conftest import write_table
from tests.lab.report.studies import row
from tests.lab.report.studies import study as studied


def test_a_single_seed_that_diverges_is_not_told_of_others(made, tmp_path, refused):
    tune = ["finetune", made / "run", "--train", made / "classes.csv", "--epochs", "3", "--learning-rate", "1e30"]
    told = refused(*tune, "-o", tmp_path / "one")
    assert "under seed 0 the loss is" in told or "under seed 0 the outputs" in told
    assert "other seeds" not in told


def test_texts_without_a_word_are_warned_of(made, tmp_path, caplog):
    rows = write_table(tmp_path / "blank.csv", [{"text": "", "label": "yes"}, {"text": " ", "label": "no"}] * 6)
    tune = ["finetune", str(made / "run"), "--train", str(rows), "--validation", str(made / "classes.csv")]
    assert main([*tune, "--epochs", "1", "-o", str(tmp_path / "tuned")]) == 0
    assert "all training texts of blank are empty: there is nothing to learn from them" in caplog.text


@pytest.mark.parametrize("more", [[], ["--select", "best"], ["--learning-rate", "1e-3", "1e-4"], ["--seeds", "0-1"]])
def test_a_score_that_never_changes_leaves_correlations_undefined(made, tmp_path, capsys, caplog, more):
    tune = ["finetune", str(made / "run"), "--train", str(made / "constant.csv"), "--regression", "--epochs", "1"]
    assert main([*tune, *more, "-o", str(tmp_path / "tuned")]) == 0
    assert "all train scores of constant are 2.5: nothing to learn from them" in caplog.text
    assert "all validation scores of constant are 2.5: a correlation with them is not defined" in caplog.text
    out = capsys.readouterr().out
    assert out.startswith("validation pearson: undefined"), "not called by the name of the file"
    assert f"mabert predict {tmp_path / 'tuned/seed-0'} TEXTS" in out
    assert (tmp_path / "tuned/seed-0/config.json").is_file()
    assert "validation spearman: undefined" in out
    assert "0.0000" not in out
    text = (tmp_path / "tuned/result.json").read_text()
    assert json.loads(text)["outcome"]["scores"]["validation"]["spearman"]["mean"] is None
    assert "NaN" not in text
    assert main([*tune, *more, "-o", str(tmp_path / "tuned"), "--resume"]) == 0


HOSTILE = "<script>alert(1)</script>\n# a | *b*\n<img src=x>"


def test_free_text_is_neither_html_nor_a_block_of_markdown():
    grid = shown_table(HOSTILE, ("x", HOSTILE), [("1", HOSTILE)], [HOSTILE])
    page = Page(HOSTILE, markdown(grid), {})
    assert "<" not in page.markdown()
    assert not any(line.startswith("# a") for line in page.markdown().splitlines())
    assert not re.search("<script>alert|<img", page.html())


def test_a_study_with_a_hostile_title_is_reported_and_one_with_a_path_for_a_name_refused(tmp_path, refused):
    arms = [row("$\\frac{$ <b>", {"cola": [0.1, 0.2]}), row("_{^", {"cola": [0.3, 0.2]})]
    study = studied(arms, title=HOSTILE, note=HOSTILE, reference="_{^", label=None)
    (tmp_path / "s.json").write_text(json.dumps(study))
    assert main(["report", str(tmp_path / "s.json"), "-o", str(tmp_path / "report.html")]) == 0
    for file in tmp_path.rglob("report*/*"):
        assert "<script>alert" not in file.read_text() or file.suffix == ".csv", file
    for file in (tmp_path / "report.html", tmp_path / "report.md"):
        assert "<script>alert" not in file.read_text()
    (tmp_path / "s.json").write_text(json.dumps(study | {"study": "../../elsewhere"}))
    told = refused("report", tmp_path / "s.json", "-o", tmp_path / "other.html")
    assert "study is '../../elsewhere'; it must be a name" in told


@pytest.fixture
def relative(made, tmp_path, monkeypatch):
    """A run whose recipe names its files from where it began, interrupted; in a folder of its own."""
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(made / "text.txt", home / "text.txt")
    shutil.copytree(made / "tokenizer", home / "tokenizer")
    plan = yaml.safe_load((made / "plan.yaml").read_text())
    plan["data"] |= {"sources": ["text.txt"], "cache": "cache"}
    (home / "plan.yaml").write_text(yaml.safe_dump(plan | {"tokenizer": "tokenizer"}))
    monkeypatch.chdir(home)
    assert main(["pretrain", "plan.yaml", "-o", "run"]) == 0
    (home / "run/result.json").unlink()
    (home / "run/model.safetensors").unlink()
    return home


@pytest.mark.parametrize(
    "words",
    [
        ["pretrain", "any", "--resume"],
        ["pretrain", "any", "--resume", "data.sources=[HOME/text.txt]"],
        ["pretrain", "any", "--resume", "data.sources=[../home/text.txt]", "tokenizer=../home/tokenizer"],
        ["pretrain", "HOME/plan.yaml", "--resume", "--budget", "100%"],
        ["pretrain", "any", "--resume-from", "checkpoint-2"],
    ],
)
def test_a_run_goes_on_from_any_directory(made, relative, tmp_path, monkeypatch, words):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main([word.replace("HOME", str(relative)) for word in words] + ["-o", str(relative / "run")]) == 0
    assert (relative / "run/model.safetensors").read_bytes() == (made / "run/model.safetensors").read_bytes()


@pytest.mark.parametrize("known", [True, False])
def test_a_run_goes_on_beside_its_text_when_moved_or_from_before_it_knew_its_directory(
    relative, tmp_path, monkeypatch, known
):
    if known:
        relative.rename(tmp_path / "moved")
        monkeypatch.chdir(tmp_path / "moved")
    else:
        request = yaml.safe_load((relative / "run/request.yaml").read_text())
        del request["directory"]
        (relative / "run/request.yaml").write_text(yaml.safe_dump(request))
    assert main(["pretrain", "any", "-o", "run", "--resume"]) == 0


def test_a_fine_tuning_goes_on_wherever_its_model_and_table_lie(made, tmp_path, monkeypatch):
    shutil.copytree(made / "run", tmp_path / "model")
    shutil.copy(made / "classes.csv", tmp_path / "rows.csv")
    monkeypatch.chdir(tmp_path)
    tune = ["--epochs", "1", "-o", str(tmp_path / "tuned")]
    assert main(["finetune", "model", "--train", "rows.csv", *tune]) == 0
    monkeypatch.chdir(made)
    again = ["finetune", str(tmp_path / "model"), "--train", str(tmp_path / "rows.csv"), *tune, "--resume"]
    assert main([*again, "--seeds", "0-1"]) == 0
