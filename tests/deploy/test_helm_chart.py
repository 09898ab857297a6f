"""The Helm chart, rendered by Helm's own library and validated against the schemas of Kubernetes: `make helm`."""

import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from redis_process import COMMAND as REDIS
from redis_process import RedisProcess, free_port
from waiting import wait_until

from mcp_mirror.config.loading import load_config

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/mcp-mirror"
PYTHON = ROOT / ".venv-helm/bin/python"
GATEWAY = str(Path(sys.executable).parent / "mcp-mirror")
BOUND = 60
ISSUER = {"issuer": "https://login.example.com/", "jwks": "https://login.example.com/jwks.json", "audience": "tools"}

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="Helm's library is not installed: make helm")

SMALLEST: dict[str, Any] = {
    "config": {"auth": {"issuers": [ISSUER]}},
    "redis": {"urlSecret": {"name": "redis"}},
    "stateKeySecret": {"name": "state"},
}
EVERYTHING: dict[str, Any] = {
    **SMALLEST,
    "image": {"repository": "registry.example.com/mcp-mirror", "tag": "1.2.3", "pullSecrets": [{"name": "pull"}]},
    "hosts": ["tools.example.com"],
    "env": [{"name": "SEARCH_TOKEN", "valueFrom": {"secretKeyRef": {"name": "search", "key": "token"}}}],
    "envFrom": [{"secretRef": {"name": "more"}}],
    "service": {"type": "LoadBalancer", "port": 8080, "annotations": {"a": "b"}},
    "ingress": {"enabled": True, "className": "nginx", "annotations": {"a": "b"}, "tlsSecret": "tls"},
    "metrics": {"port": 9000, "serviceMonitor": {"enabled": True, "labels": {"team": "data"}}},
    "autoscaling": {"enabled": True},
    "networkPolicy": {
        "from": [{"namespaceSelector": {"matchLabels": {"team": "agents"}}}],
        "metricsFrom": [{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}],
        "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}],
    },
    "serviceAccount": {"annotations": {"a": "b"}},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "agents", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "podAnnotations": {"a": "b"},
    "podLabels": {"team": "data"},
    "volumes": [{"name": "certificates", "secret": {"secretName": "ca"}}],
    "volumeMounts": [{"name": "certificates", "mountPath": "/certificates"}],
}


