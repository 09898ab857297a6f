"""The files for containers agree with each other and with the programs that read them."""

import os
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from cluster import HAPROXY
from healthcheck import find_address, is_healthy

from mcp_mirror.config.loading import load_config

DOCKER = Path(__file__).parents[2] / "docker"
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
GATEWAYS = {name: one for name, one in COMPOSE["services"].items() if name.startswith("gateway-")}


@pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed")
def test_the_proxy_takes_its_configuration_and_knows_the_gateways() -> None:
    checked = subprocess.run(
        [str(HAPROXY), "-c", "-f", str(DOCKER / "haproxy.cfg")], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    served = {one["command"][-1] for one in GATEWAYS.values()}
    lines = (DOCKER / "haproxy.cfg").read_text().splitlines()
    assert {line.split("-")[-1].strip('}"') for line in lines if line.startswith("  server ")} == served


def test_the_gateways_take_their_configuration() -> None:
    environ = {name: name.lower() * 8 for one in GATEWAYS.values() for name in one["environment"]}
    config = load_config(DOCKER / "replicas.yaml", environ)
    assert (config.store.kind, config.warnings) == ("redis", ())
    assert config.store.url == f"redis://:{environ['VALKEY_PASSWORD']}@valkey:6379/0"
    assert config.server.state_keys == (environ["STATE_KEY"],)
    traffic = config.limits.traffic
    assert traffic.pending_connections_per_address == traffic.max_connections  # all connections come from the proxy


def test_mounted_files_exist_and_dependencies_are_services() -> None:
    services = COMPOSE["services"]
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or os.path.exists(DOCKER / source), source  # noqa: PTH110  # either
        assert service.get("depends_on", {}).keys() <= services.keys()
        assert service.get("network_mode", "service:proxy") == "service:proxy"


def test_the_image_installs_only_what_is_locked_with_hashes() -> None:
    lines = (DOCKER / "Dockerfile").read_text().splitlines()
    installs = [line for line in lines if "pip install" in line]
    assert len(installs) == 2
    assert all("--require-hashes" in line or "--no-deps" in line for line in installs)
    locked = read_lock(DOCKER / "requirements.lock")
    assert {"hatchling", "mcp", "redis", "uvicorn"} <= {package for package, _ in locked}
    assert locked <= read_lock(DOCKER.parent / "requirements.lock")


@pytest.mark.parametrize(
    ("command", "address"),
    [
        ("mcp-mirror serve", None),
        ("python mcp-mirror wrap -- npx server", None),
        ("mcp-mirror serve --http 0.0.0.0:8000", ("127.0.0.1", 8000)),
        ("mcp-mirror serve --http=127.0.0.1:8001 --watch", ("127.0.0.1", 8001)),
        ("podman-init -- mcp-mirror serve -v --http [::]:80", ("::1", 80)),
        ("dumb-init --single-child -- mcp-mirror serve --http 0.0.0.0:8000", ("127.0.0.1", 8000)),
    ],
)
def test_the_health_check_finds_the_address(command: str, address: tuple[str, int] | None) -> None:
    assert find_address(command.split()) == address


class Probe(BaseHTTPRequestHandler):
    """A server of which only `/healthz` exists, or nothing."""

    status = 200

    def do_GET(self) -> None:  # the library's name
        self.send_response(self.status if self.path == "/healthz" else 404)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
def probed() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Probe) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_a_gateway_is_healthy_while_its_probe_answers(probed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["mcp-mirror", "serve", "--http", f"0.0.0.0:{probed}"]
    assert is_healthy(command)
    monkeypatch.setattr(Probe, "status", 503)
    assert not is_healthy(command)
    assert is_healthy(["mcp-mirror", "serve"])
    assert not is_healthy(["mcp-mirror", "serve", "--http", "127.0.0.1:1"])


def test_the_containers_write_only_to_temporary_files() -> None:
    assert all(gateway["read_only"] and gateway["tmpfs"] == ["/tmp"] for gateway in GATEWAYS.values())  # noqa: S108


def read_lock(path: Path) -> set[tuple[str, str]]:
    """The packages of a lock file with their versions; each has a hash."""
    packages = path.read_text().replace("\\\n", "").splitlines()
    assert all("--hash=sha256:" in line for line in packages)
    return {(name, rest.split()[0]) for name, _, rest in (line.partition("==") for line in packages)}
