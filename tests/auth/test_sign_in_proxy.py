"""A real Apache with mod_auth_openidc signs a person in and passes the ID token on, as the documentation says."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlencode

import httpx2
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from tests.auth.conftest import serving_gateway
from tests.auth.issuing import SigningKey, jwks
from waiting import until

PAGE = Path(__file__).parents[2] / "docs/guides/identity-providers.md"
MODULES = Path("/usr/lib/apache2/modules")
APACHE = shutil.which("apache2", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
LOADED = ("mpm_event", "authn_core", "authz_core", "authz_user", "headers", "proxy", "proxy_http", "auth_openidc")
AUDIENCE = "gateway"
BOUND = 20.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        APACHE is None or not (MODULES / "mod_auth_openidc.so").exists(), reason="mod_auth_openidc is not installed"
    ),
]

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
HEADERS = {"accept": "application/json, text/event-stream"}


@dataclass
class Provider:
    """An OpenID provider at which everyone is Alice."""

    url: str
    key: SigningKey = field(default_factory=lambda: SigningKey("one", "RS256"))
    nonces: dict[str, str] = field(default_factory=dict)
    """By code."""

    def sign(self, **claims: object) -> str:
        return self.key.sign(self.url, **{"aud": AUDIENCE, "typ": "ID", **claims})

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self.metadata),
                Route("/authorize", self.authorize),
                Route("/token", self.token, methods=["POST"]),
                Route("/keys", self.keys),
            ]
        )

    async def metadata(self, _: Request) -> Response:
        return JSONResponse({
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "token_endpoint_auth_methods_supported": ["client_secret_post"],
        })  # fmt: skip

    async def authorize(self, request: Request) -> Response:
        query = request.query_params
        code = secrets.token_urlsafe(8)
        self.nonces[code] = query["nonce"]
        return RedirectResponse(f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}")

    async def token(self, request: Request) -> Response:
        [code] = parse_qs((await request.body()).decode())["code"]
        identity = self.sign(nonce=self.nonces.pop(code))
        return JSONResponse({"access_token": "opaque", "token_type": "Bearer", "expires_in": 600, "id_token": identity})

    async def keys(self, _: Request) -> Response:
        return Response(jwks(self.key), media_type="application/json")


@asynccontextmanager
async def running_provider() -> AsyncIterator[Provider]:
    listening = socket.create_server(("127.0.0.1", 0))
    provider = Provider(f"http://127.0.0.1:{listening.getsockname()[1]}")
    server = uvicorn.Server(uvicorn.Config(provider.app(), log_config=None, lifespan="off"))
    task = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield provider
    finally:
        server.should_exit = True
        await task


def write_apache_config(folder: Path, port: int, provider: str, gateway: str) -> Path:
    """Return the file of the documented configuration, with the addresses of this test."""
    [documented] = re.findall(r"```apache\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for written, used in {
        "https://keycloak.example.com/realms/agents": provider,
        "https://tools.example.com": f"http://localhost:{port}",
        "http://127.0.0.1:8000/": gateway,
        "${CLIENT_SECRET}": "secret",
        "${COOKIE_SECRET}": "0123456789abcdef",
    }.items():
        assert written in documented
        documented = documented.replace(written, used)
    lines = [
        f"ServerRoot {folder}",
        f"Listen 127.0.0.1:{port}",
        "ServerName localhost",
        f"PidFile {folder}/pid",
        f"ErrorLog {folder}/error.log",
        f"DefaultRuntimeDir {folder}",
        *(f"LoadModule {name}_module {MODULES}/mod_{name}.so" for name in LOADED),
        *(["User www-data", "Group www-data"] if os.getuid() == 0 else []),
        "OIDCSSLValidateServer Off",  # this provider has no TLS
    ]
    path = folder / "apache.conf"
    path.write_text("\n".join(lines) + "\n" + documented)
    return path


def find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port


@asynccontextmanager
async def running_apache(config: Path, port: int) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(
        str(APACHE), "-f", str(config), "-DFOREGROUND", stderr=asyncio.subprocess.PIPE
    )
    try:

        async def connect() -> asyncio.StreamWriter | None:
            assert process.returncode is None, await process.stderr.read() if process.stderr else b""
            with suppress(OSError):
                return (await asyncio.open_connection("127.0.0.1", port))[1]
            return None

        (await until(connect)).close()
        yield
    finally:
        process.terminate()
        await process.communicate()


@asynccontextmanager
async def signed_in_gateway(tmp_path: Path) -> AsyncIterator[tuple[str, Provider]]:
    """The address of a proxy before a gateway that accepts tokens of the provider."""
    folder, port = tmp_path / "apache", find_free_port()
    folder.mkdir()
    async with running_provider() as provider:
        config = tmp_path / "mcp-mirror.yaml"
        issuer = {"issuer": provider.url, "jwks": f"{provider.url}/keys", "audience": AUDIENCE}
        config.write_text(
            json.dumps({"auth": {"issuers": [issuer]}, "server": {"allowed_hosts": [f"localhost:{port}"]}})
        )
        async with serving_gateway(config) as gateway:
            upstream = gateway.url.removesuffix("mcp")
            async with running_apache(write_apache_config(folder, port, provider.url, upstream), port):
                yield f"http://localhost:{port}", provider


async def test_a_browser_signs_in_and_the_gateway_knows_the_person(tmp_path: Path) -> None:
    browser = httpx2.AsyncClient(follow_redirects=True, timeout=BOUND)
    async with signed_in_gateway(tmp_path) as (url, _), browser:
        # A page is loaded first: the redirects lead through the provider and back.
        landed = await browser.get(f"{url}/mcp", headers={"accept": "text/html"})
        assert str(landed.url) == f"{url}/mcp"
        assert landed.status_code != 401, landed.headers
        answer = await browser.post(f"{url}/mcp", json=INITIALIZE, headers=HEADERS)
        assert answer.status_code == 200, answer.text
        assert "mcp-mirror" in answer.text


async def test_a_program_sends_its_own_token_through_the_proxy(tmp_path: Path) -> None:
    async with signed_in_gateway(tmp_path) as (url, provider), httpx2.AsyncClient(timeout=BOUND) as program:
        own = {"authorization": f"Bearer {provider.sign(sub='robot')}"}
        answer = await program.post(f"{url}/mcp", json=INITIALIZE, headers=HEADERS | own)
        assert answer.status_code == 200, answer.text
        wrong = {"authorization": f"Bearer {provider.sign(aud='another')}"}
        assert (await program.post(f"{url}/mcp", json=INITIALIZE, headers=HEADERS | wrong)).status_code == 401


@pytest.mark.parametrize("header", ["OIDC_id_token", "OIDC-id-token", "OIDC_CLAIM_sub", "X-Forwarded-User"])
async def test_a_header_of_the_client_signs_nobody_in(header: str, tmp_path: Path) -> None:
    async with signed_in_gateway(tmp_path) as (url, provider), httpx2.AsyncClient(timeout=BOUND) as client:
        forged = {header: provider.sign(), "authorization": ""}
        for headers in (forged, {**forged, "authorization": "Bearer x"}, {header: provider.sign()}):
            answer = await client.post(f"{url}/mcp", json=INITIALIZE, headers=HEADERS | headers)
            assert answer.status_code in (302, 401), answer.text
