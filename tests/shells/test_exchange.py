"""Who makes a request, and what it wants to be told of."""

from typing import Any

import mcp_types as types
import pytest
from mcp.server import Server
from mcp.server.context import ServerRequestContext

from mcp_mirror.callers import LEVELS, Caller
from mcp_mirror.faces.exchange import is_wanted, read_caller

LOG = "notifications/message"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("severity", LEVELS)
def test_log_lines_are_wanted_from_a_level_on(severity: str, level: str) -> None:
    assert is_wanted(LOG, {"level": severity}, level) is (LEVELS.index(severity) >= LEVELS.index(level))


@pytest.mark.parametrize("params", [{"level": "error"}, {"level": "emergency", "data": 1}])
def test_no_log_line_is_wanted_by_who_has_not_asked_for_any(params: dict[str, Any]) -> None:
    assert not is_wanted(LOG, params, None)


@pytest.mark.parametrize("params", [{}, {"level": None}, {"level": "loud"}, {"level": ["error"]}, {"level": 3}])
def test_a_log_line_of_no_known_severity_is_not_wanted(params: dict[str, Any]) -> None:
    assert not is_wanted(LOG, params, "debug")


@pytest.mark.parametrize("level", [None, "debug", "emergency"])
@pytest.mark.parametrize("method", ["notifications/progress", "notifications/tools/list_changed", "vendor/own"])
def test_whatever_is_no_log_line_is_wanted(method: str, level: str | None) -> None:
    assert is_wanted(method, {"level": "debug"}, level)
