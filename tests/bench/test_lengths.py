"""Batches of uneven length: what is drawn, what is compared, how ratios come about."""

import json
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel, ModernBertConfig, ModernBertModel

from mabert import MaBertConfig, MaBertModel, cli
from mabert.bench import lengths

SIZES = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 96}


def small(longest: int, dtype: torch.dtype) -> dict[str, torch.nn.Module]:
    built = {
        "mabert": MaBertModel(MaBertConfig(**SIZES, layer_pattern="MMT")),
        "bert": BertModel(BertConfig(**SIZES, num_hidden_layers=3), add_pooling_layer=False),
        "modernbert": ModernBertModel(ModernBertConfig(**SIZES, num_hidden_layers=3)),
    }
    return {name: model.to(dtype).eval() for name, model in built.items()}


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
    monkeypatch.setattr(lengths, "calls", lambda texts, dtype: built.append(dtype) or {"unpadded": lambda: None})
    assert lengths.run(quick=True)["dtype"] == dtype
    assert built == [getattr(torch, dtype)]


def test_texts_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "lengths", "--texts", "reviews.jsonl"]) == 2
    assert "--texts is 'reviews.jsonl'; it must be NAME=FILE" in capsys.readouterr().err
