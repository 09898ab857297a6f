"""All members that an upstream sends reach the client unchanged, in every combination of client and upstream."""

from typing import Any

import pytest
from relay_setup import RelaySetup

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

STRANGE = {"x-strange": {"kept": [1, None, {"deep": "ü"}]}}
META = {"_meta": {"example.com/of": "us", "nested": {"n": 1}}}
ANNOTATIONS = {
    "annotations": {"audience": ["user"], "priority": 0.5, "lastModified": "2026-01-01T00:00:00Z", **STRANGE}
}
ICONS = [{"src": "https://example.com/icon.png", "mimeType": "image/png", "sizes": ["48x48"], **STRANGE}]
MORE = {**STRANGE, **META, **ANNOTATIONS}
TEXT = {"type": "text", "text": "words \u2028 and \U0001f600", **MORE}
IMAGE = {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png", **MORE}
AUDIO = {"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav", **MORE}
EMBEDDED = {
    "type": "resource",
    "resource": {"uri": "notes://one", "mimeType": "text/plain", "text": "inside", **STRANGE, **META},
    **MORE,
}
BLOB = {"type": "resource", "resource": {"uri": "notes://pixel", "blob": "iVBORw0KGgo=", **STRANGE}, **MORE}
LINK = {
    "type": "resource_link",
    "uri": "notes://one",
    "name": "one",
    "title": "One",
    "size": 7,
    "icons": ICONS,
    **MORE,
}
RESULTS: dict[str, dict[str, Any]] = {
    "text": {"content": [TEXT]},
    "image": {"content": [IMAGE]},
    "audio": {"content": [AUDIO]},
    "embedded": {"content": [EMBEDDED]},
    "blob": {"content": [BLOB]},
    "link": {"content": [LINK]},
    "mixed": {"content": [TEXT, IMAGE, LINK, AUDIO, EMBEDDED, TEXT]},
    "nothing": {"content": []},
    "error": {"content": [TEXT], "isError": True},
    "structured": {"content": [TEXT], "structuredContent": {"z": 1, "a": [None, 1.5, "ü"], **STRANGE}},
    "unknown type": {"content": [{"type": "hologram", "waves": [1, 2], **MORE}]},
    "unknown members": {"content": [TEXT], "x-cost": {"cents": 3}, "later": None, **META},
}
SDK_STAMPS = {"io.modelcontextprotocol/serverInfo"}
"""The `_meta` members that a 2026-07-28 server adds itself."""


def without_envelope(result: dict[str, Any]) -> dict[str, Any]:
    """A result without what is between the gateway and its client: whose it is, and that it is one."""
    meta = {key: value for key, value in result.get("_meta", {}).items() if key not in SDK_STAMPS}
    rest = {key: value for key, value in result.items() if key not in ("resultType", "_meta")}
    return {**rest, "_meta": meta} if meta else rest


@pytest.mark.parametrize("name", RESULTS)
async def test_a_result_passes_untouched(setup: RelaySetup, name: str) -> None:
    result = RESULTS[name]
    received = await setup.wire(lambda: setup.client.call_tool("raw_mirrored", {"value": result}))
    assert without_envelope(received) == result


async def test_tool_definitions_keep_all_members_of_the_upstream(setup: RelaySetup) -> None:
    client = setup.client
    for member, request, is_ours in (
        ("tools", client.list_tools, lambda item: not item["name"].endswith("_mirrored")),
        ("resources", client.list_resources, lambda item: item["uri"].startswith(("mcp-mirror:", "memory:"))),
        ("resourceTemplates", client.list_resource_templates, lambda item: item["uriTemplate"].startswith("memory:")),
        ("prompts", client.list_prompts, lambda _item: False),
    ):
        listed = (await setup.wire(lambda request=request: request(cache_mode="bypass")))[member]  # type: ignore[misc]
        items = [item for item in listed if not is_ours(item)]
        assert items
        for item in items:
            assert item["x-strange"] == STRANGE["x-strange"]
            assert item["_meta"] == {"example.com/of": "us"}
            assert item["icons"] == ICONS
            assert item["title"] == "A title"
            assert item["annotations"] == {"audience": ["user"], "readOnlyHint": True, **STRANGE}


async def test_resources_and_prompts_keep_all_members_of_the_upstream(setup: RelaySetup) -> None:
    read = await setup.wire(lambda: setup.client.read_resource("notes://one", cache_mode="bypass"))
    assert read["contents"] == [
        {
            "uri": "notes://one",
            "mimeType": "text/plain",
            "text": "What is at notes://one.",
            **STRANGE,
            "_meta": {"example.com/of": "us"},
        }
    ]
    filled = await setup.wire(lambda: setup.client.get_prompt("greet", {"who": "Ada"}))
    assert filled["messages"] == [
        {
            "role": "user",
            "content": {"type": "text", "text": "Greet Ada, kindly."},
            **STRANGE,
            "_meta": {"example.com/of": "us"},
        }
    ]
