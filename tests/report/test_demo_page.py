"""The page of the tour shows what was measured, all of it and nothing else."""

import re

import pytest

from mabert.report.demo import render
from mabert.report.figures import line_chart
from mabert.report.page import STYLE


def result(stages=((128, 70), (512, 30)), documents=3):
    run = [{"loss": 0.7, "step": 4}, *({"epoch": float(n), "eval_accuracy": 0.6 + 0.1 * n} for n in (1, 2, 3))]
    return {
        "source": ["own <text>.txt"],
        "characters": 2_000_000,
        "documents": documents,
        "seconds": 90.0,
        "pretraining": {
            "held_out_loss": 3.2,
            "held_out_accuracy": 0.4,
            "steps": 100,
            "tokens": 1_000_000,
            "parameters": 2_000_000,
            "stages": [{"length": length, "steps": steps} for length, steps in stages],
            "history": [{"loss": 8.0 - step / 50, "step": step} for step in range(10, 101, 10)]
            + [{"eval_loss": 7.0 - step / 50, "step": step} for step in (50, 100)],
        },
        "fine-tuning": {name: {"accuracy": 0.9, "history": run} for name in ("pretrained", "from scratch")},
        "masks": [{"text": "a [MASK] <b>", "guesses": [{"token": "bird", "probability": 0.25}]}],
        "padding": [
            {"masking": masking, "side": "left", "padding": 8, "moved": moved}
            for masking, moved in (("none", 0.5), ("exact", 2e-7))
        ],
        "examples": [{"text": "It is so.", "truth": "real", "verdict": "scrambled"}],
    }


def drawn(svg, name):
    """How often a kind of element stands in a drawing."""
    return len(re.findall(rf"<{name}\b", svg))


def dots(svg):
    """The markers on the curves, which are drawn by `use` within the clipped area; those of the axes are not."""
    return sum(drawn(group, "use") for group in re.findall(r"<g clip-path=.*?</g>", svg, re.S))


def test_accuracy_is_drawn_at_the_epochs_that_were_measured():
    page = render(result())
    (chart,) = re.findall(r'aria-label="Accuracy.*?</figure>', page, re.S)
    assert dots(chart) == 2 * 3
    labels = re.findall(r"<text[^>]*>([^<]*)</text>", chart)
    assert "epoch" in labels
    assert "0.5" not in labels
    assert "0.50" not in labels
    assert [label for label in labels if re.fullmatch(r"[\d.]+", label)][:3] == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("stages", "said", "lines"),
    [
        (((128, 70), (512, 30)), "windows of 128 and then of 512 tokens (dotted line)", [70]),
        (((64, 100),), "windows of 64 tokens. Of", []),
        (((16, 20), (32, 30), (64, 50)), "windows of 16 and then of 32 and then of 64 tokens (dotted line)", [20, 50]),
    ],
)
def test_the_change_of_length_is_where_the_run_had_it(monkeypatch, stages, said, lines):
    marked = []

    def spy(curves, *labels, marks=(), dots=False):
        marked.append(list(marks))
        return line_chart(curves, *labels, marks=marks, dots=dots)

    monkeypatch.setattr("mabert.report.training.line_chart", spy)
    page = render(result(stages))
    assert said in page
    assert marked == [lines]


def test_text_is_escaped_and_counted():
    page = render(result(documents=1))
    assert "own &lt;text&gt;.txt: 1 document, 2.0 million characters" in page
    assert "a [MASK] &lt;b&gt;" in page
    assert "3 documents" in render(result())


def test_every_class_of_the_style_is_used():
    page = render(result())
    body = page.partition("</style>")[2]
    for name in re.findall(r"\.([a-z]+)", re.sub(r"\.\d+\w*", "", STYLE)):
        assert re.search(rf'class="{name}"', body), name
    for name in re.findall(r"--([a-z]+):", STYLE):
        assert f"var(--{name})" in STYLE
