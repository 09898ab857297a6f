"""A notice of an upstream without previews contains no byte of the upstream; positions name its keys."""

import json
import re
from collections.abc import Mapping
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from preview_samples import CANARY, RESULTS

from mcp_mirror.core.catalog import CatalogRules, build_catalog
from mcp_mirror.core.replies import MAX_ERROR_BYTES, build_error_reply
from mcp_mirror.core.results.capture import CaptureRules
from mcp_mirror.core.results.processing import ProcessedResult, ProcessingOptions, process_result
from mcp_mirror.paths import FixedBases, MemoryPath, parse_path, position_token
from mcp_mirror.payload.json_spans import Miss, locate
from mcp_mirror.security.sanitize import sanitize_ends, sanitize_lines
from mcp_mirror.settings.policies import MirrorPolicy, NoticeStyle
from mcp_mirror.settings.upstreams import StdioEndpoint, ToolPolicy, UpstreamPolicy
from mcp_mirror.system.slices import finish
from mcp_mirror.types import Span

STYLES = get_args(NoticeStyle)
BASE = "say-9c1d4f0e-6a55-4b8e-9d0a-0f3b2f6f6a11"
OTHER = "say-11111111-6a55-4b8e-9d0a-0f3b2f6f6a11"


def read(result: Mapping[str, Any], style: NoticeStyle = "compact", **rules: Any) -> ProcessedResult:
    capture_rules = CaptureRules(
        **{"mode": "auto", "inline_budget": 800, "error_budget": 2000, "is_wrapped": False, **rules}, preview=False
    )
    order = ProcessingOptions(capture_rules, style, "say", b"{}", FixedBases(BASE, OTHER), 1 << 16)
    members = {key: json.dumps(value).encode() for key, value in result.items()}
    return process_result(members, order)


@pytest.mark.parametrize("mode", ["auto", "always", "never"])
@pytest.mark.parametrize("is_error", [False, True])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", RESULTS)
def test_a_notice_without_preview_contains_no_upstream_text(
    name: str, style: NoticeStyle, mode: str, *, is_error: bool
) -> None:
    digest = read({**RESULTS[name], "isError": is_error}, style, mode=mode)
    captured, shown = digest.captured, json.dumps({key: bytes(raw).decode() for key, raw in digest.members.items()})
    assert CANARY not in digest.notice + shown
    assert (captured.shown, captured.passed, captured.error) == (None, (), None)
    assert (captured.value is None) is (name in ("nothing", "members nobody knows"))
    if captured.value is None:
        assert digest.members == {"content": b"[]", "isError": json.dumps(is_error).encode()}
        return
    assert CANARY in bytes(captured.value.blob).decode() + bytes(captured.other_members).decode()
    drafts = [captured.value, *([captured.companion] if captured.companion else [])]
    assert {(draft.preview, draft.media_type) for draft in drafts} == {(False, None)}
    assert digest.notice.startswith(BASE) or f'"{BASE}"' in digest.notice
    assert "could not be stored" in shown
    assert ("error" in digest.notice) is (is_error and style != "opaque")


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("compact", '"~#0" text 6 B, "~#1" array[2x2], "~#2" object 15 B, "~#3" number 1 B'),
        ("paper", f'- "{BASE}/~#0"\n- "{BASE}/~#1"\n- "{BASE}/~#2"\n- "{BASE}/~#3"'),
        ("json", '{"~#0": "text 6 B", "~#1": "array[2x2]", "~#2": "object 15 B", "~#3": "number 1 B"}'),
    ],
)
def test_hidden_keys_are_positions_and_values_are_types_and_sizes(style: NoticeStyle, expected: str) -> None:
    assert expected in read(RESULTS["structured"], style).notice


@given(
    st.dictionaries(st.text(max_size=9), st.one_of(st.integers(), st.text(max_size=9)), max_size=9), st.integers(0, 9)
)
def test_a_position_resolves_to_its_member(value: dict[str, Any], position: int) -> None:
    path = parse_path(f"{BASE}/{position_token(position)}")
    assert path == MemoryPath(BASE, (position,))
    assert str(path) == f"{BASE}/~#{position}"
    blob = json.dumps(value).encode()
    found = locate(blob, path.tokens)
    members = list(value.values())
    if position >= len(members):
        assert isinstance(found, Miss)
    else:
        assert isinstance(found, Span)
        assert json.loads(blob[found.start : found.stop]) == members[position]


