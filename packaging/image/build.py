"""Builds the container image of docker/Dockerfile, as root: `build.py [BASE]`.

Without BASE, the base image is made from Debian packages, so no image is pulled.
"""

import os
import sys
from pathlib import Path

from container import FOLDER, IMAGE, STORAGE, podman, run

RELEASE = "trixie"
PACKAGES = "ca-certificates,python3,python3-venv"
CERTIFICATES = Path("/usr/local/share/ca-certificates")
"""Authorities that only this machine trusts, such as its proxy's."""


def build(base: str | None) -> str:
    """Build the image, and return its id."""
    FOLDER.mkdir(exist_ok=True)
    base = base or build_base()
    build_command = ["buildah", *STORAGE, "build", "--isolation", "chroot", "--format", "docker"]
    files = ["--file", "docker/Dockerfile", "--ignorefile", "docker/Dockerfile.dockerignore"]
    print(run([*build_command, *files, "--build-arg", f"BASE={base}", "--tag", IMAGE, "."]), file=sys.stderr)
    return run(podman("image", "inspect", "--format", "{{.Id}}", IMAGE))


def build_base() -> str:
    """Make a base image of Debian packages, and return its name."""
    archive = FOLDER / "base.tar"
    command = ["mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", f"--include={PACKAGES}"]
    if CERTIFICATES.is_dir() and any(CERTIFICATES.iterdir()):
        command += [f"--customize-hook=copy-in {CERTIFICATES} {CERTIFICATES.parent}"]
        command += ['--customize-hook=chroot "$1" update-ca-certificates']
    run([*command, RELEASE, str(archive)])
    run(podman("import", "--quiet", str(archive), f"{IMAGE}-base"))
    archive.unlink()
    return f"{IMAGE}-base"


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit("make image needs root. With Docker or podman, build docker/Dockerfile instead.")
    print(build(sys.argv[1] if sys.argv[1:] else None))
