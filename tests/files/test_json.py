"""JSON: what any reader takes, whatever numbers and characters it is made of; what a file's content is known by."""

import ast
import hashlib
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mabert
from mabert.files import reading
from mabert.files.reading import finite, key_of, parse_json, to_json, whole_characters

SOURCE = Path(mabert.__file__).parents[1]
TEXTS = st.text(st.characters() | st.sampled_from("\ud83d\ude00\n"), max_size=5)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3) | st.tuples(inner, inner),
    max_leaves=9,
)


def no_constant(name):
    raise AssertionError(f"{name} stands in JSON")


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_any_value_is_written_as_any_reader_takes_it(value, ascii_only, indent):
    text = to_json(value, ascii_only=ascii_only, indent=indent)
    text.encode()
    found, meant = json.loads(text, parse_constant=no_constant), json.loads(json.dumps(finite(value)))
    assert whole_characters(found) == whole_characters(meant)


@given(
    st.dictionaries(st.text(max_size=3), st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text())
)
def test_keys_of_caches_and_runs_stay_as_json_makes_them(value):
    assert to_json(value, sort_keys=True) == json.dumps(value, sort_keys=True)
    backwards = dict(reversed(value.items()))
    assert key_of(backwards) == hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
    assert key_of(backwards, 8) == key_of(value)[:8]
    assert to_json(value, indent=1, ascii_only=False) == whole_characters(
        json.dumps(value, indent=1, ensure_ascii=False)
    )


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
@given(
    before=st.lists(st.text('NaInfity-"\\\\ é\\n', max_size=12) | st.sampled_from(["NaNcy", '"Infinity', "\\\\NaN"]))
)
def test_the_line_of_a_number_that_is_none_is_its_own_and_not_that_of_a_text(before, word):
    text = json.dumps(before, indent=0).removesuffix("]").rstrip() + ("," if before else "") + f"\n{word}]"
    with pytest.raises(
        ValueError, match=rf"there: not JSON: {word} is not a number; .* at column 1 in line "
    ) as refused:
        parse_json(text, "there")
    assert str(refused.value).endswith(f" {len(before) + 2}")


def test_what_json_does_not_have_is_an_error_unless_it_is_made_into_something():
    for number in (math.nan, math.inf, -math.inf):
        assert to_json({"a": [{"b": (number, 1.5)}], number: 2}) == '{"a": [{"b": [null, 1.5]}], "null": 2}'
    with pytest.raises(TypeError):
        to_json({"a": {1}})
    assert to_json({"a": {1}, "b": math.nan}, default=str) == '{"a": "{1}", "b": null}'


HALVES = st.text(st.sampled_from("a\ud83d\ude00\U0001f600"), max_size=5)


@given(st.recursive(HALVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(HALVES, inner, max_size=3)))
def test_half_of_a_surrogate_pair_is_read_as_one_character_at_any_depth(value):
    text = json.dumps(value)
    for spelled in (text, text.replace("\\ud", "\\uD")):
        found = parse_json(spelled, "there")
        assert found == whole_characters(json.loads(spelled))
        to_json(found, ascii_only=False).encode()


def test_places_in_a_text_stay_right():
    for text in ("a \ud83d b", "\ude00\ud83d", "\U0001f600 \ud83d"):
        found = whole_characters(text)
        assert len(found) == len(text)
        assert [letter for letter in found if letter != "\ufffd"] == [x for x in text if not "\ud800" <= x <= "\udfff"]


def test_all_json_is_written_by_one_function():
    elsewhere = []
    for file in SOURCE.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "json" in text else ():
            names = [node.attr] if isinstance(node, ast.Attribute) else []
            names += [each.name for each in node.names] if isinstance(node, ast.ImportFrom) else []
            if {"dump", "dumps", "JSONEncoder"} & set(names) and file != SOURCE / "mabert/files/reading.py":
                elsewhere.append((str(file.relative_to(SOURCE)), node.lineno))
    assert elsewhere == []


def test_digest_follows_the_content_and_samples_large_files(tmp_path, monkeypatch):
    path = tmp_path / "a.bin"
    path.write_bytes(b"x" * 1000)
    first = reading.digest(path)
    path.write_bytes(b"x" * 999 + b"y")
    assert reading.digest(path) != first
    monkeypatch.setattr(reading, "_BLOCK", 4)
    monkeypatch.setattr(reading, "_WHOLE_DIGEST_LIMIT", 256)
    sampled = reading.digest(path)
    path.write_bytes(b"z" + b"x" * 998 + b"y")
    assert reading.digest(path) != sampled
    path.write_bytes(b"x" * 998 + b"zy")
    assert reading.digest(path) != sampled
