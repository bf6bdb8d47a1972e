"""Batches of uneven length: what is drawn, what is compared, how ratios come about."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel, ModernBertConfig, ModernBertModel

from mabert import MaBertConfig, MaBertModel
from mabert_lab import cli
from mabert_lab.bench import lengths
from mabert_lab.bench.parts import PARTS, REST

SIZES = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 96}


def small(longest: int, dtype: torch.dtype, rivals: Sequence[str] = lengths.RIVALS) -> dict[str, torch.nn.Module]:
    built = {
        "mabert": MaBertModel(MaBertConfig(**SIZES, layer_pattern="MMT")),
        "bert": BertModel(BertConfig(**SIZES, num_hidden_layers=3), add_pooling_layer=False),
        "modernbert": ModernBertModel(ModernBertConfig(**SIZES, num_hidden_layers=3)),
    }
    return {name: model.to(dtype).eval() for name, model in built.items() if name in ("mabert", *rivals)}


@pytest.fixture(autouse=True)
def small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths, "models", small)


def test_lengths_are_those_of_the_distribution() -> None:
    drawn = lengths.draw(256, 64, 512, 2000)
    assert drawn == lengths.draw(256, 64, 512, 2000)
    assert min(drawn) >= 16
    assert max(drawn) <= 512
    assert sum(drawn) / len(drawn) == pytest.approx(256, abs=5)
    assert set(lengths.draw(4, 1, 512, 5)) == {16}


def test_picked_lengths_follow_the_texts() -> None:
    picked = lengths.pick(list(range(1000)), 10)
    assert sorted(picked) == [50 + 100 * place for place in range(10)]
    assert picked != sorted(picked)
    with pytest.raises(ValueError, match="3 texts are too few to pick 10 lengths from"):
        lengths.pick([1, 2, 3], 10)


def test_the_sides_run_what_they_are_called() -> None:
    sides = lengths.calls([9, 30], torch.float32)
    unpadded, masked = sides["unpadded"](), sides["masked"]()
    torch.testing.assert_close(unpadded, masked, rtol=1e-5, atol=1e-5)
    assert not masked[0, 9:].any()
    assert sides["even"]().shape[:2] == (2, 20)
    assert sides["bert"]().shape == sides["modernbert"]().shape == unpadded.shape
    for side, batch in (("alone", unpadded), ("bert alone", sides["bert"]())):
        for row, (length, text) in enumerate(zip([9, 30], sides[side](), strict=True)):
            torch.testing.assert_close(text[0], batch[row, :length], rtol=1e-4, atol=1e-5)


def test_a_run_writes_rows_and_ratios(tmp_path: Path) -> None:
    result = lengths.run(quick=True, output=tmp_path)
    (path,) = tmp_path.glob("*-lengths.json")
    assert json.loads(path.read_text()) == result
    rows = {row["side"]: row for row in result["rows"]}
    assert set(rows) == set(lengths.SIDES)
    assert {side for side, row in rows.items() if row["padded_tokens"] == 60} == {"masked", "bert", "modernbert"}
    assert rows["unpadded"]["padded_tokens"] == rows["alone"]["padded_tokens"] == 39
    assert rows["even"]["tokens"] == rows["even"]["padded_tokens"] == 40, "two rows of 20 for texts of 9 and 30"
    assert rows["even"]["tokens_per_second"] == pytest.approx(40_000 / rows["even"]["median_ms"])
    assert rows["bert"]["tokens_per_second"] == pytest.approx(39_000 / rows["bert"]["median_ms"])
    ratio = rows["bert"]["median_ms"] / rows["unpadded"]["median_ms"]
    assert result["speed"]["two texts"]["bert"] == pytest.approx(ratio)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_default_dtype_is_the_fast_one(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    built = []
    monkeypatch.setattr(lengths, "fast_dtype", lambda device: {"cpu": dtype}[device])
    monkeypatch.setattr(
        lengths,
        "calls",
        lambda texts, dtype, rivals: built.append(dtype) or dict.fromkeys(lengths.CONTROLLED, lambda: None),
    )
    assert lengths.run(quick=True)["dtype"] == dtype
    assert built == [getattr(torch, dtype)]


def test_a_round_sets_its_own_times_beside_each_other() -> None:
    seconds = {"unpadded": [1.0, 2.0, 3.0], "even": [1.0, 2.0, 4.5], "bert": [3.0, 4.0, 6.0]}
    found = lengths.within_rounds(seconds, [9, 30])
    assert list(found) == ["even", "bert"]
    assert found["even"] == pytest.approx([39 / 40 * ratio for ratio in (1.0, 1.0, 1.25)]), "39 tokens beside 40"
    assert found["bert"] == pytest.approx([2.0, 2.0, 2.5])


def test_of_every_call_the_least_time_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {
        "unpadded": iter([{"scan": [1.0, 5.0], "rest": [2.0]}, {"scan": [3.0, 4.0], "rest": [1.0]}]),
        "even": iter([{"scan": [1.0, 1.0], "rest": [9.0]}, {"scan": [2.0, 2.0], "rest": [8.0]}]),
    }
    monkeypatch.setattr(lengths, "profiled", lambda side: next(runs[side]))
    parts, rounds = lengths.least_parts({side: side for side in runs}, least=2, most=2, budget=0.0)
    assert rounds == 2
    assert parts == {"unpadded": {"scan": 5.0, "rest": 1.0}, "even": {"scan": 2.0, "rest": 8.0}}
    found = lengths.differences(parts, [9, 30])
    assert found == pytest.approx({"scan": (5 / 39 - 2 / 40) / (10 / 40), "rest": (1 / 39 - 8 / 40) / (10 / 40)})


def test_the_parts_of_a_run_are_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = lengths.run(quick=True, output=tmp_path)
    assert result["profiled"] == {"two texts": 1}
    for side in lengths.CONTROLLED:
        parts = result["parts"]["two texts"][side]
        assert set(parts) == {*PARTS.values(), REST}
        assert all(value > 0 for value in parts.values())
    out = capsys.readouterr().out.splitlines()
    assert max(map(len, out)) <= 80
    below = out[next(place for place, line in enumerate(out) if "unpadded beside even rows" in line) :]
    head = next(line.split() for line in below if "products" in line)
    assert head[1:] == ["products", "attention", "scan", "conv", "norms", "gelu", "rest", "added"]
    _, *parts, added = map(float, next(line.split() for line in below if "two texts" in line)[2:])
    assert added == pytest.approx(sum(parts), abs=0.4), "without the products"


def test_rivals_and_their_time_may_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lengths, "NORMAL", {"short": (6, 1, 16, 2)})
    command = ["bench", "lengths", "--models", "bert", "mabert", "--dtype", "float32", "-o", str(tmp_path)]
    assert cli.main([*command, "--budget", "0.0"]) == 0
    (path,) = tmp_path.glob("*-lengths.json")
    result = json.loads(path.read_text())
    assert {row["side"] for row in result["rows"]} == {"unpadded", "even", "alone", "masked", "bert", "bert alone"}
    assert {row["samples"] for row in result["rows"]} == {3}, "no round past the third without time for it"
    assert set(result["rounds"]["short"]) == set(result["speed"]["short"])


def test_a_rival_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "lengths", "--models", "albert"]) == 2
    assert "rivals has 'albert'; there are bert, modernbert" in capsys.readouterr().err


def test_texts_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "lengths", "--texts", "reviews.jsonl"]) == 2
    assert "--texts is 'reviews.jsonl'; it must be NAME=FILE" in capsys.readouterr().err
