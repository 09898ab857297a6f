"""The size and tokens of a value in the form that a model reads."""

import json

import pytest

from mcp_mirror.core.value_sizes import count_bytes, count_value_tokens, size_text
from mcp_mirror.payload.json_spans import trim
from mcp_mirror.query.shape import Size
from mcp_mirror.query.texts import never
from mcp_mirror.tokens import estimate_tokens, expected_estimator
from mcp_mirror.types import Descriptor, Draft, Provenance

LINE = '2026-01-01 00:00:07 INFO "GET /things/{}" caf\u00e9 \u00fcber \U0001f600 C:\\logs\n'
EXPECTED = expected_estimator("default")


def log(lines: int) -> str:
    return "".join(LINE.replace("{}", str(number)) for number in range(lines))


@pytest.mark.parametrize("is_escaped", [True, False])
@pytest.mark.parametrize("text", ["", "plain", LINE, '\u0001\n"\\/', log(30_000)], ids=lambda text: text[:8])
def test_a_text_has_the_size_of_its_characters(text: str, is_escaped: bool) -> None:  # noqa: FBT001
    blob = b" %b\n" % json.dumps(text, ensure_ascii=is_escaped).encode()
    assert count_bytes(blob) == len(text.encode())
    assert size_text(blob, trim(blob)) == (len(text.encode()), text.count("\n"))


def test_other_values_have_the_size_of_their_json() -> None:
    assert [count_bytes(blob) for blob in (b' {"a": "\\n"} ', b"[1, 2]", b"1.50", b"null")] == [11, 6, 4, 4]
    blob = b'{"a": "\\u00e9"}'
    assert count_value_tokens(blob, estimate_tokens) == estimate_tokens(blob)


@pytest.mark.parametrize("lines", [3, 3_000, 60_000])
def test_the_tokens_of_a_text_do_not_depend_on_escapes(lines: int) -> None:
    text = log(lines)
    true = EXPECTED(text.encode())
    for is_escaped in (True, False):
        assert count_value_tokens(json.dumps(text, ensure_ascii=is_escaped).encode(), EXPECTED) == pytest.approx(
            true, rel=0.04
        )
    assert count_value_tokens(b'""', EXPECTED) == 0


def test_a_text_that_changes_in_its_middle_is_sampled_evenly() -> None:
    text = "word and word " * 100_000 + "\u0416\u0416 " * 200_000
    counted = count_value_tokens(json.dumps(text).encode(), EXPECTED)
    assert counted == pytest.approx(EXPECTED(text.encode()), rel=0.04)


def test_half_of_a_surrogate_pair_is_one_byte() -> None:
    assert count_bytes(b'"a\\ud800b"') == len("a?b")
    assert count_value_tokens(b'"%b"' % (b"\\ud800 word " * 40_000), EXPECTED) > 0


def test_a_very_large_text_is_measured_by_a_sample() -> None:
    text = 'one "line" of a log\n' * 1_600_000
    blob = json.dumps(text).encode()
    size, breaks = size_text(blob, trim(blob))
    assert size == pytest.approx(len(text), rel=0.002)
    assert breaks == 0


def test_a_text_of_backslashes_is_sampled_in_linear_time() -> None:
    assert count_bytes(b'"%b"' % (b"\\" * (1 << 26))) == pytest.approx(1 << 25, rel=0.002)


def test_a_stored_text_has_its_own_size_and_others_that_of_their_json() -> None:
    text, row = b'"a\\nb"', b'{"a": 1}'
    source = Provenance("up", "tool", "0" * 64)
    for blob, kind, size in ((text, "text", size_text(text, trim(text))), (row, "object", None)):
        draft = Draft(blob, kind, 1, text=size)  # type: ignore[arg-type]  # two kinds
        shown = size.size if size else None
        known = Descriptor("t-1", draft.kind, len(blob), 1, (), 0.0, 0.0, source, text_size=shown)
        assert draft.shown_size == known.shown_size == Size()(blob, never) == count_bytes(blob)
