"""Check every lock file against known advisories: Python packages at OSV (osv.dev), Node packages at the npm registry.

Exit code 0: no advisory. 1: there are advisories, which are printed. 2: an advisory service cannot be reached, so
nothing is known.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHON_LOCKS = (
    "requirements.lock", "calibration/ctok.lock", "calibration/requirements.lock", "docker/programs.lock",
    "docker/requirements.lock", "docs/requirements.lock", "evals/loca/requirements.lock",
    "evals/model/requirements.lock", "evals/model/weights.lock", "examples/beeai.lock", "examples/frameworks.lock",
    "packaging/registry/requirements.lock", "tests/audit/requirements.lock", "tests/bench/requirements.lock",
    "tests/chats/requirements.lock", "tests/dataframes/requirements.lock", "tests/deploy/requirements.lock",
    "tests/everyday/requirements.lock",
)  # fmt: skip
NOT_AUDITED = ("tests/lowest/requirements.lock",)
"""The oldest permitted versions, which only `make test-lowest` installs."""
NODE_LOCKS = (
    "calibration/package-lock.json",
    "packaging/mcpb/package-lock.json",
    "tests/clients/package-lock.json",
    "tests/node/package-lock.json",
)
UNREACHABLE = ("ConnectionError", "ServiceError", "could not be audited", "audit endpoint returned an error")


def main() -> int:
    """Audit all lock files; the exit code."""
    pip_audit = [
        str(Path(sys.executable).with_name("pip-audit")),
        "--vulnerability-service",
        "osv",
        "--strict",
        "--disable-pip",
    ]
    pip_audit += ["--require-hashes", "--progress-spinner", "off", "--requirement"]
    runs = [([*pip_audit, lock], ".", lock) for lock in PYTHON_LOCKS]
    runs += [(["npm", "audit", "--package-lock-only"], str(Path(lock).parent), lock) for lock in NODE_LOCKS]
    codes = [audit(command, folder, lock) for command, folder, lock in runs]
    return max(codes)


def audit(command: list[str], folder: str, lock: str) -> int:
    """Audit one lock file and print what is found."""
    done = subprocess.run(command, cwd=ROOT / folder, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    if done.returncode == 0:
        sys.stdout.write(f"{lock}: no known advisory\n")
        return 0
    if any(word in output for word in UNREACHABLE):
        sys.stdout.write(
            f"{lock}: not audited, since the advisory service cannot be reached. Repeat this where it can be.\n"
        )
        return 2
    sys.stdout.write(f"{lock}: {output.strip()}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
