"""The recipes of docs/guides/identity-providers.md, with tokens of the shape that each provider documents."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.auth.issuing import SigningKey, jwks

from mcp_mirror.config.loading import load_config
from mcp_mirror.server.auth.keys import Issuers
from mcp_mirror.settings.access import AuthPolicy

PAGE = Path(__file__).parents[2] / "docs/guides/identity-providers.md"
KEY = SigningKey("one", "RS256")

ENTRA_TENANT = "11111111-2222-3333-4444-555555555555"
ENTRA = {
    "iss": f"https://login.microsoftonline.com/{ENTRA_TENANT}/v2.0",
    "aud": "66666666-7777-8888-9999-000000000000",
    "azp": "0f6d8a1c-6f36-4a0e-9d3b-2f4b9a2f7c11",
    "azpacr": "0",
    "name": "Alice",
    "oid": "9b6d2c1f-5a0e-4a38-8d4c-1f0b7a6e5d42",
    "preferred_username": "alice@example.com",
    "rh": "0.AXoA",
    "scp": "tools other",
    "sub": "pairwise-Q2hhbmdlc1BlckFwcGxpY2F0aW9u",
    "tid": ENTRA_TENANT,
    "uti": "b3BhcXVl",
    "ver": "2.0",
}
OKTA = {
    "ver": 1,
    "jti": "AT.opaque",
    "iss": "https://example.okta.com/oauth2/default",
    "aud": "https://tools.example.com/mcp",
    "cid": "0oa1client",
    "uid": "00u1alice",
    "scp": ["openid", "tools"],
    "auth_time": 1_700_000_000,
    "sub": "alice@example.com",
    "groups": ["Everyone", "mcp-users"],
}
KEYCLOAK = {
    "jti": "trtcc:opaque",
    "iss": "https://keycloak.example.com/realms/agents",
    "aud": ["https://tools.example.com/mcp", "account"],
    "sub": "36fa0f91-f94d-4a0c-afed-6b7d952e47da",
    "typ": "Bearer",
    "azp": "agent",
    "sid": "2a88c258-f73a-4103-b862-e1fbd8f4e04e",
    "acr": "1",
    "allowed-origins": ["https://app.example.com"],
    "realm_access": {"roles": ["offline_access", "default-roles-agents"]},
    "resource_access": {"account": {"roles": ["view-profile"]}},
    "scope": "openid tools email",
    "email_verified": True,
    "preferred_username": "alice",
}
GOOGLE = {
    "iss": "https://accounts.google.com",
    "azp": "1234567890-abc.apps.googleusercontent.com",
    "aud": "1234567890-abc.apps.googleusercontent.com",
    "sub": "110169484474386276334",
    "hd": "example.com",
    "email": "alice@example.com",
    "email_verified": True,
    "at_hash": "opaque",
    "name": "Alice",
}
NODE = {
    "iss": "https://login.example.com",
    "aud": "https://tools.example.com/mcp",
    "sub": "alice",
    "jti": "opaque",
    "client_id": "Yq5vcbGqlbqCcjf0n-hfwhVXpP5joyW",
    "scope": "tools",
}
"""A token of oidc-provider 9."""
TOKENS: dict[str, dict[str, Any]] = {
    "Microsoft Entra ID": ENTRA,
    "Okta": OKTA,
    "Keycloak": KEYCLOAK,
    "Google": GOOGLE,
    "oidc-provider (Node.js)": NODE,
}
PRINCIPALS = {
    "Microsoft Entra ID": (ENTRA["oid"], {"tools", "other"}),
    "Okta": (OKTA["uid"], {"openid", "tools"}),
    "Keycloak": (KEYCLOAK["sub"], {"openid", "tools", "email"}),
    "Google": (GOOGLE["sub"], set()),
    "oidc-provider (Node.js)": (NODE["sub"], {"tools"}),
}


def read_recipe(provider: str, folder: Path, **changes: Any) -> AuthPolicy:
    """Return the settings of a recipe, with the keys of this test and changes to its issuer."""
    section = PAGE.read_text().partition(f"\n## {provider}\n")[2].partition("\n## ")[0]
    [block] = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    recipe = yaml.safe_load(block)
    (folder / "jwks.json").write_text(jwks(KEY))
    recipe["auth"]["issuers"][0] |= {"jwks": "jwks.json", **changes}
    (folder / "mcp-mirror.yaml").write_text(yaml.safe_dump(recipe))
    config = load_config(folder / "mcp-mirror.yaml", {})
    assert config.warnings == ()
    return config.auth


async def find_principal(auth: AuthPolicy, claims: dict[str, Any]) -> tuple[str, set[str]] | None:
    """Return the name and scopes of the principal of a token; None if it is rejected or lacks a required scope."""
    token = KEY.sign(str(claims["iss"]), **{"sub": None, **claims})
    principal = await Issuers(auth.issuers, lambda: 0.0).find_principal(token)
    if principal is None or not set(auth.scopes) <= principal.scopes:
        return None
    return principal.name, set(principal.scopes)


@pytest.mark.parametrize("provider", TOKENS)
async def test_a_token_of_the_provider_names_its_principal(provider: str, tmp_path: Path) -> None:
    auth = read_recipe(provider, tmp_path)
    assert await find_principal(auth, TOKENS[provider]) == PRINCIPALS[provider]


@pytest.mark.parametrize(
    ("provider", "changes"),
    [
        ("Microsoft Entra ID", {"iss": "https://login.microsoftonline.com/other-tenant/v2.0"}),
        ("Microsoft Entra ID", {"iss": f"https://sts.windows.net/{ENTRA_TENANT}/", "ver": "1.0"}),
        ("Microsoft Entra ID", {"aud": "00000003-0000-0000-c000-000000000000"}),
        ("Microsoft Entra ID", {"scp": "User.Read"}),
        ("Microsoft Entra ID", {"scp": None, "roles": ["tools"]}),
        ("Okta", {"iss": "https://example.okta.com", "aud": "https://example.okta.com"}),
        ("Okta", {"groups": ["Everyone"]}),
        ("Okta", {"groups": None}),
        ("Okta", {"scp": ["openid"]}),
        ("Keycloak", {"aud": "account"}),
        ("Keycloak", {"typ": "ID", "aud": "https://tools.example.com/mcp"}),
        ("Keycloak", {"typ": "Refresh"}),
        ("Keycloak", {"iss": "https://keycloak.example.com/realms/master"}),
        ("Google", {"hd": None}),
        ("Google", {"hd": "other.example"}),
        ("Google", {"email_verified": False}),
        ("Google", {"aud": "other.apps.googleusercontent.com"}),
        ("oidc-provider (Node.js)", {"aud": NODE["client_id"], "scope": None}),  # an ID token
        ("oidc-provider (Node.js)", {"iss": "https://login.example.com/"}),
        ("oidc-provider (Node.js)", {"scope": "openid"}),
    ],
)
async def test_tokens_for_others_are_rejected(provider: str, changes: dict[str, Any], tmp_path: Path) -> None:
    auth = read_recipe(provider, tmp_path)
    assert await find_principal(auth, {**TOKENS[provider], **changes}) is None


async def test_an_entra_program_is_admitted_by_its_application_role(tmp_path: Path) -> None:
    auth = read_recipe("Microsoft Entra ID", tmp_path, scopes_claim="roles")
    claims = {**ENTRA, "scp": None, "preferred_username": None, "roles": ["tools"], "idtyp": "app"}
    assert await find_principal(auth, claims) == (ENTRA["oid"], {"tools"})


async def test_keycloak_roles_at_the_top_level_are_scopes(tmp_path: Path) -> None:
    auth = read_recipe("Keycloak", tmp_path, scopes_claim="roles")
    assert await find_principal(auth, {**KEYCLOAK, "roles": ["tools", "offline_access"]}) == (
        KEYCLOAK["sub"],
        {"tools", "offline_access"},
    )
