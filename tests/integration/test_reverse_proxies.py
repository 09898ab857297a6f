"""Real proxies in front of a real gateway, with the configurations of the documentation."""

import asyncio
import json
import os
import re
import shutil
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent
from redis_process import free_port
from tests.end_to_end.conftest import BOUND, SERVERS, serve_gateway
from waiting import until

PAGE = Path(__file__).parents[2] / "docs/getting-started/http.md"
APACHE_MODULES = Path("/usr/lib/apache2/modules")
LOADED = ("mpm_event", "authn_core", "authz_core", "proxy", "proxy_http", "ssl", "http2")
LANGUAGES = {"nginx": "nginx", "caddy": "text", "apache2": "apache"}
"""The language of each proxy's configuration on the page."""
LARGE = 3_000_000
"""Bytes, more than proxies accept or keep in memory by default."""


def find_program(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None or (name == "apache2" and not (APACHE_MODULES / "mod_http2.so").exists()):
        pytest.skip(f"{name} is not installed")
    return found


def replace_all(text: str, **used: str) -> str:
    """Replace what the documentation writes by what the test uses."""
    for written, one in used.items():
        assert written in text
        text = text.replace(written, one)
    return text


def configure(proxy: str, folder: Path, certificate: Path, gateway: str, port: int) -> list[str]:
    """Write the documented configuration with the addresses of the test, and return the arguments of the proxy."""
    [documented] = re.findall(rf"```{LANGUAGES[proxy]}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    text, path = replace_all(documented, **{"127.0.0.1:8000": gateway}), folder / "configuration"
    files = {"/etc/ssl/tools.pem": str(certificate), "/etc/ssl/tools.key": str(certificate)}
    is_root = os.getuid() == 0
    if proxy == "nginx":
        text = replace_all(text, **files, **{"listen 443": f"listen 127.0.0.1:{port}"})
        start = f"daemon off; pid {folder}/pid; error_log {folder}/log; events {{}} {'user root;' if is_root else ''}"
        path.write_text(f"{start} http {{ access_log off; {text} }}")
        return ["-c", str(path), "-e", f"{folder}/log"]
    if proxy == "caddy":
        site = f"https://127.0.0.1:{port} {{\n  tls {certificate} {certificate}"
        text = replace_all(text, **{"tools.example.com {": site})
        path.write_text(f"{{\n  admin off\n  auto_https off\n  storage file_system {folder}\n}}\n{text}")
        return ["run", "--config", str(path), "--adapter", "caddyfile"]
    text = replace_all(text, **files, **{"*:443": f"127.0.0.1:{port}"})
    lines = [f"ServerRoot {folder}", f"Listen 127.0.0.1:{port}", f"PidFile {folder}/pid", f"ErrorLog {folder}/log"]
    lines += [f"DefaultRuntimeDir {folder}", *(["User www-data", "Group www-data"] if is_root else [])]
    lines += [f"LoadModule {name}_module {APACHE_MODULES}/mod_{name}.so" for name in LOADED]
    path.write_text("\n".join([*lines, text]))
    return ["-f", str(path), "-DFOREGROUND"]


@asynccontextmanager
async def running(program: str, arguments: list[str], port: int, folder: Path) -> AsyncIterator[None]:
    """Run a proxy, and wait until it serves."""

    def serves() -> bool:
        assert process.returncode is None, output.read_text()
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    output = folder / "output"
    with output.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            program, *arguments, stdout=file, stderr=file, env={**os.environ, "HOME": str(folder)}
        )
    try:
        await until(serves)
        yield
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), BOUND)


def text_of(result: CallToolResult) -> str:
    [block] = result.content
    assert isinstance(block, TextContent)
    return block.text


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.parametrize("proxy", LANGUAGES)
async def test_progress_and_large_values_pass_a_documented_proxy(
    proxy: str, mode: str, certificate: Path, tmp_path: Path
) -> None:
    program, port, folder, gate = find_program(proxy), free_port(), tmp_path / "proxy", tmp_path / "gate"
    folder.mkdir()
    upstreams = {
        "slow": {"command": sys.executable, "args": ["-S", str(SERVERS / "slow.py"), str(tmp_path / "log")]},
        "raw": {"command": sys.executable, "args": ["-S", str(SERVERS / "raw.py"), "ok"]},
    }
    config = tmp_path / "mirror.yaml"
    config.write_text(json.dumps({"upstreams": upstreams, "mirror": {"suffix": "", "capture": "never"}}))
    seen = asyncio.Event()

    async def note(progress: float, total: float | None, message: str | None) -> None:  # noqa: ARG001
        seen.set()

    async with serve_gateway(config) as served, asyncio.timeout(3 * BOUND):
        gateway = httpx2.URL(served.url).netloc.decode()
        arguments = configure(proxy, folder, certificate, gateway, port)
        async with (
            running(program, arguments, port, folder),
            httpx2.AsyncClient(verify=ssl.create_default_context(cafile=certificate), timeout=BOUND) as http,
            Client(
                streamable_http_client(f"https://127.0.0.1:{port}/mcp", http_client=http, max_sse_event_size=None),
                mode=mode,
            ) as client,
        ):
            heard = text_of(await client.call_tool("hear", {"pad": "x" * LARGE}))
            assert len(heard) > LARGE
            working = {"steps": 1, "pause": 0, "gate": str(gate)}
            call = asyncio.create_task(client.call_tool("work", working, progress_callback=note))
            await seen.wait()  # before the result
            gate.touch()
            assert text_of(await call) == "done"
