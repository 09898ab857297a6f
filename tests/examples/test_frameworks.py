"""Real frameworks drive local functions and an MCP server through one memory; the model is a script."""

import json
import math
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from samples import sample
from scripted_model import serving

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
VENVS = {"beeai_agent.py": ".venv-beeai"}
BOUND = 100
CELSIUS = [round(10 + 4 * math.sin(hour / 1394), 3) for hour in range(8760)]


@pytest.mark.parametrize(
    "example", sample(sorted(path.name for path in EXAMPLES.glob("*_agent.py")), "openai_sdk_agent.py".__eq__)
)
def test_a_framework_passes_on_by_path_what_its_model_never_sees(example: str) -> None:
    python = ROOT / VENVS.get(example, ".venv-examples") / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{python.parents[1].name} is not there: `make examples` makes it")
    with serving() as model:
        environment = {
            **os.environ,
            "OPENAI_BASE_URL": model.url,
            "OPENAI_API_BASE": model.url,
            "OPENAI_API_KEY": "none",
            "MIRROR_PYTHON": sys.executable,
        }
        ran = subprocess.run(
            [python, EXAMPLES / example], env=environment, capture_output=True, text=True, timeout=BOUND, check=False
        )
    average, above = round(sum(CELSIUS) / len(CELSIUS), 6), sum(value > 12 for value in CELSIUS)
    assert f"{average} degrees on average, {above} hours above 12." in ran.stdout, ran.stderr[-4000:]
    assert len(model.requests) == 4
    seen = json.dumps(model.requests)
    assert "load_table-" in seen
    assert not [pair for pair in pairwise(CELSIUS) if f"{pair[0]}, {pair[1]}" in seen or f"{pair[0]},{pair[1]}" in seen]
