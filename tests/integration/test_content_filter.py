"""An upstream with hidden content: progress numbers and elicitation pass, text does not."""

from collections.abc import Mapping
from typing import Any

import mcp_types as types
import pytest

from mcp_mirror.callers import LOCAL, Caller, ClientChannel
from mcp_mirror.errors import RefusedError
from mcp_mirror.upstreams.content_filter import ContentFilteredChannel, build_hidden_refusal, refuse_sampling

CANARY = "c4nary"


class Client:
    """Records notifications and requests."""

    caller = Caller(LOCAL)
    log_level: str | None = "debug"
    wants_progress = True
    is_waiting = True

    def __init__(self, session_channel: ClientChannel | None = None) -> None:
        self.session_channel = session_channel
        self.received: list[tuple[str, Mapping[str, Any]]] = []

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        self.received.append((method, params))

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        await self.notify(method, params)
        return {"action": "accept"}


async def test_progress_passes_without_text_and_log_lines_do_not_pass() -> None:
    client = Client(Client())
    channel = ContentFilteredChannel(client)
    await channel.notify("notifications/progress", {"progressToken": 1, "progress": 2, "total": 3, "message": CANARY})
    await channel.notify("notifications/message", {"level": "error", "data": CANARY})
    await channel.notify("vendor/unknown", {"x": CANARY})
    await channel.notify("notifications/progress", {"progress": CANARY})
    await channel.notify("notifications/progress", {"progress": float("nan")})
    await channel.notify("notifications/progress", {"progress": 1 << 60})
    assert client.received == [
        ("notifications/progress", {"progress": 2, "total": 3}),
    ]
    assert (channel.caller, channel.log_level, channel.wants_progress, channel.is_waiting) == (
        client.caller,
        None,
        True,
        True,
    )
    assert isinstance(channel.session_channel, ContentFilteredChannel)
    assert ContentFilteredChannel(Client()).session_channel is None


async def test_elicitation_reaches_the_person_and_sampling_is_refused() -> None:
    client = Client()
    form = {"message": "Which one?", "requestedSchema": {"type": "object"}}
    assert await ContentFilteredChannel(client).request("elicitation/create", {**form, "x": CANARY}) == {
        "action": "accept"
    }
    assert client.received == [("elicitation/create", form)]
    with pytest.raises(RefusedError, match="sampling is refused"):
        await ContentFilteredChannel(client).request("sampling/createMessage", {"messages": CANARY})
    assert len(client.received) == 1
    with pytest.raises(RefusedError):
        refuse_sampling([{"method": "roots/list"}, {"method": "sampling/createMessage"}])


def test_a_hidden_error_has_its_code_and_a_missing_capability() -> None:
    missing = {"requiredCapabilities": {"sampling": {"x": CANARY}, CANARY: {}}}
    refused = build_hidden_refusal("one", "'say'", types.MISSING_REQUIRED_CLIENT_CAPABILITY, missing)
    assert refused.data == {"requiredCapabilities": {"sampling": {}}}
    assert str(refused) == (
        f"Upstream 'one' refused 'say' (error {types.MISSING_REQUIRED_CLIENT_CAPABILITY}). "
        "Its message is hidden (`preview: false`)."
    )
    wanted = build_hidden_refusal("one", "'say'", types.URL_ELICITATION_REQUIRED, {"elicitations": [CANARY]})
    assert (wanted.code, wanted.data) == (types.INTERNAL_ERROR, None)
    assert "wants the user to open a page" in wanted.peer_message
    assert build_hidden_refusal("one", "'say'", 1 << 40, {"x": CANARY}).code == types.INTERNAL_ERROR
