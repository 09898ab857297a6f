"""Texts in YAML, TOML and XML, read as JSON."""

import json

import pytest

from mcp_mirror.query.data_texts import read_data_text

YAML = """\
# a comment
name: web
replicas: 3
version: 1.10
mode: 0644
on: [push, yes]
since: 2026-11-30
at: 12:30:00
gone: ~
ok: true
quoted: "5"
block: |
  two
  lines
image: !Ref Image
"""
INI = {"x": "1", "db": {"Host": "a b", "port": "80"}, "web:1": {"path": "C:\\\\d", "empty": ""}}
BOMB = "a: &a [1]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 20)}]\n" for before, name in zip("abcde", "bcdef", strict=True)
)


def test_yaml_keeps_numbers_as_written_and_leaves_doubtful_words_as_text() -> None:
    found = read_data_text(YAML)
    assert found is not None
    assert b'"version":1.10' in found
    words = {"name": "web", "on": ["push", "yes"], "image": "Image", "quoted": "5", "block": "two\nlines\n"}
    numbers = {"replicas": 3, "version": 1.1, "mode": "0644", "since": "2026-11-30", "at": "12:30:00"}
    assert json.loads(found) == {**words, **numbers, "gone": None, "ok": True}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("---\na: 1\n---\na: 2\n---\n", [{"a": 1}, {"a": 2}]),
        ("- a\n- b: 1\n", ["a", {"b": 1}]),
        ("base: &b\n  x: 1\n  y: 2\nuse:\n  <<: *b\n  y: 3\n", {"base": {"x": 1, "y": 2}, "use": {"x": 1, "y": 3}}),
        ("one: &o {x: 1}\nuse:\n  <<: [*o, {x: 2, z: 4}]\n", {"one": {"x": 1}, "use": {"x": 1, "z": 4}}),
        ("Found it:\n\n```yaml\na: 1\nb: it is most of the text\n```\n", {"a": 1, "b": "it is most of the text"}),
        ("[[package]]\nname = 'a'\nsize = 1.50\n", {"package": [{"name": "a", "size": 1.5}]}),
        ("# TOML\r\n\r\n[tool]\r\nday = 2026-11-30\r\nmost = inf\r\n", {"tool": {"day": "2026-11-30", "most": "inf"}}),
        ("<?xml version='1.0'?><r><i id='1'>a</i><i/><i/></r>", {"r": {"i": [{"id": "1", "text": "a"}, "", ""]}}),
        ('// x\n{"a": 1.50, /* "b": 2, */ "c": "//d",\n}', {"a": 1.5, "c": "//d"}),
        ('{ // one\n"a": [1, 2, ],\n}\n', {"a": [1, 2]}),
        ("{a: 1,\n b: [2]}\n", {"a": 1, "b": [2]}),
        ('[ // all\n  {"a": 1},\n]\n', [{"a": 1}]),
        ("x = 1\n; main\n[db]\nHost = a b\nport=80\n\n[web:1]\n# x\npath: C:\\\\d\nempty =\n", INI),
        ("[Peer]\nKey = a=\nKey = b\n[Peer]\nKey = c\n", {"Peer": [{"Key": ["a=", "b"]}, {"Key": "c"}]}),
        ("\n<r>\n  <i>a &amp; b</i>\n</r>\n", {"r": {"i": "a & b"}}),
        ("<r><i>a</i><i>b</i>rest</r>", {"r": {"i": ["a", "b"], "text": "rest"}}),
    ],
)
def test_texts_become_values(text: str, value: object) -> None:
    assert json.loads(read_data_text(text) or b"0") == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "one: line",
        "Some prose.\nAnd more: of it.\nEnd",
        "Only\nprose.",
        "# only\n# comments\n",
        "a: 'open\nb: 1\n",
        "[Note]\nOnly prose.\n",
        "[2026-11-30 10:00] Ann: yes\n[2026-11-30 10:01] Bo: no\n",
        "a = b c\nd = e\n",
        "// prose\nand more\n",
        "{a: 1, // one\nb: 2}\n",
        '{"a": 1\n',
        "? [a, b]\n: c\nd: e\n",
        "a: 1\n<<: 5\n",
        "a: &a\n- *a\n",
        BOMB,
        "[" * 5000 + "\n",
        "a: 1\n" * (1 << 20),
        "<r>\n<i></r>",
        "<a>" * 5000 + "</a>" * 5000,
        '<!DOCTYPE r [<!ENTITY a "b">]>\n<r>&a;</r>',
        "<a>no end<br></a>",
        "<!DOCTYPE html>\n<html></html>",
        "<table><tr><td>1</td></tr></table>",
    ],
)
def test_other_texts_are_not_read(text: str) -> None:
    assert read_data_text(text) is None


def test_a_text_that_python_cannot_encode_is_not_read() -> None:
    assert read_data_text('a: "\ud800"\nb: 1\n') is None
