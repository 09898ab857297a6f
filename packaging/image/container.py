"""Runs podman and buildah with a storage of their own, in `.image` of the checkout."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".image"
IMAGE = "localhost/mcp-mirror"
STORAGE = ["--root", str(FOLDER / "storage"), "--runroot", str(FOLDER / "run"), "--storage-driver", "vfs"]
LIMITS = ["--ulimit=nofile=16384:16384", "--ulimit=nproc=4096:4096"]
"""Below podman's defaults, which a sandbox may not be allowed to set."""
TIMEOUT = 1200.0


def podman(*arguments: str) -> list[str]:
    """Return a podman command. With `runc` if it is installed, because `crun` rejects mixed cgroup versions."""
    runtime = ["--runtime", "runc"] if shutil.which("runc") else []
    return ["podman", *STORAGE, *runtime, *arguments]


def podman_run(*arguments: str) -> list[str]:
    """Return a command that runs the image: read-only, on the host's network."""
    return podman("run", "--rm", "--read-only", "--network=host", *LIMITS, *arguments)


def run(command: list[str]) -> str:
    """Run a command and return its standard output; its standard error is shown."""
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT, cwd=ROOT
    ).stdout.strip()
