"""Plain sentences are found whatever the layout, and scrambled in their word order alone."""

import textwrap
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mabert_lab.english import FUNCTION_WORDS, installed_documentation, scrambled, sentences, split_sentences

GRAMMAR = st.tuples(
    st.sampled_from(["The", "A", "This", "Every"]),
    st.sampled_from(["kettle", "old kettle", "well-made kettle", "user's kettle"]),
    st.sampled_from(["is on", "was put under", "has been beside", "stands by"]),
    st.sampled_from(["the stove", "a narrow shelf", "the stove, the table and the chair"]),
    st.sampled_from(["all of the day", "since the morning", "because nobody ever moved it from there"]),
    st.sampled_from([".", "!", "?"]),
).map(lambda parts: " ".join(parts[:5]) + parts[5])
PARAGRAPHS = st.lists(st.lists(GRAMMAR, min_size=1, max_size=5).map(" ".join), min_size=1, max_size=4)


def skeleton(sentence):
    """The sentence's punctuation and spaces."""
    return "".join(letter for letter in sentence if not (letter.isalpha() or letter in "'-"))


@given(sentence=GRAMMAR)
def test_only_the_order_of_inner_words_changes(sentence):
    spoilt = scrambled(sentence)
    assert spoilt != sentence
    assert spoilt == scrambled(sentence)
    assert skeleton(spoilt) == skeleton(sentence)
    before, after = sentence.split(), spoilt.split()
    assert Counter(before) == Counter(after)
    assert all(
        new == old
        for place, (old, new) in enumerate(zip(before, after, strict=True))
        if not place or not old[-1].isalpha()
    )


@given(sentence=GRAMMAR)
def test_every_changed_place_swaps_a_function_word_and_another(sentence):
    changed = [pair for pair in zip(sentence.split(), scrambled(sentence).split(), strict=True) if pair[0] != pair[1]]
    assert len(changed) == 2 * (1 + len(sentence.split()) // 16)
    assert all((old.lower() in FUNCTION_WORDS) != (new.lower() in FUNCTION_WORDS) for old, new in changed)


@pytest.mark.parametrize("sentence", ["They have been with us.", "Kettles boil water.", "It, as, for, of, on."])
def test_a_sentence_without_two_kinds_of_words_is_not_scrambled(sentence):
    assert scrambled(sentence) is None


@given(paragraphs=PARAGRAPHS, width=st.integers(20, 100), gap=st.sampled_from(["\n\n", "\n \n\n"]))
def test_sentences_come_once_and_in_order_however_they_are_wrapped(paragraphs, width, gap):
    text = gap.join(textwrap.fill(paragraph, width, break_on_hyphens=False) for paragraph in paragraphs)
    flat = [sentence for paragraph in paragraphs for sentence in split_sentences(paragraph)]
    assert list(sentences([text, text])) == list(dict.fromkeys(flat))


@pytest.mark.parametrize(
    "text",
    [
        "The short one.",
        "the kettle is on the stove all day.",
        "The kettle is on the stove all day",
        "The kettle is on the stove for 3 days.",
        "Call x.close() when the kettle is on the stove.",
        "Introduction to kettles, stoves, tables, chairs, shelves.",
        "The " + "very " * 40 + "old kettle.",
    ],
)
def test_what_is_no_plain_sentence_is_left_out(text):
    assert list(sentences([text])) == []


@pytest.mark.parametrize("text", ["Mr. Smith lives here.", "See e.g. Figures by J. Doe of it."])
def test_abbreviations_and_initials_end_no_sentence(text):
    assert split_sentences(f"{text} {text}") == [text, text]


def test_documentation_is_the_docstrings_of_what_is_installed(tmp_path, monkeypatch):
    plain = "The kettle is on the stove all of the day."
    files = {
        "a.py": f'"""{plain}\n\n    x = 1\n"""\nraise SystemExit',
        "b/c.py": f'def f():\n    """{plain} The lid of it\n    was put under the narrow shelf."""',
        "tests/d.py": '"""The test of it was put under the shelf."""',
        "pydoc_data/topics.py": '"""The help of it was put under the shelf."""',
        "e.py": "# The comment of it was put under the shelf.",
        "f.txt": '"""The text of it was put under the shelf."""',
    }
    for name, text in files.items():
        (tmp_path / "lib" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lib" / name).write_text(text, encoding="utf-8")
    (tmp_path / "lib/g.py").symlink_to("nowhere")
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / "lib"))
    assert installed_documentation() == [plain, "The lid of it was put under the narrow shelf."]
