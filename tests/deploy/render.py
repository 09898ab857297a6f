"""Lints, renders and validates the Helm chart, in an environment with Helm's own library; prints JSON.

Arguments: the folder of the chart, and the values as JSON. Prints the manifests, or the `error` of Helm.
"""

import json
import re
import sys
from typing import Any

import helm_python
import kubernetes_validate
import yaml

OLDEST = "1.27.0"
"""The oldest Kubernetes that the chart says it supports."""
NOT_OF_KUBERNETES = ("monitoring.coreos.com",)
"""Groups of resources that operators define; Kubernetes has no schema of them."""


def render(chart_folder: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the manifests that Helm would install, validated against the schemas of two versions of Kubernetes."""
    with helm_python.Chart.load(chart_folder) as chart:
        files = chart.render(values, name="demo", namespace="prod")
    manifests = [
        manifest
        for name, text in files.items()
        if not name.endswith(".txt")
        for manifest in yaml.safe_load_all(text)
        if manifest
    ]
    for manifest in manifests:
        if not manifest["apiVersion"].startswith(NOT_OF_KUBERNETES):
            for version in (OLDEST, kubernetes_validate.latest_version()):
                kubernetes_validate.validate(manifest, version, strict=True)
    return manifests


def main() -> None:
    chart_folder, values = sys.argv[1], json.loads(sys.argv[2])
    linted = helm_python.lint(chart_folder)
    assert not linted["errors"], linted
    try:
        answer: dict[str, Any] = {"manifests": render(chart_folder, values)}
    except helm_python.HelmError as error:
        answer = {"error": re.sub(r"\s+", " ", str(error))}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
