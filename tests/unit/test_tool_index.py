"""Searches of tools: words, ranking, and the summaries of matches."""

import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from mcp_mirror.core.tool_index import build_index, describe_in_one_line, split_words, stem_word, summarize_tool
from mcp_mirror.system.slices import finish


@dataclass
class Tool:
    tool: str
    description: Any = ""
    schema: dict[str, Any] = field(default_factory=dict)
    upstream: str = "up"
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.tool}_mirrored"

    @property
    def advert(self) -> dict[str, Any]:
        return {"description": self.description, "inputSchema": self.schema, **self.more}


def search(query: str, *tools: Tool, limit: int = 5) -> list[str]:
    return [name.removesuffix("_mirrored") for name in finish(build_index(tools)).search(query, limit)]


DEEP = {
    "properties": {
        "format": {"$ref": "#/$defs/Format"},
        "rules": {
            "type": "array",
            "items": {"anyOf": [{"properties": {"threshold": {"enum": ["Above", 5, None]}}}, 7]},
        },
    },
    "$defs": {"Format": {"properties": {"boldFace": {"description": "Of the font"}}, "enum": "none"}},
}


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("readText", ["readText", "fetch_page"]),
        ("the text", ["readText"]),
        ("reading texts", ["readText", "fetch_page"]),
        ("erase", ["delete_row"]),
        ("bold font", ["format_range"]),
        ("above", ["format_range"]),
        ("time zone", ["now"]),
        ("format", ["format_range"]),
        ("get rid", ["delete_row", "fetch_page", "readText"]),
        ("redirect", ["fetch_page"]),
        ("redi", ["fetch_page"]),
        ("red", []),
        ("weather", ["now"]),
        ("of the", []),
        ("", []),
        ("\u5929\u6c14", ["forecast"]),
    ],
)
def test_a_search_finds_tools_by_their_words_and_related_ones(query: str, found: list[str]) -> None:
    tools = (
        Tool("readText"),
        Tool("fetch_page", "Load a web page. It follows redirects."),
        Tool("delete_row", None),
        Tool("format_range", schema=DEEP),
        Tool("now", "In a timezone.", more={"title": "Clock", "annotations": {"title": "Weather"}}),
        Tool("forecast", "\u5929\u6c14\u9884\u62a5", schema={"properties": []}),
        Tool("--", "", more={"annotations": 7}),
    )
    assert search(query, *tools) == found


def test_a_word_in_the_name_counts_more_than_in_the_description() -> None:
    assert search("chart", Tool("other", "It is like a chart."), Tool("chart")) == ["chart", "other"]


def test_a_tool_with_more_words_of_the_search_is_first() -> None:
    tools = (Tool("a", "slack slack slack"), Tool("b", "slack message"), Tool("c", "message"))
    assert search("slack message", *tools)[0] == "b"


def test_a_tool_whose_name_is_the_search_is_first() -> None:
    described = "List all sheets of a spreadsheet: the spreadsheet of a spreadsheet id."
    schema = {"properties": {"spreadsheet": {"description": "The spreadsheet, as list spreadsheets lists it."}}}
    sheets = Tool("list_sheets", described, schema)
    for query in ("list spreadsheets", "Spreadsheet list", "list the spreadsheets", "listSpreadsheets"):
        assert search(query, sheets, Tool("list_spreadsheets", "Of a drive. " * 30))[0] == "list_spreadsheets"
    singular, plural = Tool("get_index", "Of the indexes. " * 30), Tool("get_indexes", "Get an index.")
    assert search("get index", plural, singular) == ["get_index", "get_indexes"]
    assert search("get indexes", singular, plural) == ["get_indexes", "get_index"]
    assert search("all", Tool("all"), sheets)[0] == "all"  # a word that other searches ignore
    assert search("...", Tool("..."), Tool("")) == []