def run_helm(values: dict[str, Any]) -> dict[str, Any]:
    command = [str(PYTHON), str(Path(__file__).with_name("render.py")), str(CHART), json.dumps(values)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stderr
    answer: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return answer


def render(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the manifests by kind; a second one of a kind has a number."""
    manifests: dict[str, dict[str, Any]] = {}
    for manifest in run_helm(values)["manifests"]:
        kind = manifest["kind"]
        manifests[kind if kind not in manifests else f"{kind} 2"] = manifest
    return manifests


def read_gateway_config(manifests: dict[str, dict[str, Any]], folder: Path) -> Any:
    """Return the configuration as the gateway reads it, with the environment of the Deployment."""
    path = folder / "mcp-mirror.yaml"
    path.write_text(manifests["ConfigMap"]["data"]["mcp-mirror.yaml"])
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
    [mode] = [one["configMap"]["defaultMode"] for one in pod["volumes"] if one["name"] == "config"]
    path.chmod(mode)
    [container] = pod["containers"]
    environ = {one["name"]: one.get("value", "redis://example.com:6379/0") for one in container["env"]}
    secrets = {one["name"] for one in pod["volumes"] if "secret" in one}
    mounts = [one["mountPath"] for one in container["volumeMounts"] if one["name"] in secrets]
    mounted = folder / "mounted"
    mounted.write_text("secret\n")
    environ |= {name: str(mounted) for name, value in environ.items() if value.startswith(tuple(mounts))}
    return load_config(path, environ | {"STATE_KEY": "0123456789" * 4})


def test_the_smallest_values_give_a_shared_gateway(tmp_path: Path) -> None:
    manifests = render(SMALLEST)
    assert manifests.keys() == {
        *("ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceAccount")
    }
    assert manifests["Deployment"]["spec"]["replicas"] == 2
    config = read_gateway_config(manifests, tmp_path)
    assert (config.store.kind, config.store.url) == ("redis", "redis://example.com:6379/0")
    assert config.server.state_keys == ("0123456789" * 4,)
    assert "demo-mcp-mirror.prod.svc.cluster.local" in config.server.allowed_hosts
    assert config.warnings == ()


def test_all_values_together_are_valid_manifests(tmp_path: Path) -> None:
    manifests = render(EVERYTHING)
    assert {"HorizontalPodAutoscaler", "Ingress", "Service 2", "ServiceMonitor"} <= manifests.keys()
    assert "replicas" not in manifests["Deployment"]["spec"], "the autoscaler sets the number"
    config = read_gateway_config(manifests, tmp_path)
    assert {"tools.example.com", "tools.example.com:8080"} <= set(config.server.allowed_hosts)
    [rule] = manifests["Ingress"]["spec"]["rules"]
    assert [one["path"] for one in rule["http"]["paths"]] == ["/mcp", "/.well-known/oauth-protected-resource"]


def test_the_documented_values_are_valid(tmp_path: Path) -> None:
    page = (ROOT / "docs/operations/kubernetes.md").read_text()
    first, *others = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", page, re.DOTALL))
    kinds, headers = set[str](), set[str]()
    for block in (first, *others):
        manifests = render(first | block)
        kinds |= manifests.keys()
        [search] = read_gateway_config(manifests, tmp_path).upstreams
        headers.add(search.endpoint.headers["Authorization"])
    assert {"Deployment", "Ingress"} <= kinds
    assert "Bearer secret" in headers, "no block has a secret in a file"


def test_pods_run_without_privileges_and_write_only_to_two_folders() -> None:
    pod = render(SMALLEST)["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    writable = [one["mountPath"] for one in container["volumeMounts"] if not one.get("readOnly")]
    assert writable == ["/home/mirror", "/tmp"]  # noqa: S108  # in the container


def test_the_selectors_find_the_pods_and_only_their_own_service() -> None:
    manifests = render(EVERYTHING)
    labels = manifests["Deployment"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        manifests["Deployment"]["spec"]["selector"]["matchLabels"],
        manifests["Service"]["spec"]["selector"],
        manifests["Service 2"]["spec"]["selector"],
        manifests["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
        manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ]
    assert all(selector.items() <= labels.items() for selector in selectors)
    monitored = manifests["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
    matches = [monitored.items() <= manifests[name]["metadata"]["labels"].items() for name in ("Service", "Service 2")]
    assert sorted(matches) == [False, True], "each pod would be read twice"


def test_calls_can_finish_before_a_pod_is_killed(tmp_path: Path) -> None:
    manifests = render({**SMALLEST, "drain": 45})
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    drain = read_gateway_config(manifests, tmp_path).server.drain
    assert drain == 45
    assert pod["terminationGracePeriodSeconds"] > pause + drain


def test_a_changed_configuration_starts_new_pods() -> None:
    def checksum(values: dict[str, Any]) -> str:
        metadata = render(values)["Deployment"]["spec"]["template"]["metadata"]
        return str(metadata["annotations"]["checksum/config"])

    assert checksum(SMALLEST) != checksum({**SMALLEST, "hosts": ["tools.example.com"]})


def test_one_gateway_needs_neither_redis_nor_a_key(tmp_path: Path) -> None:
    manifests = render({"config": SMALLEST["config"], "replicas": 1})
    assert read_gateway_config(manifests, tmp_path).store.kind is None


def test_the_users_configuration_wins(tmp_path: Path) -> None:
    own = {"server": {"allowed_hosts": ["other.example.com"]}, "store": {"ttl": "2h"}}
    config = read_gateway_config(render({**SMALLEST, "config": SMALLEST["config"] | own}), tmp_path)
    assert config.server.allowed_hosts == ("other.example.com",)
    assert (config.store.kind, config.store.ttl) == ("redis", 7200)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"replicas": 1}, "Set config.auth.tokens or config.auth.issuers"),
        ({"config": SMALLEST["config"]}, "Set redis.urlSecret.name, or replicas: 1"),
        ({"config": SMALLEST["config"], "replicas": 1, "autoscaling": {"enabled": True}}, "Set redis.urlSecret.name"),
        ({**SMALLEST, "stateKeySecret": {"name": ""}}, "Set stateKeySecret.name"),
        ({**SMALLEST, "ingress": {"enabled": True}}, "Set hosts"),
        ({**SMALLEST, "replica": 2}, "additional properties 'replica' not allowed"),
        ({**SMALLEST, "service": {"port": 0}}, "at '/service/port'"),
    ],
    ids=["no auth", "no redis", "autoscaled without redis", "no key", "no host", "mistyped", "port 0"],
)
def test_values_that_cannot_work_are_refused_with_the_remedy(values: dict[str, Any], words: str) -> None:
    assert words in run_helm(values)["error"]


def test_the_values_file_has_every_key_of_its_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert schema["properties"].keys() - {"global"} == values.keys()


@pytest.mark.skipif(REDIS is None, reason="redis-server is not installed")
def test_a_gateway_runs_with_rendered_arguments_and_answers_the_probes(tmp_path: Path) -> None:
    port, metrics_port = free_port(), free_port()
    manifests = render({**SMALLEST, "metrics": {"port": metrics_port}})
    config = tmp_path / "mcp-mirror.yaml"
    config.write_text(manifests["ConfigMap"]["data"]["mcp-mirror.yaml"])
    [container] = manifests["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["serve", "--http", "0.0.0.0:8000"]
    assert {"name": "MCP_MIRROR_CONFIG", "value": "/etc/mcp-mirror/mcp-mirror.yaml"} in container["env"]
    with RedisProcess(tmp_path) as redis:
        environ = os.environ | {"REDIS_URL": redis.url, "STATE_KEY": "0123456789" * 4, "MCP_MIRROR_CONFIG": str(config)}
        gateway = subprocess.Popen([GATEWAY, "serve", "--http", f"0.0.0.0:{port}"], env=environ, stderr=subprocess.PIPE)
        try:
            for name in ("startupProbe", "readinessProbe", "livenessProbe"):
                path = container[name]["httpGet"]["path"]
                await_answer(f"http://127.0.0.1:{port}{path}", gateway)
            assert "mcp_mirror_" in await_answer(f"http://127.0.0.1:{metrics_port}/metrics", gateway)
            assert httpx2.post(f"http://127.0.0.1:{port}/mcp", json={}).status_code == 401
        finally:
            gateway.terminate()
            gateway.communicate(timeout=BOUND)
    assert gateway.returncode == 0


def await_answer(url: str, gateway: subprocess.Popen[bytes]) -> str:
    """Return the body of the first positive answer."""
    bodies: list[str] = []

    def ask() -> list[str]:
        assert gateway.poll() is None, gateway.communicate()[1]
        with suppress(httpx2.TransportError):
            answer = httpx2.get(url)
            if answer.status_code == 200:
                bodies.append(answer.text)
        return bodies

    wait_until(ask)
    return bodies[0]