@pytest.mark.parametrize(
    ("pointer", "tokens"),
    [
        ("/~#0/~#12/a", (0, 12, "a")),
        ("/~0#0", ("~#0",)),
        ("/#0", ("#0",)),
        ("/~#", ("~#",)),
        ("/~#01", ("~#01",)),
        ("/~#-1", ("~#-1",)),
        ("/~#1234567890", ("~#1234567890",)),
    ],
)
def test_a_token_that_is_not_a_position_is_a_key(pointer: str, tokens: tuple[str | int, ...]) -> None:
    path = parse_path(f"{BASE}{pointer}")
    assert path is not None
    assert path.tokens == tokens


def test_a_key_that_looks_like_a_position_can_be_escaped() -> None:
    blob = b'{"a": 1, "~#0": 2, "~0": 3}'
    for token, text in (("~#0", b"1"), ("~0#0", b"2"), ("~00", b"3")):
        path = parse_path(f"{BASE}/{token}")
        assert path is not None
        found = locate(blob, path.tokens)
        assert isinstance(found, Span)
        assert blob[found.start : found.stop] == text


def test_a_position_in_an_array_is_that_of_an_item() -> None:
    assert locate(b"[5, [6, 7]]", (1, 0)) == Span(5, 1)


def test_an_upstream_without_previews_lists_only_twins() -> None:
    tools = [{"name": "say", "inputSchema": {"type": "object"}}]
    shown, unseen = UpstreamPolicy("a", StdioEndpoint("x")), UpstreamPolicy("b", StdioEndpoint("x"), preview=False)
    names = {
        policy.name: set(
            finish(build_catalog([(policy, tools)], CatalogRules(MirrorPolicy(expose_originals=True)))).entries
        )
        for policy in (shown, unseen)
    }
    assert names == {"a": {"say", "say_mirrored"}, "b": {"say_mirrored"}}
    assert (shown.may_capture, unseen.may_capture) == (False, True)
    assert replace(shown, overrides=(("x", ToolPolicy(capture="auto")),)).may_capture


HIDDEN = st.sampled_from("\u200b\u200d\u202e\u2066\ufeff\u00ad\ufe0f\U000e0041\U000e0100\x00\x1b\x7f\u2028\u3164")
ANY_TEXT = st.text(st.one_of(HIDDEN, st.characters(codec="utf-8")), max_size=200)
SEEN = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\u00ad\ufe00-\ufe0f\U000e0000-\U000e0fff\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u3164\ud800-\udfff]")  # fmt: skip  # noqa: E501  # one class


@given(ANY_TEXT, st.integers(1, 200))
def test_no_error_is_long_and_nothing_is_hidden_in_it(text: str, times: int) -> None:
    message = build_error_reply(f"There is no tool {text * times}")["content"]
    assert not isinstance(message, bytes | memoryview)
    message_text = json.loads(b"".join(map(bytes, message)))[0]["text"]
    assert not SEEN.search(message_text)
    assert len(message_text.encode()) <= MAX_ERROR_BYTES
    assert sanitize_lines("a\n\tb", 10) == "a\n\tb"


@given(st.dictionaries(ANY_TEXT, ANY_TEXT, max_size=5), st.sampled_from(STYLES), st.booleans())
def test_every_notice_is_short_printable_ascii(
    value: dict[str, str],
    style: NoticeStyle,
    is_error: bool,  # noqa: FBT001  # hypothesis gives it so
) -> None:
    notice = read({"content": [], "structuredContent": value, "isError": is_error}, style).notice
    assert re.fullmatch(r"[\x20-\x7e\n]*", notice)
    assert len(notice.encode()) < 2000


def test_of_a_long_error_the_beginning_and_the_end_are_shown() -> None:
    assert sanitize_ends("short\n", 100) == "short\n"
    assert sanitize_ends("a" * 100, 100) == "a" * 100
    shown = sanitize_ends(f"begins{'x' * 200}ends", 100)
    assert shown == f"begins{'x' * 36}...\n...\n{'x' * 41}ends"
    assert len(sanitize_ends("\u200b" * 90, 100).encode()) <= 100
