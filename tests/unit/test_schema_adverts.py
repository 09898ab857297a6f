"""The definition of a twin: its contents, description and costs."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_mirror.core.naming import fit_name
from mcp_mirror.core.schemas.references import Schema
from mcp_mirror.core.schemas.twin_schemas import admit_paths, build_twin

TEXT = {"type": "string"}
TOOL = {
    "name": "search",
    "title": "Search",
    "description": "Finds things. ",
    "inputSchema": {"type": "object", "properties": {"q": TEXT}},
    "outputSchema": {"type": "object"},
    "execution": {"taskSupport": "optional"},
    "annotations": {"readOnlyHint": True},
    "icons": [{"src": "x"}],
    "_meta": {"a/b": 1},
    "x-unknown": {"deep": [1e300]},
}


def test_an_advert_keeps_all_but_name_and_schemas() -> None:
    twin = build_twin(TOOL, "search_mirrored", admit_paths(TOOL["inputSchema"]), None)  # type: ignore[arg-type]
    assert twin == {
        **{key: TOOL[key] for key in ("title", "annotations", "icons", "_meta", "x-unknown")},
        "name": "search_mirrored",
        "description": "Finds things. Reads memory paths.",
        "inputSchema": {"type": "object", "properties": {"q": TEXT}},
    }


@pytest.mark.parametrize(
    ("tool", "schema", "description", "expected"),
    [
        ({}, {}, None, None),
        ({"description": None}, {"properties": {"a": TEXT}}, None, "Reads memory paths."),
        ({"description": "Old."}, {"properties": {}}, None, "Old."),
        (
            {"description": "Old."},
            {"anyOf": [{"properties": {"a": TEXT}}]},
            "New.",
            "New. Reads memory paths.",
        ),
        ({"description": "Old."}, {}, "", ""),
    ],
)
def test_a_twin_description_mentions_memory_paths(
    tool: Schema, schema: Schema, description: str | None, expected: str | None
) -> None:
    assert build_twin(tool, "x", admit_paths(schema), description).get("description") == expected


@pytest.mark.parametrize(
    ("description", "ended"),
    [
        ("Shows a commit", "Shows a commit."),
        ("Reads page 2\n", "Reads page 2."),
        ("As `<revision>:<path>`", "As `<revision>:<path>`."),
        ("Given as <revision>:<path>", "Given as <revision>:<path>."),
        ("Shows (a commit)", "Shows (a commit)."),
        ("A list [of rows]", "A list [of rows]."),
        ("An object {a: 1}", "An object {a: 1}."),
        ('A "name"', 'A "name".'),
        ("A 'name'", "A 'name'."),
        ("A \u201cname\u201d", "A \u201cname\u201d."),
        ("Is it there?", "Is it there?"),
        ("Arguments:", "Arguments:"),
        ("It says (a word.)", "It says (a word.)"),
        ('It says "a word."', 'It says "a word."'),
        ("- one\n- two;", "- one\n- two;"),
        ("\u8bfb\u3002", "\u8bfb\u3002"),
        ("As f()", "As f()."),
        ("```\ncode\n```", "```\ncode\n```"),
        ("-", "-"),
        ("`", "`"),
    ],
)
def test_the_hint_follows_a_sentence_that_has_ended(description: str, ended: str) -> None:
    twin = build_twin({"description": description}, "x", admit_paths({"properties": {"a": TEXT}}), None)
    assert twin["description"] == f"{ended} Reads memory paths."


def test_a_description_is_not_made_longer_than_openai_takes() -> None:
    schema = {"properties": {"a": TEXT}}
    for length, hinted in ((1003, True), (1004, True), (1005, False), (1024, False), (1025, True), (5000, True)):
        description = build_twin({"description": "x" * (length - 1) + "."}, "x", admit_paths(schema), None)[
            "description"
        ]
        assert (len(description), description.endswith("Reads memory paths.")) == (length + 20 * hinted, hinted)


def described(**arguments: Schema) -> Schema:
    return {"type": "object", "properties": arguments, "required": list(arguments)[:1]}


INTEGER, FLAG = {"type": "integer", "default": 10}, {"type": "boolean", "default": False}
TOOLS = {
    "read_file": described(path={"type": "string", "description": "Path of the file"}),
    "git_log": described(
        repo_path=TEXT, max_count={**INTEGER, "title": "Max Count"}, start={"anyOf": [TEXT, {"type": "null"}]}
    ),
    "search": described(
        query=TEXT,
        limit={"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None, "title": "Limit"},
        sort={"type": "string", "enum": ["asc", "desc"], "description": "Order of the results"},
        strict={**FLAG, "description": "Whether to match exactly"},
    ),
    "retrieve_similar_molecules": described(
        raw_grid={"type": "array", "items": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}},
        k=INTEGER,
    ),
    "send_email": described(
        to={"type": "array", "items": {"type": "string", "format": "email"}, "description": "Recipients"},
        subject={"type": "string", "maxLength": 200, "description": "Subject line"},
        body=TEXT,
    ),
    "plot": described(
        points={"type": "array", "items": {"$ref": "#/$defs/Point"}, "description": "The points"},
        style={"$ref": "#/$defs/Style", "description": "How to draw"},
    ),
    "none": {"type": "object", "properties": {}},
}
DEFINED = {
    "Point": {
        "type": "object",
        "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
        "required": ["x", "y"],
    },
    "Style": {"type": "string", "enum": ["line", "dots"], "title": "Style"},
}


ExtraTokens = Callable[[Schema, Schema], tuple[int, int]]


def advert_of(tool: Schema) -> Schema:
    return build_twin(tool, fit_name(tool["name"], "_mirrored"), admit_paths(tool["inputSchema"]), None)


CORPUS: list[Schema] = json.loads((Path(__file__).parent / "corpus_of_tools.json").read_text())
"""Tools as servers write them: by zod, by pydantic, by hand, from OpenAPI."""

DEARER = {"create_view": 84, "list_issues": 47, "outline": 69, "settings": 47, "update_user": 69}
"""Those that cost more than 10 tokens and 9 a place: by how tokens happen to be cut, or since what they refer to in
places of their own has to stand in `$defs`, so that it means the same in the twin."""


@pytest.mark.parametrize("name", TOOLS)
def test_a_twin_costs_few_tokens_more_than_its_tool(name: str, extra_tokens: ExtraTokens) -> None:
    schema = TOOLS[name] | ({"$defs": DEFINED} if name == "plot" else {})
    tool = {"name": name, "description": "Does what its name says, and well.", "inputSchema": schema}
    extra, places = extra_tokens(tool, advert_of(tool))
    assert extra <= 10 + 9 * places


def test_twins_of_tools_as_servers_write_them_cost_few_tokens_more(extra_tokens: ExtraTokens) -> None:
    costs = {tool["name"]: extra_tokens(tool, advert_of(tool)) for tool in CORPUS}
    assert len(costs) > 30
    assert costs.keys() > DEARER.keys()
    for name, (extra, places) in costs.items():
        assert extra <= max(10 + 9 * places, DEARER.get(name, 0)), name


WORDS = st.sampled_from(["query", "limit", "path", "repo_path", "max_count", "branch", "tags", "include_hidden"])
EXTRAS = st.fixed_dictionaries(
    {}, optional={"title": st.just("Max Count"), "description": st.sampled_from(["ISO date", "Number of results"])}
)
LEAF = st.sampled_from(
    [TEXT, INTEGER, FLAG, {"type": "number", "minimum": 1}, {"type": "string", "enum": ["asc", "desc"]},
     {"type": "string", "minLength": 1}, {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}]
)  # fmt: skip


@st.composite
def arguments(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    if draw(st.booleans()):
        return {"type": "array", "items": draw(inner)} | draw(EXTRAS)
    return described(**draw(st.dictionaries(WORDS, inner, max_size=5))) | draw(EXTRAS)


SCHEMAS = st.dictionaries(
    WORDS,
    st.recursive(st.builds(lambda leaf, extras: leaf | extras, LEAF, EXTRAS), arguments, max_leaves=8),
    max_size=6,
)


@given(drawn=SCHEMAS)
def test_a_twin_of_any_tool_costs_ten_tokens_and_ten_a_place_at_most(
    extra_tokens: ExtraTokens, drawn: dict[str, Schema]
) -> None:
    tool = {"name": "git_log", "description": "Shows the log.", "inputSchema": described(**drawn)}
    extra, places = extra_tokens(tool, advert_of(tool))
    assert extra <= 10 + 10 * places
