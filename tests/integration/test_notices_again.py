"""A notice is written again from the stored value, as the model read it."""

import json
from typing import Any
from uuid import UUID

import pytest

from mcp_mirror.core.results.capture import CaptureRules
from mcp_mirror.core.results.processing import ProcessingOptions, process_result
from mcp_mirror.dashboard.previews import rebuild_notice
from mcp_mirror.paths import FixedBases
from mcp_mirror.settings.policies import MirrorPolicy
from mcp_mirror.types import Descriptor, Provenance

BASE = f"say-{UUID(int=7, version=4)}"
ROWS = [{"order_id": number, "status": "paid"} for number in range(2_000)]


@pytest.mark.parametrize("style", ["compact", "json", "opaque"])
@pytest.mark.parametrize("preview", [True, False])
@pytest.mark.parametrize(
    "members",
    [
        {"content": [], "structuredContent": {"rows": ROWS, "name": "x"}},
        {"content": [{"type": "text", "text": "".join(f"line {number} \u00e9\n" for number in range(5_000))}]},
        {"content": [{"type": "text", "text": json.dumps(ROWS)}]},
        {"content": [{"type": "text", "text": "word " * 600}]},
        {"content": [], "structuredContent": {"name": "x"}},
    ],
)
def test_the_notice_is_the_one_that_the_model_read(members: dict[str, Any], style: Any, preview: bool) -> None:  # noqa: FBT001
    mirror = MirrorPolicy(notice=style)
    rules = CaptureRules("auto", mirror.inline_budget, mirror.error_budget, is_wrapped=False, preview=preview)
    options = ProcessingOptions(rules, style, "say", b"{}", FixedBases(BASE, ""), 1_000)
    raw = {key: json.dumps(member, ensure_ascii=False).encode() for key, member in members.items()}
    processed = process_result(raw, options)
    draft = processed.captured.value
    assert draft is not None
    provenance = Provenance("up", "say", "0" * 64)
    known = Descriptor(
        BASE, draft.kind, len(draft.blob), draft.tokens, draft.members, 1.0, 2.0, provenance, preview=draft.preview
    )
    assert rebuild_notice(known, draft.blob, mirror, options.estimate) == processed.notice
