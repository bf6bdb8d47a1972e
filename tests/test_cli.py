"""The command line: thin, one line and exit code 2 for bad input, a traceback only by --debug."""

import dataclasses
import datetime
import io
import json
import logging
import math
import os
import sys
import threading
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml

import mabert
from mabert import cli
from mabert.cli.command import say
from mabert.cli.train import pretrain_recipe, seed_list
from mabert.data.tokenizer import load_tokenizer
from mabert.files import places
from mabert.infer import texts
from mabert.model.blocks import MambaBlock
from mabert.opening.opened import open_model
from mabert.train.folder import REQUEST
from mabert.train.recipe import load_recipe
from mabert_lab.bench import models
from mabert_lab.cli import main
from tests.infer.conftest import classifier, masked_lm, words  # noqa: F401 -- fixtures
from tests.refusal import refusal


@pytest.fixture(autouse=True)
def libraries_as_they_were():
    """The command line quietens transformers for the whole process."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    yield
    logging.set_verbosity(level)
    logging.enable_progress_bar()


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def said(capsys, *arguments):
    """What a command that must end well says."""
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    return out


@pytest.mark.parametrize("rank", ["0", "1"])
def test_the_first_of_torchruns_processes_speaks_for_all(monkeypatch, request, rank):
    ours = logging.getLogger("mabert")
    request.addfinalizer(partial(ours.setLevel, ours.level))
    monkeypatch.setenv("RANK", rank)
    cli.write_messages()
    assert [ours.isEnabledFor(level) for level in (logging.INFO, logging.WARNING)] == [rank == "0"] * 2
    assert ours.isEnabledFor(logging.ERROR)


def test_predict_and_fill_mask_read_standard_input(capsys, monkeypatch, masked_lm, classifier):  # noqa: F811
    def typed(text):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    typed("the bird\n")
    assert json.loads(said(capsys, "predict", classifier))["label"] in "abc"
    typed("the [MASK]\n")
    assert len(json.loads(said(capsys, "fill-mask", masked_lm, "-", "--top", 2))["masks"][0]) == 2
    typed("")
    code, _, err = run(capsys, "predict", classifier)
    assert (code, err.strip()) == (2, "mabert: standard input is empty; one text a line is needed")


def test_predict_reads_pairs(capsys, monkeypatch, classifier, tmp_path):  # noqa: F811
    row = json.dumps({"premise": "the bird sings", "hypothesis": "a bird"})
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(row.encode())))
    columns = ("--text-column", "premise", "--pair-column", "hypothesis")
    out = said(capsys, "predict", classifier, "--jsonl", *columns)
    answer = json.loads(out)
    assert (answer["text"], answer["pair"]) == ("the bird sings", "a bird")
    (tmp_path / "pairs.jsonl").write_text(row, encoding="utf-8")
    assert said(capsys, "predict", classifier, tmp_path / "pairs.jsonl", *columns) == out
    alone = json.loads(said(capsys, "predict", classifier, tmp_path / "pairs.jsonl", *columns[:2]))
    assert alone["probability"] != answer["probability"]


def test_piped_jsonl_and_columns_of_plain_lines_are_not_taken_for_texts(capsys, monkeypatch, masked_lm, tmp_path):  # noqa: F811
    def embedded(data, *options):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        return run(capsys, "embed", masked_lm, *options)

    objects = b'\n{"text": "the bird"}\n{"text": "a river"}\n'
    told = "mabert: standard input, line 2: a JSON object, where a text is read; give --jsonl\n"
    assert embedded(objects) == (2, "", told)
    assert embedded(objects, "--jsonl")[1].count("vector") == 2
    assert embedded(b'a river\n{"text": "the bird"}\n')[1].count("vector") == 2, "braces are allowed in texts"
    code, out, err = embedded(b"body\nthe bird\n", "--text-column", "body")
    assert (code, out) == (2, "")
    assert err.startswith("mabert: standard input: lines of plain text have no column 'body'; give --jsonl")
    (tmp_path / "in.log").write_text('{"text": "the bird"}\n')
    assert run(capsys, "embed", masked_lm, tmp_path / "in.log")[0] == 2
    (tmp_path / "in.log").write_text("the bird\n")
    assert run(capsys, "embed", masked_lm, tmp_path / "in.log")[0] == 0


def test_answers_appear_window_by_window_and_a_file_is_there_when_all_are(capsys, monkeypatch, masked_lm, tmp_path):  # noqa: F811
    monkeypatch.setattr(texts, "CHUNK_TEXTS", 2)
    (tmp_path / "in.txt").write_text("the bird\na house\nwind\n" + "bird " * 40 + "\n", encoding="utf-8")
    code, out, err = run(capsys, "embed", masked_lm, tmp_path / "in.txt")
    assert (code, out.count("vector")) == (2, 2)
    assert "the first is text 4, the longest text 4 with 42" in err
    assert err.endswith("shorten them, or have them cut (--truncate, or truncate=True)\n")
    for name in ("out.npy", "out.jsonl"):
        assert run(capsys, "embed", masked_lm, tmp_path / "in.txt", "-o", tmp_path / name)[0] == 2
        assert [file.name for file in tmp_path.iterdir()] == ["in.txt"]
    out = said(capsys, "embed", masked_lm, tmp_path / "in.txt", "-o", tmp_path / "out.npy", "--truncate")
    assert out.startswith(f"{tmp_path / 'out.npy'}: ")
    assert np.load(tmp_path / "out.npy").shape == (4, 8)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a disk that is always full")
@pytest.mark.parametrize("command", ["info", "fill-mask", "extend"])
def test_output_that_finds_the_disk_full_is_one_line(capsys, monkeypatch, masked_lm, tmp_path, command):  # noqa: F811
    (tmp_path / "in.txt").write_text("the [MASK]\n")
    more = {"info": [], "fill-mask": [tmp_path / "in.txt"], "extend": ["--length", "99", "-o", tmp_path / "new"]}
    with open("/dev/full", "w") as full, monkeypatch.context() as patch:  # what is left is written where it closes
        patch.setattr(sys, "stdout", full)
        code = main([command, str(masked_lm), *map(str, more[command])])
    assert code == 2
    told = "mabert: standard output: " if command == "fill-mask" else ""
    assert capsys.readouterr().err.endswith(f"{told}No space left on device\n")


def test_precision_and_device_reach_the_model(capsys, masked_lm, tmp_path):  # noqa: F811
    (tmp_path / "in.txt").write_text("the bird\n", encoding="utf-8")
    vectors = []
    for precision in ("fp32", "bf16"):
        words_ = ["embed", masked_lm, tmp_path / "in.txt", "--precision", precision, "--device", "cpu"]
        vectors.append(json.loads(run(capsys, *words_)[1])["vector"])
    assert vectors[0] != vectors[1]
    assert vectors[0] == pytest.approx(vectors[1], abs=0.05)


@pytest.mark.parametrize(
    ("text", "helps"), [("the bird\na house\n", "--batch-tokens"), ("the bird\n", "--max-length, --truncate")]
)
def test_out_of_memory_gets_one_line(capsys, monkeypatch, masked_lm, tmp_path, text, helps):  # noqa: F811
    monkeypatch.setattr(MambaBlock, "forward", lambda *given, **more: torch.empty(2**50))
    (tmp_path / "in.txt").write_text(text, encoding="utf-8")
    code, out, err = run(capsys, "embed", masked_lm, tmp_path / "in.txt")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("mabert: out of memory on ")
    assert f" ({helps}, or " in err


def test_predict_keeps_columns_that_are_asked_for(capsys, classifier, tmp_path):  # noqa: F811
    when = datetime.date(2026, 11, 25)
    rows = {"text": ["the bird", "a house"], "id": [7, 8], "when": [when, None], "score_of": [math.nan, 0.5]}
    rows["deep"] = [[{"a": math.inf, "b": [1.5, -math.inf]}], []]
    pq.write_table(pa.table(rows), tmp_path / "in.parquet")
    kept = ("id", "when", "score_of", "deep")
    out = said(capsys, "predict", classifier, tmp_path / "in.parquet", "--keep", *kept)
    first, second = map(json.loads, out.splitlines())
    assert [first[name] for name in ("id", "when", "score_of", "text")] == [7, "2026-11-25", None, "the bird"]
    assert [second[name] for name in ("id", "when", "score_of", "text")] == [8, None, 0.5, "a house"]
    assert (first["deep"], second["deep"]) == ([{"a": None, "b": [1.5, None]}], [])
    assert first["label"] in ("a", "b", "c")
    code, _, err = run(capsys, "predict", classifier, tmp_path / "in.parquet", "--keep", "id", "label")
    assert (code, err) == (2, "mabert: --keep has 'label', which is a name in the answers; rename that column\n")


def test_what_an_encoding_lacks_is_said_escaped(monkeypatch):
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="cp1252"))
    cli.take_any_character()
    say("f1 of 负面")
    sys.stdout.flush()
    assert shown.getvalue() == rb"f1 of \u8d1f\u9762" + os.linesep.encode()


def test_a_recipe_may_be_a_pipe_and_what_is_read_twice_is_told_apart(capsys, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=("training: {step: 3}\n",))
    writer.start()
    code, _, err = run(capsys, "pretrain", tmp_path / "pipe", "-o", tmp_path / "run")
    writer.join()
    assert (code, err) == (2, "mabert: unknown field 'training.step'; did you mean 'training.steps'?\n")
    twice = f"mabert: {tmp_path}/pipe: a pipe, which can be read once; write what comes from it to a file"
    for command in (["report", tmp_path / "pipe"], ["study", "grid", tmp_path / "pipe"]):
        assert refusal(capsys, command) == twice


def test_names_of_the_hub_without_an_owner_are_looked_for_there(monkeypatch, tmp_path):
    asked = []
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    monkeypatch.setattr(places, "from_hub", lambda name, weights: asked.append((name, weights)) or tmp_path)
    assert open_model("bert-base-uncased").config.model_type == "bert"
    assert open_model("google-bert/bert-base-uncased").config.model_type == "bert"
    with pytest.raises(FileNotFoundError, match=r"no tokenizer\.json"):
        load_tokenizer("bert-base-uncased")
    names = ("bert-base-uncased", True), ("google-bert/bert-base-uncased", True), ("bert-base-uncased", False)
    assert tuple(asked) == names, "a tokenizer needs no weights"
    for folder in ("berts", "./bert-base-uncased", "/bert-base-uncased", "runs/bert-base/x"):
        with pytest.raises(FileNotFoundError, match="no model folder"):
            open_model(folder)


def test_info_names_layers_and_parameters(capsys, masked_lm):  # noqa: F811
    out = said(capsys, "info", masked_lm)
    assert "2 layers MT" in out
    assert "Mamba cores" in out


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("embed MODEL --device cuda:99", "device is 'cuda:99'; GPUs that torch can use here: "),
        ("embed MODEL none.txt -o x.csv", "x.csv must end in .jsonl or .npy"),
        ("embed MODEL none.txt -o no/where.npy", "no folder no to write where.npy in"),
        ("predict MODEL --batch-tokens -1", "--batch-tokens is -1; it must be at least 1"),
        (f"predict MODEL --keep id {__file__}", "which is a file; give the file of texts before --keep"),
        ("predict MODEL --pair-column b", "standard input: lines of plain text hold no pairs"),
        ("pretrain mini -o run --budget 0%", "--budget is '0%'; it must be above 0% and at most 100%"),
        ("finetune MODEL -o run", "name either a GLUE task (--task) or a file of your own (--train)"),
        ("finetune MODEL -o run --task cola --data nowhere", "nowhere"),
        ("finetune MODEL -o run --task cola --text-column a", "--text-column goes with --train, not with --task"),
        ("finetune MODEL -o run --task cola --regression", "--regression goes with --train, not with --task"),
        ("finetune MODEL -o run --train none.csv --data glue", "--data goes with --task, not with --train"),
        ("study pooling -o run finetune.epoch=3", "did you mean 'finetune.epochs'?"),
    ],
)
def test_bad_input_gets_one_line(capsys, monkeypatch, masked_lm, tmp_path, command, message):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a text\n")))
    told = refusal(capsys, [masked_lm if word == "MODEL" else word for word in command.split()])
    assert told.startswith("mabert: ")
    assert message in told
    assert not (tmp_path / "run").exists()


def test_a_run_that_goes_on_has_its_own_recipe_and_a_budget_stands_for_the_whole_command(tmp_path):
    def asked(*options):
        return pretrain_recipe(cli.parse(["pretrain", "mini", "-o", str(tmp_path), *options]))

    begun = load_recipe("mini", ["training.seed=7"]).at_budget(0.1)
    (tmp_path / REQUEST).write_text(yaml.safe_dump(dataclasses.asdict(begun)))
    assert asked("--resume") == begun
    assert asked("--resume", "training.seed=8").training.seed == 8
    assert asked("--resume", "--budget", "10%", "training.seed=7") == begun
    assert asked("--resume", "--budget", "50%").training.steps == asked("--budget", "50%").training.steps
    assert asked("--resume", "--budget", "50%").training.steps == 5 * begun.training.steps


def test_fields_that_may_be_left_out_are_not_called_required(capsys):
    with pytest.raises(SystemExit):
        cli.parse(["pretrain", "-o", "run"])
    assert "the following arguments are required: recipe;" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["embed nowhere --debug", "--debug embed nowhere"])
def test_debug_shows_the_traceback(line):
    with pytest.raises(FileNotFoundError):
        main(line.split())


@pytest.mark.parametrize(("text", "seeds"), [("0-4", [0, 1, 2, 3, 4]), ("7", [7]), ("0,2,5-6", [0, 2, 5, 6])])
def test_seeds(text, seeds):
    assert seed_list(text) == seeds


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.strip() == f"mabert {mabert.__version__}" == f"mabert {version('mabert')}"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("bench ops --models bert", "--models goes with bench models, not with bench ops"),
        ("bench lengths --lengths 3", "--lengths goes with bench models, not with bench lengths"),
        ("bench report a.json --quick", "--quick goes with measurements of speed, not with bench report"),
        ("bench lengths --quick --texts a=b", "--texts has no effect with --quick"),
        ("bench ops --profile best", "--profile goes with bench models, not with bench ops"),
        ("bench models --quick --limit 5", "--limit has no effect with --quick"),
        ("bench models a.json", "files go with bench report, not with bench models"),
        ("bench lengths --dtype float32 bfloat16", "bench lengths takes one dtype at a time"),
        ("bench lengths --dtype float16", "dtype is 'float16'; it must be one of 'float32', 'bfloat16'"),
        ("bench models --models roberta", "there is no model 'roberta'; there are bert"),
        ("bench report", "nothing to report"),
        ("bench lengths --models bert:mkl", "there is no engine 'mkl' for 'bert:mkl'"),
        ("bench lengths --texts reviews.jsonl", "--texts is 'reviews.jsonl'; it must be NAME=FILE"),
        ("bench retrieval", "bench retrieval has no model; name one folder or several"),
        ("bench retrieval m", "bench retrieval has no data; name a file or folder of documents"),
        ("bench retrieval m --data gone.txt", "gone.txt: no such file or folder"),
        ("bench retrieval m --questions a --tasks b", "--tasks goes with --data, which is not given"),
        ("bench retrieval m --data x --quick", "--quick goes with measurements of speed, not with bench retrieval"),
        ("study drift model --texts a.txt --data glue", "--data goes with the CoLA dev set, not with --texts"),
        ("study drift model --text-column body", "--text-column goes with --texts, which is not given"),
        ("study budget --from x", "--from goes with pattern, components, pooling and grid, not with budget"),
        ("study pattern --conversions 2", "--conversions goes with arms that are conversions, and those of pattern"),
        ("study pattern --scale convert", "--scale convert is for conversions; give --from MODEL as well"),
    ],
)
def test_what_would_be_ignored_or_cannot_be_done_is_refused(capsys, tmp_path, monkeypatch, command, message):
    monkeypatch.chdir(tmp_path)
    told = refusal(capsys, [*command.split(), "-o", "out"])
    assert told.startswith("mabert: ")
    assert message in told
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_efficiency_results_become_tables_and_figures(capsys, tmp_path):
    from tests.lab.report.rows import CPU, GPU, raw, whole

    environment = {"date": "2026-01-01T00:00:00+00:00", "processor": "one", "device": "two", "threads": 2}
    content = {"kind": "efficiency", "quick": False, "parameters": {}, "environment": environment}
    (tmp_path / "a.json").write_text(json.dumps({**content, "rows": whole(CPU) + whole(GPU)}))
    said(capsys, "bench", "report", tmp_path / "a.json", "-o", tmp_path / "out")
    conditions = ("paper-float32-cpu", "best-bfloat16-cuda")
    figures = {f"efficiency-{name}{of}.svg" for name in conditions for of in ("", "-speed")}
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"efficiency.md", *figures}
    assert "## The paper's settings, fp32, cpu" in (tmp_path / "out/efficiency.md").read_text()
    slow = [{**row, "status": "too slow", "limit": 9.0} for row in whole(CPU)]
    (tmp_path / "b.json").write_text(json.dumps({**content, "rows": slow}))
    assert run(capsys, "bench", "report", tmp_path / "b.json", "-o", tmp_path / "slow")[0] == 0
    assert [file.name for file in (tmp_path / "slow").iterdir()] == ["efficiency.md"], "nothing to draw"
    (tmp_path / "c.json").write_text(json.dumps({**content, "quick": True, "rows": slow}))
    (tmp_path / "d.json").write_text(json.dumps(content | {"kind": "engines", "rows": [raw("latency", "bert", 1, 5)]}))
    told = said(capsys, "bench", "report", tmp_path, "-o", tmp_path / "both")
    assert all(f"{what}: " in told for what in ("/efficiency.md", "/engines.md", "left out: `c.json`"))


def test_a_model_is_lengthened(capsys, masked_lm, tmp_path):  # noqa: F811
    told = said(capsys, "extend", masked_lm, "--length", 60, "-o", tmp_path / "longer")
    assert "60 tokens instead of 24" in told
    assert json.loads((tmp_path / "longer/config.json").read_text())["max_position_embeddings"] == 60


def test_how_models_are_to_be_measured_is_asked_and_a_row_of_ours_that_failed_is_an_error(
    capsys, monkeypatch, tmp_path
):
    rows = [{"model": "mabert:compiled", "status": "failed"}, {"model": "bert", "status": "failed"}]
    measure = Mock(return_value={"rows": rows[1:]})
    monkeypatch.setattr(models, "run", measure)
    line = "bench models --models bert --measure latency --lengths 32x512 64 --budget 8 --limit 90"
    assert run(capsys, *line.split(), "-o", tmp_path)[0] == 0
    plan, *others = measure.call_args.args
    assert others == [False, tmp_path, False]
    assert (plan.models, plan.measures, plan.device) == (["bert"], ["latency"], "cpu")
    assert plan.lengths == [(32, 512), (0, 64)], "rows and tokens"
    assert plan.protocol == replace(models.Plan().protocol, budget=8.0, limit=90.0)
    measure.return_value = {"rows": rows}
    code, _, told = run(capsys, *line.split(), "-o", tmp_path)
    assert (code, told) == (2, "mabert: 1 rows of MaBERT failed; with --resume the same command tries them again\n")


def test_a_gpu_that_is_not_there_is_refused(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, _, told = run(capsys, "bench", "ops", "--device", "cuda")
    assert (code, told) == (2, "mabert: device is 'cuda'; GPUs that torch can use here: 0\n")


def test_options_may_stand_before_the_texts():
    behind, before = ["embed", "m", "t.txt", "--pooling", "cls"], ["embed", "m", "--pooling", "cls", "t.txt"]
    assert vars(cli.parse(before)) | {"parser": None} == vars(cli.parse(behind)) | {"parser": None}
    with pytest.raises(SystemExit):
        cli.parse([*before, "u.txt"])


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("embed", "the following arguments are required: model"),
        ("fly", "invalid choice: 'fly'"),
        ("embed m t.txt --trucnate", "mabert embed: unrecognized arguments: --trucnate (did you mean --tru"),
        ("embed m t.txt --zzz", "mabert embed: unrecognized arguments: --zzz; see mabert embed --help"),
        ("finetune m -o x a=b", "unrecognized arguments: a=b"),
        ("finetune m -o x --seeds 0 1", "1 (write several seeds as one word, 0-4 or 0,2,7)"),
        ("finetune m -o x --seeds 4-0", "the range '4-0' runs backwards"),
        *(
            (f"bench models --lengths {size}", "must be tokens, 512, or rows and tokens, 32x512")
            for size in ("32x", "x512", "0x512", "32x0", "32x512x2", "3.5", "٣", "1x99999999")
        ),
    ],
)
def test_what_the_parser_refuses_says_what_is_meant(capsys, line, told):
    with pytest.raises(SystemExit) as stop:
        main(line.split())
    assert stop.value.code == 2
    assert told in capsys.readouterr().err
