"""`key=value` to arguments."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ztrio_cli.arguments import parse_arguments, parse_object
from ztrio_cli.console import Complaint

SCHEMA = {
    "properties": {
        "title": {"type": "string"},
        "kind": {"enum": ["a", "b"], "type": "string"},
        "anything": {},
        "count": {"type": "integer"},
        "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "maybe": {"oneOf": [{"type": "string"}, {"type": "null"}]},
        "types": {"type": ["number", "null"]},
        "rows": {"type": "array", "items": {"type": "integer"}},
        "model": {"$ref": "#/$defs/Model"},
        "name": {"$ref": "#/$defs/Name"},
    },
    "$defs": {"Model": {"type": "object"}, "Name": {"type": "string"}},
}


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("title=2024", {"title": "2024"}),
        ("title=", {"title": ""}),
        ("title=a=b", {"title": "a=b"}),
        ("title:=null", {"title": None}),
        ("kind=a", {"kind": "a"}),
        ("anything=[1]", {"anything": "[1]"}),
        ("anything:=[1]", {"anything": [1]}),
        ("count=3", {"count": 3}),
        ("count=9007199254740993", {"count": 2**53 + 1}),
        ("either=null", {"either": None}),
        ("maybe=null", {"maybe": "null"}),
        ("types=1.5", {"types": 1.5}),
        ("rows=[1, 2]", {"rows": [1, 2]}),
        ('model={"a": true}', {"model": {"a": True}}),
        ("name=true", {"name": "true"}),
        ("unknown=1", {"unknown": "1"}),
    ],
)
def test_the_schema_decides_what_a_value_is(word: str, expected: dict[str, Any]) -> None:
    """Text stays text where the schema takes text; elsewhere a value is JSON."""
    assert parse_arguments([word], SCHEMA) == expected


@pytest.mark.parametrize("words", [["title"], ["=x"], [":=1"], ["count=three"], ["count=NaN"], ["title=a", "title=b"]])
def test_a_word_that_cannot_be_read_is_named(words: list[str]) -> None:
    """Each bad word is a usage error that shows it."""
    with pytest.raises(Complaint) as caught:
        parse_arguments(words, SCHEMA)
    assert (caught.value.code, caught.value.status) == ("USAGE", 2)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(JSON)
def test_every_json_value_can_be_given(value: Any) -> None:
    """`key:=json` gives any JSON value unchanged, whatever the schema says."""
    assert parse_arguments([f"title:={json.dumps(value)}"], SCHEMA) == {"title": value}


@given(st.text())
def test_every_text_can_be_given(text: str) -> None:
    """`key=text` gives any text unchanged."""
    assert parse_arguments([f"title={text}"], SCHEMA) == {"title": text}


@pytest.mark.parametrize("text", ["[1]", "{", "1"])
def test_arguments_must_be_an_object(text: str) -> None:
    """`--arguments` takes a JSON object and nothing else."""
    with pytest.raises(Complaint, match="--arguments"):
        parse_object(text)
