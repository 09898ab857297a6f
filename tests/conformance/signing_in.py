"""The suite's `auth/*` scenarios: a gateway that signs in, and the person whom it asks to.

The person opens the page that `mcp-mirror login` names; the suite's authorization server lets everybody in at once.
"""

import asyncio
import json
import os
import re
import shlex
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import httpx2

_BOUND: Final = 50.0
"""Seconds that signing in may take."""
_ATTEMPTS: Final = 3
"""Times that the person signs in before they give up."""
_CLIENT_METADATA: Final = "https://conformance-test.local/client-metadata.json"
"""Where the suite says that a description of its client would be."""
_ASKED: Final = re.compile(r"mcp-mirror login suite( --scope '[^']*')?")

Play = Callable[[], Awaitable[None]]


async def find_issuer(url: str) -> str:
    """The authorization server that the suite's server names."""
    async with httpx2.AsyncClient(timeout=_BOUND) as client:
        metadata = await client.get(httpx2.URL(url).join("/.well-known/oauth-protected-resource/mcp"))
        return str(metadata.json()["authorization_servers"][0])


async def write_access(url: str, scenario: str, folder: Path) -> Mapping[str, Any]:
    """How the gateway signs in to the suite's server, as the scenario needs."""
    given = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    oauth: dict[str, Any] = {"token_file": str(folder / "tokens.json"), "client_metadata_url": _CLIENT_METADATA}
    if "client_id" in given:
        oauth |= {"client_id": given["client_id"], "issuer": given.get("issuer") or await find_issuer(url)}
    if "client_secret" in given:
        oauth |= {"client_secret": given["client_secret"]}
    if "private_key_pem" in given:
        (folder / "key.pem").write_text(given["private_key_pem"])
        oauth |= {"private_key": str(folder / "key.pem"), "signing_algorithm": given["signing_algorithm"]}
    if scenario.startswith("auth/client-credentials"):
        oauth |= {"grant": "client_credentials"}
    return {"url": url, "auth": {"oauth": oauth}}


async def sign_in(config: Path, *more: str) -> None:
    """Run `mcp-mirror login` and follow its instructions; its output goes to standard error.

    Raises:
        RuntimeError: The sign-in failed.
    """
    command = [str(Path(sys.executable).parent / "mcp-mirror"), "login", "suite", "--config", str(config), *more]
    process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stderr=PIPE)
    assert process.stderr is not None
    output = ""
    async with asyncio.timeout(_BOUND), httpx2.AsyncClient(follow_redirects=True) as browser:
        while line := (await process.stderr.readline()).decode():
            output += line
            if line.startswith("http"):
                await browser.get(line.strip())
        code = await process.wait()
    sys.stderr.write(output)
    if code:
        raise RuntimeError(output)


async def check(config: Path) -> str:
    """What `mcp-mirror check` says is wrong."""
    command = [str(Path(sys.executable).parent / "mcp-mirror"), "check", "--config", str(config)]
    process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE)
    async with asyncio.timeout(_BOUND):
        return (await process.communicate())[1].decode()


async def play_signed_in(config: Path, play: Play) -> None:
    """Play, and sign in again where the gateway says that somebody has to.

    Raises:
        RuntimeError: It still says so.
    """
    asked: list[str] = []
    for _ in range(_ATTEMPTS):
        await sign_in(config, *asked)
        try:
            await play()
        except Exception as failed:  # whatever it is, it may say what to do
            match = _ASKED.search(_words_of(failed))
            if match is None:
                raise
            asked = shlex.split(match[1] or "")
        else:
            return
    raise RuntimeError("It still wants somebody to sign in.")


def _words_of(error: BaseException) -> str:
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return " ".join([str(error), *(_words_of(one) for one in inner)])
