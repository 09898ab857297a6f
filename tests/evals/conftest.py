"""Servers of evaluations are forks of the template process: `${PYTHON}` is a program that runs scripts in that way."""

import shlex
import sys
from pathlib import Path

import pytest
from gateway_processes import forked_python


@pytest.fixture(scope="session")
def forking_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that runs a script as a fork, and anything else as Python does."""
    program = tmp_path_factory.mktemp("python") / "python"
    start = shlex.join(forked_python())
    program.write_text(f'#!/bin/sh\ncase $1 in -*) exec {shlex.quote(sys.executable)} "$@";; esac\nexec {start} "$@"\n')
    program.chmod(0o755)
    return program


@pytest.fixture(autouse=True)
def _forked_servers(forking_python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON", str(forking_python))