def test_each_wording_of_a_search_counts_the_same() -> None:
    tools = (Tool("upload_picture_to_album"), Tool("store_image"), Tool("send_mail"))
    assert search("upload picture to album", *tools)[0] == "upload_picture_to_album"
    assert search("upload picture to album; store image; store image", *tools)[0] == "store_image"
    assert search(";; ;send mail;", *tools) == ["send_mail"]
    assert search("; ".join(["send mail"] * 20 + ["image"]), *tools)[0] == "send_mail"


def test_a_rare_related_word_counts_less_than_the_word_itself() -> None:
    assert search("delete", Tool("purge_cache"), *(Tool(f"delete_{name}") for name in "abcdefgh"))[0] == "delete_a"


def test_equal_matches_are_in_the_order_of_the_list_and_limited() -> None:
    assert search("word", *(Tool(f"t{number}", "word") for number in range(9)), limit=3) == ["t0", "t1", "t2"]


def test_a_search_of_no_tools_finds_nothing() -> None:
    assert search("word") == []


@pytest.mark.parametrize(
    ("word", "stem"),
    [
        ("repositories", "repository"),
        ("files", "fil"),
        ("file", "fil"),
        ("branches", "branch"),
        ("boxes", "box"),
        ("status", "status"),
        ("class", "class"),
        ("running", "run"),
        ("calling", "call"),
        ("deleted", "delet"),
        ("string", "string"),
        ("deployment", "deploy"),
        ("option", "option"),
        ("bus", "bus"),
        ("ies", "ies"),
        ("x" * 99 + "s", "x" * 32),
    ],
)
def test_stems_have_no_endings(word: str, stem: str) -> None:
    assert stem_word(word) == stem


def test_names_are_split_at_case_changes_digits_and_punctuation() -> None:
    assert split_words("getHTTPResponse2XX_page-id") == ["get", "http", "response", "2", "xx", "page", "id"]


@pytest.mark.parametrize(
    ("schema", "signature"),
    [
        ({}, "t()"),
        ({"properties": [], "required": 5}, "t()"),
        (
            {"properties": {"b": {"type": "boolean"}, "a": {"type": "integer"}}, "required": ["a"]},
            "t(a: int, b?: bool)",
        ),
        ({"properties": {"a": {"type": ["number", "null"]}, "b": {}}}, "t(a?: number, b?: any)"),
        ({"properties": {"a": {"enum": ["x", "y"]}, "b": {"enum": list("abcdefg")}}}, "t(a?: x|y, b?: string)"),
        ({"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "array"}]}}}, "t(a?: array|string)"),
        ({"properties": {"a\u200b": True}}, "t(a\\u200b?: any)"),
        (
            {"properties": {f"p{number}": {"type": "string"} for number in range(30)}},
            f"t({', '.join(f'p{number}?: string' for number in range(24))}, ...)",
        ),
    ],
)
def test_a_signature_has_types_and_required_arguments_first(schema: dict[str, Any], signature: str) -> None:
    tool = Tool("t", schema=schema)
    assert summarize_tool("t", tool.advert, tool.advert["inputSchema"]) == signature


def test_a_summary_has_the_first_sentence_on_one_line() -> None:
    advert = Tool("t", "  Read it,\n whole. And more.").advert
    assert summarize_tool("t", advert, {}) == "t()\n  Read it, whole."
    assert len(describe_in_one_line("word " * 999).encode()) <= 160


def test_a_signature_is_bounded() -> None:
    tool = Tool("t", schema={"properties": {"x" * 999: {}}})
    assert len(summarize_tool("t", tool.advert, tool.advert["inputSchema"])) <= 403


def test_a_tool_with_very_many_arguments_is_summarized_in_linear_time() -> None:
    names = [f"argument_{number}" for number in range(50_000)]
    schema = {"type": "object", "properties": {name: {} for name in names}, "required": names[1:]}
    began = time.process_time()
    assert summarize_tool("f", {"inputSchema": schema}, schema).startswith("f(argument_1: any, argument_2: any")
    assert time.process_time() - began < 2
