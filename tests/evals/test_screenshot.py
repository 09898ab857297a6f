"""Images of results reach a model that sees, with the gateway and without it. The model is a scripted reader."""

import httpx2
import pytest
from reader import NEEDS_TESSERACT, read_chart
from scripted import scripted_server
from scripted_runs import CASES, setting_of

from mcp_mirror.evals.endpoint import Endpoint
from mcp_mirror.evals.log import Record
from mcp_mirror.evals.matrix import PLAIN, Model
from mcp_mirror.evals.profiles import load_case
from mcp_mirror.evals.single_run import run_setting

pytestmark = pytest.mark.usefixtures("forked_servers")

CALL = {"draw_chart": {"station": "harbour"}}


async def run(*, gateway: bool, vision: bool) -> Record:
    case = load_case(CASES / "screenshot.md")
    with scripted_server() as server:
        server.scripts["reader"] = [CALL, read_chart]
        model = Model("scripted", server.url, vision=vision)
        setting = setting_of(case, model, gateway=gateway, style="compact" if gateway else PLAIN)
        async with httpx2.AsyncClient(timeout=60) as client:
            return await run_setting(setting, Endpoint(client, server.url, "reader", pauses=()))


@NEEDS_TESSERACT
@pytest.mark.parametrize("gateway", [True, False])
async def test_a_picture_is_read(*, gateway: bool) -> None:
    record = await run(gateway=gateway, vision=True)
    assert [check for check in record["checks"] if not check["passed"]] == []
    assert record["success"]
    assert "base64," not in str(record["messages"])


async def test_a_model_without_vision_gets_no_picture() -> None:
    record = await run(gateway=True, vision=False)
    assert record["answer"] == "I see no picture."
    assert "[image image/png" in record["made"][0]["result"]
    assert not record["success"]
