"""The page of a conversion shows what was measured, beside the floor, in words that it explains."""

import re

import pytest

from mabert_lab.report.conversion import FIGURES, curves, render
from tests.lab.pages import cells, fetched


def told(cosine, **more):
    return {"cosine": cosine, "cosine_p10": cosine - 0.1, "neighbours": cosine - 0.2, "order": cosine - 0.3, **more}


def result(use="encoder", steps=3, **outcome):
    parts = [(25 * step, f"{1 / step:.3f} {2 / step:.3f}") for step in range(1, steps + 1)]
    history = [{"loss": 2.0, "step": step, "parts": losses} for step, losses in parts]
    more = {} if use == "encoder" else {"answers": 0.4321}
    stage = {"steps": 75, "tokens": 3000, "seconds": 30.0, "history": history}
    layers = {"hidden": [0.011, 0.022, 0.033], "core": [0.044, None, 0.055]}
    bands = {
        "3-32": {"texts": 300, "student": told(0.9, **more), "floor": told(0.5, **more)},
        "33-60": {"texts": 100, "student": told(0.8, **more), "floor": told(0.6, **more)},
    }
    made = {
        "use": use,
        "pattern": "MTM",
        "importance": [0.111, 0.222, 0.333],
        "teacher_reads": 512,
        "stages": {"align": stage, "end_to_end": {**stage, "tokens": 1000}},
        "agreement": {"layers": layers, "bands": bands},
    }
    asked = {"teacher": "some<one>/teacher", "texts": ["own <text>.txt"], "direction": "bidirectional", "length": 60}
    return {"request": asked, "outcome": made | outcome, "seconds": 90.0}


def test_what_was_converted_is_told_at_the_top_and_nothing_is_fetched():
    page = " ".join(render(result()).split())
    assert not fetched(page)
    assert "some&lt;one&gt;/teacher" in page
    assert "<text>" not in page
    assert "Of its 3 layers, 2 have Mamba cores (bidirectional)" in page
    assert "1.5 minutes from 4,000 tokens of own &lt;text&gt;.txt" in page
    assert "<b>0.875</b>cosine to the teacher (floor 0.525)" in page  # by the number of texts
    assert "<b>68%</b>nearest neighbours found (floor 32%)" in page


def test_every_figure_of_agreement_stands_in_the_table_beside_the_floor():
    told = "; ".join(cells(render(result())))
    assert "3-32; 300; student" in told
    for who, cosine in (("student", 0.9), ("floor", 0.5), ("student", 0.8), ("floor", 0.6)):
        assert "; ".join([who, *(f"{cosine - less:.3f}" for less in (0, 0.1, 0.2, 0.3))]) in told


@pytest.mark.parametrize("use", ["encoder", "masked_lm", "classifier"])
def test_answers_and_the_command_are_of_what_the_model_is_for(use):
    page = render(result(use))
    assert ("same answer" in cells(page, "th")) == ("0.432" in page) == (use != "encoder")
    command = {"encoder": "embed", "masked_lm": "fill-mask", "classifier": "predict"}[use]
    assert f"<code>mabert {command} FOLDER texts.txt</code>" in page


def test_layers_are_boxes_and_rows():
    page = render(result())
    (drawing,) = re.findall(r'aria-label="The schedule MTM.*?</svg>', page, re.DOTALL)
    letters = [text for text in re.findall(r"<text[^>]*>([^<]*)</text>", drawing) if text in ("M", "T")]
    assert letters == ["M", "T", "M"]
    told = "; ".join(cells(page))
    for row in ("1; Mamba; 0.111; 0.044; 0.011", "2; attention; 0.222; ; 0.022", "3; Mamba; 0.333; 0.055; 0.033"):
        assert row in told


def test_there_is_a_curve_a_stage_where_it_was_long_enough():
    page = render(result())
    assert page.count("Loss against step") == 2
    short = render(result(steps=1))
    assert "Loss against step" not in short
    assert short.count("It was too short for a curve.") == 2
    one = result()
    del one["outcome"]["stages"]["end_to_end"]
    assert render(one).count("Loss against step") == 1


def test_curves_are_of_the_losses_by_name_or_of_mean_and_extremes():
    history = [{"step": 25, "parts": "0.5 0.1 0.3"}, {"step": 50, "parts": "0.2 0.1 0.0"}]
    assert curves(history, ("a", "b", "c"))["c"] == ([25, 50], [0.3, 0.0])
    found = curves(history, ())
    assert found["worst core"] == ([25, 50], [0.5, 0.2])
    assert found["best core"][1] == [0.1, 0.0]
    assert found["mean of the cores"][1] == pytest.approx([0.3, 0.1])
    assert set(curves([{"step": 1, "parts": "0.5"}], ())) == {"mean of the cores"}


def test_without_a_band_the_page_says_so():
    page = render(result(agreement={**result()["outcome"]["agreement"], "bands": {}}))
    assert "Too little text was held out to compare the two." in page


def test_every_figure_of_a_table_is_explained():
    explained = cells(render(result("classifier")), "dt")
    assert {*FIGURES.values(), "same answer", "floor", "importance", "unexplained"} == set(explained)
