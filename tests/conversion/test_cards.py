"""The model card: whence, how, on what, how near; the licence is carried over or said to be missing."""

import pytest
import yaml

from mabert.conversion.card import FRONT, card, licences_of

REQUEST = {
    "teacher": "owner/teacher",
    "texts": ["/own/a.txt", "hub:b/c"],
    "direction": "forward",
    "length": 512,
    "delta": False,
}
BAND = {"cosine": 0.9876, "cosine_p10": 0.9, "neighbours": 0.75}
OUTCOME = {
    "use": "encoder",
    "pattern": "MTM",
    "teacher_reads": 512,
    "stages": {"align": {"tokens": 9000}, "end_to_end": {"tokens": 1234}},
    "agreement": {"bands": {"3-32": {"texts": 40, "student": BAND, "floor": {**BAND, "cosine": 0.5}}}},
}


@pytest.mark.parametrize(
    ("content", "licence"),
    [
        (b"---\nlicense: apache-2.0\nlanguage: en\n---\n# Teacher\n", ["apache-2.0"]),
        (b"---\nlicense: [mit, x]\n---\n", ["mit", "x"]),
        *((f"---\n{front}\n---\n".encode(), []) for front in ("tags: [a]", "license: {", "- a")),
        (b"\xff\xfe license: mit", []),
        (None, []),
    ],
)
@pytest.mark.parametrize(
    ("use", "called"),
    [("encoder", "model.embed("), ("classifier", "model.predict("), ("masked_lm", "model.fill_mask(")],
)
def test_it_says_whence_how_on_what_how_near_and_by_which_licence(tmp_path, content, licence, use, called):
    if content is not None:
        (tmp_path / "README.md").write_bytes(content)
    assert licences_of(tmp_path) == licence
    student = BAND if use == "encoder" else {**BAND, "answers": 0.925}
    bands = {"3-32": {**OUTCOME["agreement"]["bands"]["3-32"], "student": student}}
    text = card(tmp_path, REQUEST, {**OUTCOME, "use": use, "agreement": {"bands": bands}})
    assert (
        ("The same answer (of a regression" in text) == ("0.925 of texts of 3-32 tokens" in text) == (use != "encoder")
    )
    front = yaml.safe_load(FRONT.match(text)[1])
    assert front.get("license", []) in (licence, *licence)
    assert front["base_model"] == "owner/teacher"
    assert ("sentence-transformers" in front.get("tags", ())) == (use == "encoder")
    unknown = "Licence of the teacher: its folder does not say; find out before you pass this model on."
    assert (f"Licence of the teacher: {', '.join(licence)}." if licence else unknown) in text
    assert "Of its 3 attention layers\n2 became Mamba cores (forward): the schedule is `MTM`" in text
    assert "from 10,234 tokens" in text
    assert "`a.txt`, `hub:b/c`" in text
    assert "| 3-32 | 40 | 0.988 / 0.900 | 0.750 | 0.500 / 0.900 | 0.750 |" in text
    assert called in text
    assert "the cores alone" not in text
    assert "the cores alone" in card(tmp_path, {**REQUEST, "delta": True}, OUTCOME)
    assert text.count("model.") == 1
    compile(text.partition("```python\n")[2].partition("```")[0], "example", "exec")
