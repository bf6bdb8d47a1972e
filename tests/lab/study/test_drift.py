"""The drift study: what it calls exact does not move, what it calls a leak does, and its distance is the cosine's."""

import json

import pytest
import torch

from mabert import MaBertModel
from mabert_lab import cli, study
from mabert_lab.report.drift import MASKINGS as DRAWN
from mabert_lab.report.drift import STABLE, cures, drift_chart, drift_tables, farthest_chart
from mabert_lab.study.drift import ATTENTIONS, MASKINGS, SIDES, cosine_distance, drift, unfinished_file
from tests.infer.conftest import masked_lm, words  # noqa: F401 -- fixtures
from tests.model.helpers import build, config

TEXTS = [[2, 9, 8, 3], [2, 5, 3], [2, 7, 7, 3]]


def built():
    return build(MaBertModel, config(layer_pattern="MMT", hidden_size=32), dtype=torch.float32)


@pytest.fixture(scope="module")
def result():
    torch.set_num_threads(1)
    return drift(built(), TEXTS, 0, lengths=(0, 6, 12))


def of(result, **wanted):
    rows = [row for row in result["rows"] if all(row[name] == value for name, value in wanted.items())]
    assert rows
    return rows


def regime_of(row):
    return tuple(row[name] for name in ("weights", "direction", "conv", "side", "attention"))


@pytest.mark.slow
def test_every_regime_is_there_once(result):
    seen = {(*regime_of(row), row["masking"]) for row in result["rows"]}
    assert len(seen) == len(result["rows"]) == 7 * len(SIDES) * len(ATTENTIONS) * len(MASKINGS)
    assert all(len(row[vector]) == 3 for row in result["rows"] for vector in ("cls", "mean"))


def test_unpadded_never_drifts_and_exact_only_where_attention_looks_at_padding(result):
    for row in of(result, masking="unpadded") + of(result, masking="exact", attention="masked"):
        assert max(row["cls"] + row["mean"]) < STABLE
    for row in of(result, masking="exact", attention="unmasked"):
        assert row["mean"][-1] > STABLE
    without_padding = [row[vector][0] for row in result["rows"] for vector in ("cls", "mean")]
    assert max(without_padding) < STABLE


def test_the_distance_is_one_minus_the_cosine():
    a, b = torch.randn(2, 5, 7, dtype=torch.float64)
    torch.testing.assert_close(cosine_distance(a, b), 1 - torch.cosine_similarity(a, b))
    assert cosine_distance(a, a * 3).max() < 1e-30


@pytest.mark.slow
def test_figure_and_tables_show_every_masking(result):
    chart = drift_chart(result)
    assert "[CLS]" in chart
    shown = [label for label, _, _ in DRAWN.values()]
    assert list(DRAWN) == list(MASKINGS)
    assert all(f">{label}<" in chart for label in shown), chart[:200]
    of_cls, of_mean = drift_tables(result)
    assert len(of_cls) == len(of_mean) == 7 * len(SIDES) * len(ATTENTIONS)
    assert list(of_cls.columns[5:]) == list(of_mean.columns[5:]) == [*MASKINGS, "cured by"]
    where = ("trained", "forward", "causal", "left", "masked")
    for vector, table in (("cls", of_cls), ("mean", of_mean)):
        rows = {tuple(row[:5]): row[5:] for row in table.itertuples(index=False, name=None)}
        *drifting, exact, unpadded, cure = rows[where]
        assert (exact, unpadded, cure) == ("0", "0", "exact")
        own = [max(row[vector]) for row in result["rows"] if regime_of(row) == where]
        assert [float(cell) for cell in drifting] == pytest.approx(own[:4], rel=0.06)
        assert min(own[:4]) > STABLE, vector


def test_the_figure_of_several_models_has_a_line_for_each_and_shows_trained_weights_alone(result):
    backward = [{**row, "direction": "backward"} for row in of(result, weights="trained")]
    several = [("a.json", result), ("b.json", {**result, "rows": backward})]
    chart = farthest_chart(several)
    for scan, file in (("forward", "a.json"), ("backward", "b.json")):
        assert all(f">{scan} scan, padding {side}<" in chart for side in SIDES)
        assert chart.count(f">{file}, up to 12 positions<") == 2 * len(SIDES)
    only = [("a.json", {**result, "rows": of(result, weights="trained")}), several[1]]
    assert farthest_chart(only) == chart
    farther = [{**row, "cls": [9 * each for each in row["cls"]]} for row in backward]
    assert farthest_chart([several[0], ("b.json", {**result, "rows": farther})]) != chart


def reached(direction, conv, side):
    """What reaches a text from padding beside it where attention does not: nothing, a window, or the scan's state."""
    scans = {"forward": {"left"}, "backward": {"right"}, "bidirectional": {"left", "right"}}[direction]
    windows = {"left", "right"} if conv == "centered" else scans
    return "state" if side in scans else "window" if side in windows else "nothing"


