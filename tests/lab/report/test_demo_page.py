"""The page of the tour shows what was measured, all of it and nothing else."""

import re

import pytest

from mabert_lab.report import demo
from mabert_lab.report.demo import counted, headline, written
from mabert_lab.report.figures import line_chart


def render(told):
    """The page, its lines joined."""
    return " ".join(demo.render(told).split())


def result(stages=((128, 70), (512, 30)), documents=3):
    """Of a tour that had no teacher."""
    run = [{"loss": 0.7, "step": 4}, *({"epoch": float(n), "eval_accuracy": 0.6 + 0.1 * n} for n in (1, 2, 3))]
    return {
        "source": ["own <text>.txt"],
        "characters": 2_000_000,
        "documents": documents,
        "seconds": 90.0,
        "steps": {"reading text": 9.6, "pretraining": 80.4},
        "left_out": "no model <m>",
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
        "padding": padding(),
        "examples": [{"text": "It is so.", "truth": "real", "verdict": "scrambled"}],
    }


def padding(exact=2e-7, as_run=0.0):
    told = {"none": 0.5, "pre+post": 0.02, "exact": exact, "unpadded": as_run}
    return [{"masking": name, "side": "left", "padding": 8, "moved": moved} for name, moved in told.items()]


def answer(number, place):
    there = f"passage <{number}>"
    return {
        "question": f"question {number}?",
        "answer": there,
        "cosine": 0.71,
        "teacher": there if place == 1 else f"the teacher's {number}",
        "teacher_cosine": 0.69,
        "place": place,
    }


def converted(places=(1, 1, 4, 1, 2), bands=True, long=True, wanted=400_000):
    """Of a tour that had one."""
    told = {"texts": 9, **{name: {"cosine": 0.97, "neighbours": 0.8} for name in ("student", "floor")}}
    times = {"median_ms": 12.0}
    sides = {"student": times, "teacher": times, "teacher, mabert's attention": times}
    found = result()
    del found["left_out"]
    return found | {
        "conversion": {
            "teacher": "owner/<teacher>",
            "tokens": 400_000,
            "wanted": wanted,
            "seconds": 100.0,
            "pattern": "MTM",
            "importance": [0.1, 0.4, 0.2],
            "agreement": {"bands": {"3-32": told} if bands else {}},
            "speed": [{"length": 128, **sides}, {"length": 512, **sides}, {"length": 1024, "student": times}],
        },
        "questions": {
            "passages": 500,
            "alike": 0.973,
            "help": True,
            "answers": [answer(number, place) for number, place in enumerate(places, 1)],
        },
        "long": [
            {"model": model, "tokens": tokens, "ms": 20.0, "cosine": cosine}
            for model, tokens, cosine in (("teacher", 256, 0.9), ("teacher", 512, 1.0), ("student", 512, 0.97))
        ]
        if long
        else [],
    }


def drawn(svg, name):
    """How often a kind of element stands in a drawing."""
    return len(re.findall(rf"<{name}\b", svg))


def dots(svg):
    """The markers on the curves, which are drawn by `use` within the clipped area; those of the axes are not."""
    return sum(drawn(group, "use") for group in re.findall(r"<g clip-path=.*?</g>", svg, re.S))


def test_accuracy_is_drawn_at_the_epochs_that_were_measured():
    (chart,) = re.findall(r'aria-label="Accuracy.*?</svg>', render(result()), re.S)
    assert dots(chart) == 2 * 3
    labels = re.findall(r"<text[^>]*>([^<]*)</text>", chart)
    assert "epoch" in labels
    assert [label for label in labels if re.fullmatch(r"[\d.]+", label)][:3] == ["1", "2", "3"], "no half epochs"


@pytest.mark.parametrize(
    ("stages", "said", "lines"),
    [
        (((64, 100),), "windows of 64 tokens. Of", []),
        (((16, 20), (32, 30), (64, 50)), "windows of 16 and then of 32 and then of 64 tokens (dotted line)", [20, 50]),
    ],
)
def test_the_change_of_length_is_where_the_run_had_it(monkeypatch, stages, said, lines):
    marked = []

    def spy(curves, *labels, marks=(), dots=False):
        marked.append(list(marks))
        return line_chart(curves, *labels, marks=marks, dots=dots)

    monkeypatch.setattr("mabert_lab.report.figures.line_chart", spy)
    assert said in render(result(stages))
    assert marked == [lines]


def headings(page):
    return re.findall(r"<h[12][^>]*>(.*?)</h", page)


def test_conversion_comes_first_or_the_page_says_why_there_is_none_and_how_to_get_one():
    page = render(converted())
    assert headings(page)[:3] == ["An encoder that you know, as a MaBERT", "Converted", "Asked"]
    assert headings(page)[-1] == "Next: your encoder, your text"
    assert "mabert convert YOUR-MODEL" in page
    assert "pip install" not in page
    page = render(result())
    assert headings(page)[:2] == ["From raw text to a fine-tuned MaBERT", "Padding changes nothing"]
    assert "No encoder was converted: no model &lt;m&gt;." in page
    assert "pip install" in page


@pytest.mark.parametrize("places", [(1, 1, 4, 1, 2), (1,) * 5, (2,) * 5])
def test_each_question_is_marked_by_whether_the_teacher_agrees(places):
    page = render(converted(places))
    edges = re.findall(r'<section class="(.*?)"', page)
    assert edges == ["asked alike" if place == 1 else "asked" for place in places]
    assert f"<b>{places.count(1)} of 5</b>questions with the teacher" in page
    for number, place in enumerate(places, 1):
        assert f"passage &lt;{number}&gt;" in page
        assert (f"the student's number {place}: the teacher&#39;s {number} 0.69" in page) == (place > 1)


@pytest.mark.parametrize("there", [True, False])
def test_what_is_not_there_is_left_out(there):
    told = converted(bands=there, long=there)
    page = render(told)
    assert ("who reads" in page) == ("Cosine to the teacher" in page) == there
    assert ("cosine to the teacher" in str([*headline(told)])) == there


@pytest.mark.parametrize(("wanted", "said"), [(400_000, ""), (500_000, ", which is nearly all that the text has")])
def test_a_text_that_was_too_short_is_told(wanted, said):
    assert f"400,000 tokens without labels{said}, to say" in render(converted(wanted=wanted))


@pytest.mark.parametrize(
    ("moved", "said"), [(0.0, "0"), (2.4e-15, "0"), (2.4e-7, "2e-07"), (0.053, "0.05"), (1.73, "2")]
)
def test_a_change_is_written_to_one_digit_and_none_as_0(moved, said):
    assert written(moved) == said
    assert (said, "largest change by padding, as it runs") in headline(result() | {"padding": padding(as_run=moved)})


def test_the_first_bar_under_a_heading_is_the_default_which_the_heading_is_about():
    (chart,) = re.findall(r'aria-label="(as it runs[^"]*)"', render(result()))
    assert chart == (
        "as it runs: 0; padding run, three masks: 2e-07; padding run, the paper&#39;s two: 0.02; "
        "padding run, no masks: 0.5"
    )


def test_text_is_escaped_and_counted():
    page = render(result(documents=1))
    assert "own &lt;text&gt;.txt: 1 document, 2.0 million characters" in page
    assert "a [MASK] &lt;b&gt;" in page
    assert counted(3, "document") == "3 documents"
