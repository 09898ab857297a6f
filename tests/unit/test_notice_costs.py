"""The costs of notices in tokens of a real tokenizer, compared with the paper's wording.

Paths cost 22 to 40 tokens, depending on how the tokenizer cuts their digits, so costs are means over many paths.
"""

import json
import random
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from mcp_mirror.core.results.captured import Captured
from mcp_mirror.core.results.notice import write_notice
from mcp_mirror.core.results.notice_keys import NoticeInput
from mcp_mirror.core.results.preview import MAX_PREVIEW_TOKENS, preview_value
from mcp_mirror.core.value_sizes import TokenBudget
from mcp_mirror.paths import FixedBases
from mcp_mirror.payload.json_spans import members, trim
from mcp_mirror.settings.policies import NoticeStyle
from mcp_mirror.tokens import expected_estimator
from mcp_mirror.types import Draft, Kind

PATHS = 60
PAPER = 213
"""Tokens of the paper's own notice of the grid."""

ROW = [round(number / 7, 3) for number in range(128)]
GRID = {"raw_grid": [[ROW] * 128] * 128, "shape": [128, 128, 128]}
TEXT = "Brightwell GC-40 Glass and Surface Cleaner\n" * 140
TRACE: dict[str, tuple[str, dict[str, Any], Any]] = {
    "grid": ("generate_molecule_grid", {"molecule_description": "caffeine"}, GRID),
    "text": ("tika", {"pdf_path": "safety_data_sheet.pdf"}, TEXT),
}
"""The results of both workflows of the paper that are stored and not shown: tool, arguments, value."""


def describe(value: Draft, tool: str, arguments: Any) -> NoticeInput:
    bases, sent = FixedBases("PATH", ""), json.dumps(arguments).encode()
    return NoticeInput(value, Captured(), bases, tool, sent, expected_estimator("openai"))


@pytest.fixture(scope="module")
def cost(count_tokens: Callable[[str], int]) -> Callable[[str, NoticeStyle], float]:
    """The mean tokens of the notice of a result of the trace."""

    def mean(name: str, style: NoticeStyle) -> float:
        tool, arguments, value = TRACE[name]
        blob = json.dumps(value).encode()
        kind: Kind = "object" if isinstance(value, dict) else "text"
        known = members(blob, trim(blob)) if kind == "object" else ()
        stored = describe(Draft(blob, kind, 0, known), tool, arguments)
        notice, chance = write_notice(stored, style), random.Random(5)  # noqa: S311  # the same paths on every run
        bases = (f"{tool}-{UUID(int=chance.getrandbits(128), version=4)}" for _ in range(PATHS))
        return sum(count_tokens(notice.replace("PATH", base)) for base in bases) / PATHS

    return mean


@pytest.mark.slow
def test_a_notice_of_a_grid_costs_less_than_half_of_the_papers(cost: Callable[[str, NoticeStyle], float]) -> None:
    assert cost("grid", "compact") <= 0.46 * cost("grid", "paper")


def test_a_notice_of_a_text_costs_its_preview_and_few_words_more(cost: Callable[[str, NoticeStyle], float]) -> None:
    assert cost("text", "compact") <= MAX_PREVIEW_TOKENS + 60


def test_our_notice_of_the_grid_costs_a_third_of_the_papers_own_at_most(
    cost: Callable[[str, NoticeStyle], float],
) -> None:
    assert cost("grid", "compact") <= PAPER / 3


@pytest.mark.parametrize("name", TRACE)
def test_a_path_costs_at_most_a_third_of_a_notice_in_paper_style(
    name: str, cost: Callable[[str, NoticeStyle], float]
) -> None:
    assert cost(name, "opaque") <= 0.34 * cost(name, "paper")


_FIELDS = {f"field_{number}": f"value {number}" for number in range(25)}


@pytest.mark.parametrize(
    "value",
    [
        {f"some_long_key_{number}": "v" * 100 for number in range(25)} | {"rows": [_FIELDS] * 400},
        {f"漢字キー{number}名": "漢" * 300 for number in range(60)},
        {"rows": [_FIELDS] * 400, "total": 3},
    ],
    ids=["keys and a table", "keys of ideographs", "table"],
)
def test_keys_and_a_table_share_the_tokens_of_one_preview(value: Any, count_tokens: Callable[[str], int]) -> None:
    blob = json.dumps(value, ensure_ascii=False).encode()
    stored = describe(Draft(blob, "object", 0, members(blob, trim(blob))), "t", {})
    notice = write_notice(stored, "compact")
    assert ("fields of" in notice) == ("rows" in value)
    assert count_tokens(notice) <= 1.1 * MAX_PREVIEW_TOKENS + 30  # the estimate is within a tenth of the tokenizer


def test_a_preview_leaves_out_the_lines_that_no_longer_fit(count_tokens: Callable[[str], int]) -> None:
    blob = json.dumps("".join(f"{number:060}\n" for number in range(400))).encode()
    lines = preview_value(blob, "text", TokenBudget(lambda text: len(text) // 2, MAX_PREVIEW_TOKENS)).lines
    assert 2 < len(lines) < 7
    assert all(len(line) == 60 for line in lines if not line.startswith("..."))
    assert count_tokens("\n".join(lines)) < MAX_PREVIEW_TOKENS
