"""YAML and JSON that a person did not mean, or means to do harm: one line, in no time and little memory."""

import json
import shutil

import pytest

from mabert.files.reading import parse_json, shown
from mabert.files.yaml import parse_yaml
from mabert.train.recipe import load_recipe

YAML = {
    "brackets": (f"data:\n  sources: {'[' * 3000}{']' * 3000}", "maximum recursion depth exceeded"),
    "a block twice": (
        "training: {steps: 1}\nmodel: {}\ntraining:\n  seed: 2",
        "'training' stands in line 1 already, and again in line 3",
    ),
    "a field twice": ("training:\n  steps: 1\n  steps: 2", "'steps' stands in line 2 already, and again in line 3"),
    "many digits": (f"training:\n  steps: {'1' * 5000}", "value has 5000 digits"),
    "a date that there is not": ("tokenizer: 2025-13-45", "month must be in 1..12 in line 1"),
    "an object": ("tokenizer: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
    "a list as a key": ("? [a]\n: 1", "found unhashable key in line 1"),
    "no such alias": ("tokenizer: *nope", "found undefined alias 'nope' in line 1"),
    "a tab": ("training:\n\tsteps: 1", "cannot start any token in line 2"),
    "no value of its kind": ("tokenizer: !!timestamp x", "line 1"),
}  # fmt: skip

JSON = {
    "brackets": ('{"kind":\n' + "[" * 100_000, "not readable JSON: maximum recursion depth exceeded", None),
    "many digits": ('{"a": 1,\n"b": ' + "1" * 5000 + "}", "not readable JSON: Exceeds the limit", None),
    "no number": ('{"a":\n\n NaN}', "not JSON: NaN is not a number; null stands for none", 3),
    "an infinity": ('{"a": -Infinity}', "not JSON: -Infinity is not a number", 1),
    "cut off": ('{"a":\n1', "not JSON: Expecting ',' delimiter at column 2", 2),
    "nothing": ("", "empty (0 bytes)", None),
    "zeros": ("\0" * 100, "not JSON", 1),
}


@pytest.mark.parametrize("case", YAML)
def test_a_recipe_is_refused(tmp_path, refused, case):
    text, message = YAML[case]
    (tmp_path / "plan.yaml").write_text(text)
    told = refused("pretrain", tmp_path / "plan.yaml", "-o", tmp_path / "run")
    assert f"{tmp_path / 'plan.yaml'} is not YAML: " in told
    assert message in told
    assert [file.name for file in tmp_path.iterdir()] == ["plan.yaml"]


@pytest.mark.slow  # the first study of a process imports what studies need
def test_a_study_and_a_scale_are_read_by_the_same_rules(tmp_path, refused):
    text, message = YAML["a block twice"]
    (tmp_path / "plan.yaml").write_text(text)
    for command in (["study", "pattern", "--scale"], ["study", "grid"]):
        assert message in refused(*command, tmp_path / "plan.yaml", "-o", tmp_path / "studies")


@pytest.mark.parametrize("value", ["[" * 3000 + "]" * 3000, "{a: 1, a: 2}", "1" * 5000, "'"])
def test_a_field_of_the_command_line_is_refused(tmp_path, refused, value):
    told = refused("pretrain", "mini", f"training.steps={value}", "-o", tmp_path / "run")
    assert "the value in " in told
    assert "training.steps=" in told
    assert "is not YAML" in told


@pytest.mark.parametrize(
    "text", ["training: [" + "x, " * 9999 + "]", f"tokenizer: [{'long' * 9999}]", "stages: {a: " * 50 + "}" * 50]
)
def test_values_are_shortened_in_messages(tmp_path, refused, text):
    (tmp_path / "plan.yaml").write_text(text)
    refused("pretrain", tmp_path / "plan.yaml", "-o", tmp_path / "run")


def test_what_a_person_means_is_read(tmp_path):
    (tmp_path / "plan.yaml").write_text("base: &base {steps: 7, seed: 1}\n".replace("base: ", "training: "))
    assert load_recipe(tmp_path / "plan.yaml").training.steps == 7
    merged = parse_yaml("a: &a {steps: 1, seed: 2}\nb: {<<: *a, steps: 3}\nc: [*a, *a]", "there")
    assert merged == {"a": {"steps": 1, "seed": 2}, "b": {"steps": 3, "seed": 2}, "c": [{"steps": 1, "seed": 2}] * 2}
    assert parse_json('{"a": NaN}', "there", nan=True)["a"] != 0
    assert shown("a" * 999).startswith("'aaaa")
    assert len(shown({"a": ["b" * 99] * 99})) <= 120


@pytest.mark.parametrize("case", JSON)
def test_every_json_file_is_refused_by_name_and_line(made, tmp_path, refused, case):
    text, message, line = JSON[case]
    at = "" if line is None else f" in line {line}"
    (tmp_path / "model").mkdir()
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json", "config.json"):
        (tmp_path / "model" / name).write_bytes((made / "tuned/seed-0" / name).read_bytes())
    (tmp_path / "model" / "encoding.json").write_text(text)
    told = refused("predict", tmp_path / "model", made / "classes.csv")
    assert f"{tmp_path / 'model/encoding.json'}: {message}" in told
    assert at in told
    (tmp_path / "model" / "config.json").write_text(text)
    for command in ("embed", "info", "fill-mask"):
        told = refused(command, tmp_path / "model", *([] if command == "info" else [made / "classes.csv"]))
        assert f"{tmp_path / 'model/config.json'}: {message}" in told
        assert at in told
    (tmp_path / "results.json").write_text(text)
    if "is not a number" not in message:  # which the results are checked for by name
        assert message in refused("report", tmp_path / "results.json", "-o", tmp_path / "report.html")
        assert message in refused("bench", "report", tmp_path / "results.json", "-o", tmp_path)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"text": ' + "1" * 5000 + "}", '{"text": "a"'])
def test_a_row_of_json_is_refused_by_its_line(made, tmp_path, refused, text):
    rows = json.dumps({"text": "a bird", "label": "yes"}) + "\n"
    (tmp_path / "rows.jsonl").write_text(rows + text + "\n")
    at = f"{tmp_path / 'rows.jsonl'}, line 2: "
    assert at in refused("embed", made / "run", tmp_path / "rows.jsonl", "-o", tmp_path / "a.npy")
    tune = ["finetune", made / "run", "-o", tmp_path / "tuned", "--train"]
    assert at in refused(*tune, tmp_path / "rows.jsonl")
    pretrain = ["pretrain", made / "plan.yaml", "-o", tmp_path / "run"]
    assert at in refused(*pretrain, f"data.sources=[{tmp_path / 'rows.jsonl'}]")


DAMAGED = {
    **dict.fromkeys(("tokenizer.json", "tokenizer_config.json"), ("", '{"model": {', "\0" * 99, "[" * 100_000, "[1]")),
    "result.json": ("", "{", "{}", "[" * 100_000),
    **dict.fromkeys(("ids.npy", "offsets.npy", "manifest.json"), ("", "\0" * 99, "{}")),
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in DAMAGED.items() for text in texts])
def test_a_damaged_file_of_a_model_a_seed_or_a_cache_is_named(made, tmp_path, refused, name, text):
    shutil.copytree(made / "tuned", tmp_path / "tuned")
    shutil.copytree(made / "cache", tmp_path / "cache")
    (file,) = (*(tmp_path / "tuned/seed-0").glob(name), *(tmp_path / "cache").glob(f"*/{name}"))
    file.write_text(text)
    if name == "result.json":
        tune = ["finetune", made / "run", "--train", made / "classes.csv", "--epochs", "1"]
        assert f"{file}: " in refused(*tune, "-o", tmp_path / "tuned", "--resume")
    elif "tokenizer" in name:
        assert f"not a readable tokenizer: {file}: " in refused("predict", file.parent, made / "classes.csv")
    else:
        plan = ["pretrain", made / "plan.yaml", f"data.cache={tmp_path / 'cache'}", "-o", tmp_path / "run"]
        told = refused(*plan)
        assert str(file if text != "{}" else file.parent) in told
        assert "pickle" not in told
