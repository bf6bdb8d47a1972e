"""The model card: whence, how, on what, how near; the licence is carried over or said to be missing."""

import pytest
import yaml

from mabert.conversion.card import FRONT, card, licence_of

REQUEST = {"teacher": "owner/teacher", "texts": ["a.txt", "b.txt"], "direction": "forward", "length": 512}
BAND = {"cosine": 0.9876, "cosine_p10": 0.9, "neighbours": 0.75}
OUTCOME = {
    "use": "encoder",
    "pattern": "MTM",
    "teacher_reads": 512,
    "stages": {"align": {"tokens": 9000}, "end_to_end": {"tokens": 1234}},
    "agreement": {"bands": {"3-32": {"texts": 40, "student": BAND, "floor": {**BAND, "cosine": 0.5}}}},
}


def fronted(folder, front):
    (folder / "README.md").write_text(f"---\n{front}\n---\n# Teacher\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("front", "licence"),
    [
        ("license: apache-2.0", "apache-2.0"),
        ("license: [mit, x]", None),
        ("tags: [a]", None),
        ("license: {", None),
        ("- a list", None),
    ],
)
def test_the_licence_stands_in_the_front_matter(tmp_path, front, licence):
    assert licence_of(fronted(tmp_path, front)) == licence


def test_without_a_card_or_front_matter_there_is_no_licence(tmp_path):
    assert licence_of(tmp_path) is None
    (tmp_path / "README.md").write_bytes(b"\xff\xfe license: mit")
    assert licence_of(tmp_path) is None


def test_a_licence_is_carried_over(tmp_path):
    text = card(fronted(tmp_path, "license: apache-2.0\nlanguage: en"), REQUEST, OUTCOME)
    front = yaml.safe_load(FRONT.match(text)[1])
    assert front["license"] == "apache-2.0"
    assert front["base_model"] == "owner/teacher"
    assert "sentence-transformers" in front["tags"]
    assert "Licence of the teacher: apache-2.0." in text


def test_a_missing_licence_is_said_to_be_missing(tmp_path):
    text = card(tmp_path, REQUEST, {**OUTCOME, "use": "classifier"})
    assert "license" not in yaml.safe_load(FRONT.match(text)[1])
    assert "Licence of the teacher: its folder does not say; find out before you pass this model on." in text


def test_it_says_from_what_how_on_what_and_how_near(tmp_path):
    text = card(tmp_path, REQUEST, OUTCOME)
    assert "Of its 3 attention layers\n2 became Mamba cores (forward): the schedule is `MTM`" in text
    assert "from 10,234 tokens" in text
    assert "`a.txt`, `b.txt`" in text
    assert "| 3-32 | 40 | 0.988 / 0.900 | 0.750 | 0.500 / 0.900 | 0.750 |" in text


@pytest.mark.parametrize(
    ("use", "called"),
    [("encoder", "model.embed("), ("classifier", "model.predict("), ("masked_lm", "model.fill_mask(")],
)
def test_the_example_asks_what_the_model_is_for(tmp_path, use, called):
    text = card(tmp_path, REQUEST, {**OUTCOME, "use": use})
    assert called in text
    assert text.count("model.") == 1
    compile(text.partition("```python\n")[2].partition("```")[0], "example", "exec")