@pytest.mark.parametrize("vector", ["cls", "mean"])
def test_what_a_scan_carries_only_exact_masks_cure_and_what_a_window_sees_a_mask_before_it(result, vector):
    found = cures(result, vector)
    assert len(found) == 7 * len(SIDES) * len(ATTENTIONS)
    expected = {"nothing": "none", "window": "pre", "state": "exact"}
    for (weights, direction, conv, side, attention), cure in found.items():
        drifts = "unpadded" if attention == "unmasked" else expected[reached(direction, conv, side)]
        assert cure == drifts, (weights, direction, conv, side, attention)


def test_the_table_says_what_cures_each_regime(result):
    def cured(result):
        return {tuple(row[:5]): row[-1] for row in drift_tables(result)[0].itertuples(index=False, name=None)}

    found = cured(result)
    assert found["trained", "forward", "causal", "right", "masked"] == "no drift"
    assert found["trained", "forward", "causal", "left", "masked"] == "exact"
    assert found["random", "backward", "centered", "right", "unmasked"] == "unpadded"
    leaky = [{**row, "cls": [1.0]} for row in result["rows"]]
    assert set(cured({**result, "rows": leaky}).values()) == {"nothing"}


@pytest.mark.slow
def test_trained_weights_alone_give_the_same_rows(result):
    alone = drift(built(), TEXTS, 0, lengths=(0, 6, 12), random=False)
    assert alone["rows"] == of(result, weights="trained")
    assert drift_chart(alone) == drift_chart(result)


def test_a_stopped_study_goes_on_where_it_was(tmp_path, monkeypatch):
    measured = (built(), TEXTS[:2], 0, (0, 6), False)
    whole = drift(*measured)["rows"]
    file = unfinished_file(tmp_path / "new", *measured)
    regimes, curves = [], study.drift._curves

    def stopped_at_the_sixth(built, regime, *rest):
        regimes.append(regime)
        if len(regimes) == 6:
            raise KeyboardInterrupt
        return curves(built, regime, *rest)

    monkeypatch.setattr(study.drift, "_curves", stopped_at_the_sixth)
    with pytest.raises(KeyboardInterrupt):
        drift(*measured, unfinished=file)
    assert json.loads(file.read_text())["rows"] == whole[:5]
    assert drift(*measured, unfinished=file)["rows"] == whole
    assert len(regimes) == 6 + 19, "the first five are not measured again"
    assert set(regimes[6:]) == set(regimes[5:]), "nor is one left out"


def test_a_study_goes_on_with_rows_of_the_same_weights_arguments_and_machine_alone(tmp_path, monkeypatch):
    one, other = built(), built()
    other.load_state_dict(one.state_dict())
    measured = {"texts": [[2, 9, 3]], "pad_id": 0, "lengths": (0, 6), "random": False}
    file = unfinished_file(tmp_path, one, **measured)
    assert unfinished_file(tmp_path, other, **measured) == file
    changes = {"texts": [[2, 9, 3], [2, 3]], "pad_id": 1, "lengths": (0, 7), "random": True}
    found = {unfinished_file(tmp_path, one, **measured | {name: value}) for name, value in changes.items()}
    with torch.no_grad():
        next(other.parameters()).view(-1)[0] += 1
    found.add(unfinished_file(tmp_path, other, **measured))
    here = study.drift.environment()
    monkeypatch.setattr(study.drift, "environment", lambda: here | {"load_average": 99.0})
    assert unfinished_file(tmp_path, one, **measured) == file
    monkeypatch.setattr(study.drift, "environment", lambda: here | {"processor": "another"})
    found.add(unfinished_file(tmp_path, one, **measured))
    assert len(found | {file}) == 7


def run(model, folder):
    (folder / "texts.txt").write_text("the bird\na house\nthe house\n", encoding="utf-8")
    arguments = ["study", "drift", model, "--texts", folder / "texts.txt", "--limit", 2, "-o", folder / "out"]
    return cli.main([str(argument) for argument in [*arguments, "--trained-only", "--padding", 0, 3]])


@pytest.mark.slow
def test_the_command_writes_json_figure_and_table(masked_lm, tmp_path, capsys):  # noqa: F811
    assert run(masked_lm, tmp_path) == 0
    assert "2 texts, 24 regimes" in capsys.readouterr().out
    (json_file,) = (tmp_path / "out").glob("*-drift.json")
    assert len(list((tmp_path / "out").iterdir())) == 3, "the rows kept on the way are gone"
    written = json.loads(json_file.read_text())
    assert (written["texts"], written["lengths"]) == (2, [0, 3])
    assert json_file.with_suffix(".svg").read_text().startswith("<svg")
    assert json_file.with_suffix(".md").read_text().count("| weights |") == 2


@pytest.mark.slow
def test_a_command_ends_though_an_equal_one_ended_first(masked_lm, tmp_path, monkeypatch):  # noqa: F811
    def overtaken(*measured, unfinished):
        first, last = measured[1]
        assert first[1] == last[1], "of three texts the first and the last, which begin alike"
        result = drift(*measured, unfinished=unfinished)
        unfinished.unlink()
        return result

    monkeypatch.setattr(study.drift, "drift", overtaken)
    assert run(masked_lm, tmp_path) == 0
    assert len(list((tmp_path / "out").iterdir())) == 3
