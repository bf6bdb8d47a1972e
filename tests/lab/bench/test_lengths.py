"""Batches of uneven length: what is drawn, what is compared, how ratios come about."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mabert.cli import parse
from mabert_lab import cli
from mabert_lab.bench import lengths
from mabert_lab.bench.parts import PARTS, REST
from mabert_lab.bench.profiles import Cell
from mabert_lab.bench.worker import Answers
from mabert_lab.cli import measure

SPEEDS = st.lists(st.floats(0.1, 10), min_size=1, max_size=8)


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


def test_a_run_writes_rows_ratios_and_parts(tmp_path, in_this_process, monkeypatch, capsys):
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
    assert set(result["rounds"]["two texts"]) == set(result["speed"]["two texts"]) == set(rows) - {"unpadded"}
    assert result["profiled"] == {"two texts": 1}
    for side in lengths.CONTROLLED:
        parts = result["parts"]["two texts"][side]
        assert set(parts) == {*PARTS.values(), REST}
        assert {part for part, value in parts.items() if not value} == {"activation"}, "it is part of the products"
    out = capsys.readouterr().out.splitlines()
    assert max(map(len, out)) <= 80
    below = out[next(place for place, line in enumerate(out) if "unpadded beside even rows" in line) :]
    head = next(line.split() for line in below if "products" in line)
    assert head[1:] == ["products", "attention", "scan", "conv", "norms", "gelu", "rest", "added"]
    _, *parts, added = map(float, next(line.split() for line in below if "two texts" in line)[2:])
    assert added == pytest.approx(sum(parts), abs=0.4), "without the products"


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


def test_a_round_sets_its_own_times_beside_each_other():
    seconds = {"unpadded": [1.0, 2.0, 3.0], "even": [1.0, 2.0, 4.5], "bert": [3.0, 4.0, 6.0]}
    found = lengths.within_rounds(seconds, [9, 30])
    assert list(found) == ["even", "bert"]
    assert found["even"] == pytest.approx([39 / 40 * ratio for ratio in (1.0, 1.0, 1.25)]), "39 tokens beside 40"
    assert found["bert"] == pytest.approx([2.0, 2.0, 2.5])


@given(SPEEDS, SPEEDS)
def test_a_call_is_set_beside_one_of_about_the_same_time(ours, theirs):
    least, middle, most = lengths.within_rounds({"unpadded": ours, "bert": theirs}, [1])["bert"]
    ratios = [their / our for our in ours for their in theirs]
    assert min(ratios) * (1 - 1e-9) <= least <= middle <= most <= max(ratios) * (1 + 1e-9)
    assert lengths.within_rounds({"unpadded": ours, "bert": ours}, [1])["bert"] == pytest.approx([1, 1, 1])
    assert lengths.within_rounds({"bert": theirs}, [1]) == {}, "without the one that the others are set beside"


def test_of_every_call_the_least_time_is_kept():
    runs = {
        "unpadded": [{"scan": [1.0, 5.0], "rest": [2.0]}, {"scan": [3.0, 4.0], "rest": [1.0]}],
        "even": [
            {"scan": [1.0, 1.0], "rest": [9.0]},
            {"scan": [2.0, 2.0], "rest": [8.0]},
            {"scan": [0, 0], "rest": [0]},
        ],
    }
    parts, rounds = lengths.least_parts(runs)
    assert rounds == 2
    assert parts == {"unpadded": {"scan": 5.0, "rest": 1.0}, "even": {"scan": 2.0, "rest": 8.0}}
    found = lengths.differences(parts, [9, 30])
    assert found == pytest.approx({"scan": (5 / 39 - 2 / 40) / (10 / 40), "rest": (1 / 39 - 8 / 40) / (10 / 40)})


def test_rivals_and_their_time_may_be_chosen(monkeypatch, tmp_path, in_this_process):
    monkeypatch.setattr(lengths, "NORMAL", {"short": (30, 9, 48, 2)})
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


def test_a_rival_that_is_not_there_is_named(capsys):
    assert cli.main(["bench", "lengths", "--models", "bert:mkl"]) == 2
    assert "there is no engine 'mkl' for 'bert:mkl'" in capsys.readouterr().err


def test_the_tokens_of_texts_are_counted_without_the_hub(tmp_path):
    (tmp_path / "a.txt").write_text("a bird sings\n" + "a bird " * 300 + "\n")
    tokenizer = parse(["bench", "lengths"], [measure.add_bench]).tokenizer
    assert measure.lengths_of_texts([f"own={tmp_path / 'a.txt'}"], tokenizer) == {"own": [5, 602]}


def test_texts_are_named(capsys):
    assert cli.main(["bench", "lengths", "--texts", "reviews.jsonl"]) == 2
    assert "--texts is 'reviews.jsonl'; it must be NAME=FILE" in capsys.readouterr().err
