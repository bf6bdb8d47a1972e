"""The page of the tour shows what was measured, all of it and nothing else."""

import re

import pytest

from mabert_lab import demo
from mabert_lab.report.charts import line_chart
from tests.lab.pages import cells


def render(told):
    """The page, its lines joined."""
    return " ".join(demo.render(told).split())


def result(stages=((128, 70), (512, 30)), documents=3):
    """Of a tour that had no teacher."""
    run = [{"loss": 0.7, "step": 4}, *({"epoch": float(n), "eval_accuracy": 0.6 + 0.1 * n} for n in (1, 2, 3))]
    losses = [{"loss": 8.0 - step / 50, "step": step} for step in range(10, 101, 10)]
    losses += [{"eval_loss": 7.0 - step / 50, "step": step} for step in (50, 100)]
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
            "history": losses,
        },
        "fine-tuning": {name: {"accuracy": 0.9, "history": run} for name in ("pretrained", "from scratch")},
        "masks": [{"text": "a [MASK] <b>", "guesses": [{"token": "bird", "probability": 0.25}]}],
        "padding": padding(),
        "examples": [{"text": "It is so.", "truth": "real", "verdict": "scrambled"}],
    }


def padding(as_run=0.0):
    runs = ("as it runs", "padding run, three masks", "padding run, the paper's two", "padding run, no masks")
    return dict(zip(runs, (as_run, 2.25e-7, 0.0213, 1.333), strict=True))


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


def converted(places=(1, 1, 4, 1, 2), bands=True, wanted=400_000):
    """Of a tour that had one."""
    told = {"texts": 9, **{name: {"cosine": 0.97, "neighbours": 0.8} for name in ("student", "floor")}}
    times = {"median_ms": 12.0, "fastest_ms": 11.0, "slowest_ms": 17.9}
    sides = {"student": times, "teacher": times | {"slowest_ms": 18.1}, "teacher, mabert's attention": times}
    found = result()
    del found["left_out"]
    outcome = {
        "pattern": "MTM",
        "importance": [0.1, 0.4, 0.2],
        "agreement": {"bands": {"3-32": told} if bands else {}},
        "speed": [{"length": 128, **sides}, {"length": 1024, "student": times}],
        "stages": {"align": {"tokens": 300_000}, "end_to_end": {"tokens": 100_000}},
    }
    return found | {
        "conversion": {"teacher": "owner/<teacher>", "wanted": wanted, "seconds": 100.0, "outcome": outcome},
        "questions": {
            "passages": 500,
            "alike": 0.973,
            "help": True,
            "answers": [answer(number, place) for number, place in enumerate(places, 1)],
        },
    }


def dots(svg):
    """The markers on the curves, which are drawn by `use` within the clipped area; those of the axes are not."""
    return sum(len(re.findall(r"<use\b", group)) for group in re.findall(r"<g clip-path=.*?</g>", svg, re.S))


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

    monkeypatch.setattr("mabert_lab.report.charts.line_chart", spy)
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
def test_an_agreement_that_was_not_measured_is_left_out(there):
    page = render(converted(bands=there))
    assert ("<b>0.970</b>cosine to the teacher" in page) == ("nearest neighbours found" in page) == there


def test_a_time_stands_once_with_its_spread_and_a_noisy_one_says_so():
    page = render(converted())
    calm, noisy = "12 ms (11 to 17.9)", "12 ms (11 to 18.1), noisy"
    at = cells(page).index("128")
    assert [each.strip() for each in cells(page)[at : at + 8]] == ["128", calm, noisy, calm, "1,024", calm, "", ""]
    assert page.count(calm) + page.count(noisy) == page.count(" ms") == 4
    assert set(re.findall(r'<span class="(.*?)"', page)) == {"figure whole"}, "charts fit whole on a phone"


@pytest.mark.parametrize(("wanted", "said"), [(400_000, ""), (500_000, ", which is nearly all that the text has")])
def test_a_text_that_was_too_short_is_told(wanted, said):
    assert f"400,000 tokens without labels{said}, to say" in render(converted(wanted=wanted))


@pytest.mark.parametrize(("moved", "said"), [(0.0, "0"), (2.4e-15, "0"), (2.44e-7, "2.44e-07"), (1.333, "1.33")])
def test_a_change_has_three_digits_and_none_is_0_at_the_top_and_in_the_table(moved, said):
    page = render(result() | {"padding": padding(moved)})
    assert f"<b>{said}</b>largest change by padding, as it runs" in page
    at = cells(page).index("as it runs")
    assert cells(page)[at + 1 : at + 8 : 2] == [said, "2.25e-07", "0.0213", "1.33"]


def test_text_is_escaped_and_counted():
    assert "own &lt;text&gt;.txt: 3 documents, 2.0 million characters" in render(result())
    page = render(result(documents=1))
    assert "own &lt;text&gt;.txt: 1 document, 2.0 million characters" in page
    assert "a [MASK] &lt;b&gt;" in page
    assert "bird 25 %" in page
