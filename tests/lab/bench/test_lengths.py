"""Batches of uneven length: what is drawn, what is compared, how ratios come about."""

import json

import pytest

from mabert.cli import parse
from mabert_lab import cli
from mabert_lab.bench import lengths
from mabert_lab.bench.profiles import Cell
from mabert_lab.bench.worker import Answers
from mabert_lab.cli import measure


def test_lengths_are_those_of_the_distribution():
    drawn = lengths.draw(256, 64, 512, 2000)
    assert drawn == lengths.draw(256, 64, 512, 2000)
    assert min(drawn) >= 16
    assert max(drawn) <= 512
    assert sum(drawn) / len(drawn) == pytest.approx(256, abs=5)
    assert set(lengths.draw(4, 1, 512, 5)) == {16}


def test_picked_lengths_follow_the_texts():
    picked = lengths.pick(list(range(1000)), 10)
    assert sorted(picked) == [50 + 100 * place for place in range(10)]
    assert picked != sorted(picked)
    with pytest.raises(ValueError, match="3 texts are too few to pick 10 lengths from"):
        lengths.pick([1, 2, 3], 10)


def test_a_run_writes_rows_and_ratios(tmp_path, in_this_process, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    result = lengths.run(quick=True, output=tmp_path)
    (path,) = tmp_path.glob("*-lengths.json")
    assert json.loads(path.read_text()) == result
    rows = {row["side"]: row for row in result["rows"]}
    assert set(rows) == set(lengths.sides_of())
    assert {row["status"] for row in rows.values()} == {"measured"}
    assert {side for side, row in rows.items() if row["padded_tokens"] == 60} == {"masked", "bert", "modernbert"}
    assert rows["unpadded"]["padded_tokens"] == rows["alone"]["padded_tokens"] == 39
    assert rows["even"]["tokens"] == rows["even"]["padded_tokens"] == 40, "two rows of 20 for texts of 9 and 30"
    for side, tokens in (("even", 40), ("bert", 39)):
        assert rows[side]["tokens_per_second"] == pytest.approx(1e3 * tokens / rows[side]["median_ms"])
    ratio = rows["bert"]["median_ms"] / rows["unpadded"]["median_ms"]
    assert result["speed"]["two texts"]["bert"] == pytest.approx(ratio)
    assert set(result["speed"]["two texts"]) == set(rows) - {"unpadded"}
    out = capsys.readouterr().out.splitlines()
    assert max(map(len, out)) <= 80


def test_a_side_that_does_not_fit_is_a_row_and_costs_no_other(tmp_path, in_this_process, monkeypatch, capsys):
    call = Answers.call

    def limited(answers):
        if answers.task.model.config.unpad == "never":
            raise MemoryError
        return call(answers)

    monkeypatch.setattr(Answers, "call", limited)
    result = lengths.run(quick=True, output=tmp_path, rivals=())
    assert {row["side"]: row["status"] for row in result["rows"]} == {
        **dict.fromkeys(("unpadded", "even", "alone"), "measured"),
        "masked": "out of memory",
    }
    assert set(result["speed"]["two texts"]) == {"even", "alone"}
    assert "out of memory" in capsys.readouterr().out


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_default_dtype_is_the_fast_one(monkeypatch, in_this_process, dtype):
    monkeypatch.setattr(lengths, "fast_dtype", lambda device: {"cpu": dtype}[device])
    assert lengths.run(quick=True, rivals=())["dtype"] == dtype


def test_rivals_and_their_time_may_be_chosen(monkeypatch, tmp_path, in_this_process):
    monkeypatch.setattr(lengths, "NORMAL", {"short": ((30, 9, 48), 2)})
    monkeypatch.setattr(lengths, "Cell", lambda *given, small, **fields: Cell(*given, small=True, **fields))
    command = ["bench", "lengths", "--models", "bert:eager", "mabert", "mabert-fast", "--dtype", "float32"]
    assert cli.main([*command, "--budget", "0.001", "-o", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*-lengths.json")
    result = json.loads(path.read_text())
    rows = {row["side"]: row for row in result["rows"]}
    rivals = {name + how for name in ("bert:eager", "mabert-fast") for how in ("", " alone")}
    assert set(rows) == {*lengths.OURS, *rivals}
    assert rows["bert:eager"]["padded_tokens"] > rows["mabert-fast"]["padded_tokens"] == rows["mabert-fast"]["tokens"]
    assert {row["samples"] for row in result["rows"]} == {3}, "no call past the third without time for it"


def test_the_tokens_of_texts_are_counted_without_the_hub(tmp_path):
    (tmp_path / "a.txt").write_text("a bird sings\n" + "a bird " * 300 + "\n")
    tokenizer = parse(["bench", "lengths"], [measure.add_bench]).tokenizer
    assert measure.lengths_of_texts([f"own={tmp_path / 'a.txt'}"], tokenizer) == {"own": [5, 602]}
