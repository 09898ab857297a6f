"""Issuers of signed tokens, with generated keys that a real HTTP server serves as JWKS."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

AUDIENCE = "https://tools.example.com/mcp"

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


@dataclass
class SigningKey:
    """A key pair with a name."""

    kid: str
    algorithm: str = "ES256"

    @cached_property
    def private(self) -> PrivateKey:
        """The private key, generated when a test first uses it: modules with keys are imported for other tests too."""
        elliptic = self.algorithm.startswith("ES")
        return ec.generate_private_key(ec.SECP256R1()) if elliptic else rsa.generate_private_key(65537, 2048)

    @property
    def public(self) -> dict[str, Any]:
        """As a JWKS has it."""
        kind: Any = jwt.get_algorithm_by_name(self.algorithm)
        return {**kind.to_jwk(self.private.public_key(), as_dict=True), "kid": self.kid, "use": "sig"}

    @property
    def public_pem(self) -> bytes:
        return self.private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def sign(self, issuer: str, **claims: Any) -> str:
        """A token that is good for a day, with claims changed or, where None, left out."""
        now = int(time.time())
        standard = {"iss": issuer, "aud": AUDIENCE, "sub": "alice", "iat": now, "exp": now + 86_400}
        payload = {name: value for name, value in {**standard, **claims}.items() if value is not None}
        return jwt.encode(payload, self.private, self.algorithm, {"kid": self.kid})


def jwks(*keys: SigningKey) -> str:
    return json.dumps({"keys": [key.public for key in keys]})


@dataclass
class Page:
    """What a server of one page says, and how often it was asked."""

    body: str = ""
    status: str = "200 OK"
    headers: Mapping[str, str] = field(default_factory=dict)
    asked: int = 0
    requests: asyncio.Queue[asyncio.Event] | None = None
    """Receives an event for each request, which is answered when it is set; None: requests are answered at once."""


@asynccontextmanager
async def serving(page: Page) -> AsyncIterator[str]:
    """The URL of a real server that says the same to everybody."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        page.asked += 1
        if page.requests is not None:
            page.requests.put_nowait(may_answer := asyncio.Event())
            await may_answer.wait()
        extra = "".join(f"{name}: {value}\r\n" for name, value in page.headers.items())
        body = page.body.encode()
        writer.write(
            f"HTTP/1.1 {page.status}\r\ncontent-length: {len(body)}\r\n{extra}connection: close\r\n\r\n".encode()
        )
        writer.write(body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/jwks.json"
