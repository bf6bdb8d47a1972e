"""Labels that look alike, which are different classes all the same."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mabert.data.own import load_own
from mabert.data.tasks import Columns, alike, appearance
from tests.data.conftest import write_table

COLUMNS = Columns("text", label="topic")
CHANGES = {
    "decomposed": lambda text: unicodedata.normalize("NFD", text),
    "a space behind": lambda text: text + " ",
    "a no-break space before": lambda text: "\u00a0" + text,
    "a line end behind": lambda text: text + "\n",
    "a zero-width space": lambda text: text[:1] + "\u200b" + text[1:],
    "a byte order mark": lambda text: "\ufeff" + text,
    "a soft hyphen": lambda text: text[:1] + "\u00ad" + text[1:],
    "an emoji's selector": lambda text: text + "\ufe0f",
    "capitals": str.upper,
    "full width": lambda text: "".join(chr(ord(x) + 0xFEE0) if "!" <= x <= "~" else x for x in text),
    "two spaces": lambda text: text.replace(" ", "  "),
}


@given(st.text("ab\u00e9 \u00df\u0130\u6e2f\u0301x", min_size=1, max_size=6), st.sampled_from(list(CHANGES)))
def test_what_a_reader_does_not_see_changes_no_appearance(text, change):
    assert appearance(CHANGES[change](text)) == appearance(text)
    assert alike([text, CHANGES[change](text), text]) == [[text, CHANGES[change](text)]] * (
        CHANGES[change](text) != text
    )


def test_other_labels_do_not_look_alike():
    assert alike(["cafe", "caf\u00e9", "1", "01", "1.0", "a b", "ab", "-1", "", "B-PER"]) == []


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", ["classification", "several", "tokens"])
def test_labels_that_look_alike_stay_classes_and_are_shown_in_one_warning(tmp_path, caplog, kind, change):
    first = "caf\u00e9 1"
    second = CHANGES[change](first)
    label = {"several": lambda name: [name], "tokens": lambda name: [f"B-{name}"]}.get(kind, lambda name: name)
    named = {"tokens": ["x"], "tags": None} if kind == "tokens" else {"text": "x", "topic": None}
    rows = [dict(zip(named, (next(iter(named.values())), label(name)), strict=True)) for name in (first, second, "tea")]
    path = write_table(tmp_path / "t.jsonl", rows * 2)
    task, _ = load_own({"train": path, "validation": path}, COLUMNS, kind=kind)
    assert len(task.label_names) == 3 + (kind == "tokens")
    (record,) = caplog.records
    told = record.getMessage()
    assert told.startswith(f"{path}: labels that look alike are classes of their own: ")
    assert ascii(first) in told
    assert ascii(second) in told
    assert "tea" not in told
    assert told.isascii()
    assert "\n" not in told


def test_each_group_is_shown(tmp_path, caplog):
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps({"text": "x", "topic": name}) + "\n" for name in ("a", "A", "b", "B", "b ")))
    load_own({"train": path, "validation": path}, COLUMNS)
    assert caplog.messages == [
        f"{path}: labels that look alike are classes of their own: 'A' and 'a'; 'B' and 'b' and 'b '"
    ]


def test_an_unknown_label_that_looks_like_a_known_one_is_told_so(tmp_path):
    train, dev = (
        write_table(tmp_path / f"{n}.csv", [{"text": "x", "topic": t} for t in ("a", n)]) for n in ("b", "b ")
    )
    with pytest.raises(ValueError, match=r"line 3: unknown label 'b '; known are a, b; 'b' only looks like it$"):
        load_own({"train": train, "validation": dev}, COLUMNS)
