"""The scaling figure names every model once and tells what is measured, what is the paper's, and what is missing."""

import math
import re
import xml.etree.ElementTree as ET

import pytest

from mabert_lab.report import paper
from mabert_lab.report.document import Drawing, Heading
from mabert_lab.report.efficiency.chart import scaling_chart, scaling_figure, speed_chart, speed_figure
from mabert_lab.report.efficiency.results import NAMES
from mabert_lab.report.figures import LOOKS
from mabert_lab.report.measurements import efficiency_section
from tests.lab.report.rows import CPU, GPU, SLOW, raw, whole


def texts(chart):
    return ["".join(element.itertext()) for element in ET.fromstring(chart).iter("{http://www.w3.org/2000/svg}text")]


def test_the_figure_names_every_model_once_and_has_a_panel_a_measure(load):
    found = texts(scaling_chart(load(whole()), CPU))
    for name in NAMES.values():
        assert found.count(name) == 1
    assert [text for text in found if "batch" in text] == [
        "Peak memory, batch 1",
        "Latency, batch 1",
        "Training step, batch 32",
    ]
    assert "dashed: the paper's, NVIDIA A100 80GB, bf16" in found
    assert "solid: measured, fp32, cpu" in found
    assert not any("missing" in text for text in found)


def test_the_figure_tells_why_points_are_missing_and_leaves_out_empty_panels(load):
    rows = [raw("latency", "bert", 128, 1.0), raw("latency", "bert", 512, **SLOW), raw("training", "bert", 128, **SLOW)]
    found = texts(scaling_chart(load(rows), CPU))
    assert "missing points: too slow" in found
    assert "Latency, batch 1" in found
    assert "Training step, batch 32" not in found
    assert "ModernBERT" not in found


def drawn(chart, model):
    """Points of each line of a model inside the panels, whether it is dashed before them."""
    for path in ET.fromstring(chart).iter("{http://www.w3.org/2000/svg}path"):
        style = path.get("style", "")
        if f"stroke: {LOOKS[model].colour}" in style and path.get("clip-path"):
            numbers = [float(text) for text in re.findall(r"-?\d+\.?\d*", path.get("d"))]
            yield "stroke-dasharray" in style, list(zip(numbers[::2], numbers[1::2], strict=True))


def test_the_figure_draws_ours_solid_with_bars_and_the_papers_dashed_all_by_logarithms(load):
    chart = scaling_chart(load([raw("latency", "bert", 128 * 4**n, 10.0**n) for n in range(3)]), CPU)
    (ours,) = (points for dashed, points in drawn(chart, "bert") if not dashed and len(points) == 3)
    (theirs,) = (points for dashed, points in drawn(chart, "bert") if dashed)
    bars = [points for dashed, points in drawn(chart, "bert") if not dashed and len(points) == 2]
    (left, low), (middle, between), (right, high) = ours
    assert middle - left == pytest.approx(right - middle, abs=1e-3)
    assert low - between == pytest.approx(between - high, abs=1e-3)
    assert len(theirs) == 5
    assert [bar[0][0] for bar in bars] == pytest.approx([left, middle, right], abs=1e-3)
    for (_, fastest), (_, slowest) in bars:
        assert fastest - slowest == pytest.approx(math.log10(1.5 / 0.9) * (low - between), abs=1e-3)


def test_models_of_one_side_only_are_drawn_on_that_side(load):
    chart = scaling_chart(load([raw("latency", "modernbert", 128, 1.0), raw("latency", "modernbert", 512, 1.0)]), CPU)
    assert set(paper.NAMES.values()) < set(texts(chart))
    assert all(dashed for model in paper.NAMES for dashed, _ in drawn(chart, model))
    assert not any(dashed for dashed, _ in drawn(chart, "modernbert"))


def test_looks_differ_in_colour_and_in_marker():
    assert set(LOOKS) == set(NAMES)
    assert len({look.colour for look in LOOKS.values()}) == len({look.marker for look in LOOKS.values()}) == len(NAMES)


def test_a_condition_without_measurements_is_refused(load):
    with pytest.raises(ValueError, match="nothing measured under best, bfloat16, cuda; there is paper, float32, cpu"):
        scaling_chart(load(whole()), GPU)


def test_a_report_has_no_figure_of_a_condition_in_which_nothing_was_fast_enough(load):
    results = load([*whole(), raw("latency", "deberta", 4096, condition=GPU, **SLOW)])
    parts = list(efficiency_section(results))
    drawings = [part.name for part in parts if isinstance(part, Drawing)]
    assert drawings == ["efficiency-paper-float32-cpu", "efficiency-paper-float32-cpu-speed"]
    assert [part.text for part in parts if isinstance(part, Heading) and part.level == 3][1].endswith("bf16, cuda")


def test_the_figure_of_speed_draws_tokens_a_second_from_zero(load):
    rows = [raw("latency", "bert", 128 * 2**n, 128 * 2**n / speed) for n, speed in enumerate((4.0, 2.0, 1.0))]
    results = load([*rows, raw("latency", "mabert", 512, **SLOW)])
    (axes,) = speed_figure(results, CPU).axes
    (line,) = axes.get_lines()
    assert line.get_xydata().tolist() == [[128, 4000], [256, 2000], [512, 1000]]
    assert axes.get_ylim()[0] == 0
    found = texts(speed_chart(results, CPU))
    assert {"tokens a second", "4,000", "512", "BERT"} < set(found)
    assert "MaBERT" not in found


def test_the_figure_of_speed_names_models_in_the_order_that_their_lines_end_in(load):
    rows = [raw("latency", model, 128, time) for model, time in {"bert": 3.0, "mabert": 1.0, "albert": 2.0}.items()]
    found = texts(speed_chart(load([*rows, raw("latency", "bigbird", 64, 0.1)]), CPU))
    assert [text for text in found if text in NAMES.values()] == ["MaBERT", "ALBERT", "BERT", "BigBird"]


def test_without_latency_there_is_no_figure_of_speed(load):
    assert speed_chart(load([raw("memory", "bert", 128, 500.0), raw("latency", "bert", 128, **SLOW)]), CPU) == ""


@pytest.mark.parametrize("measures", [["latency"], ["memory", "latency"], ["memory", "latency", "training"]])
def test_the_legend_lies_within_the_figure(load, measures):
    rows = [row for row in whole() if row["measure"] in measures] + [raw(measures[0], "bert", 9999, **SLOW)]
    figure = scaling_figure(load(rows), CPU)
    figure.draw_without_rendering()
    inside, (legend,) = figure.bbox, figure.legends
    box = legend.get_window_extent()
    assert inside.x0 <= box.x0
    assert box.x1 <= inside.x1
    assert inside.y0 <= box.y0
    assert all(axes.get_window_extent().height > 0.4 * inside.height for axes in figure.axes)
