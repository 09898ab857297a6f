"""The cases of a matrix with BeeAI's RequirementAgent in the place of our own loop: same servers, checks and log.

BeeAI needs an MCP SDK before 2, so the agent runs in an environment of its own (`beeai_agent.py`), a process for each
run; the gateway that it is a client of, and the judgement, are those of `mcp-mirror eval`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from mcp_mirror.evals.cases import Case
from mcp_mirror.evals.conversation import Call, Made, Reply, Result, Transcript, Usage, User, Witnessed
from mcp_mirror.evals.judge import Run, judge
from mcp_mirror.evals.log import Log, Record
from mcp_mirror.evals.matrix import Matrix, Setting
from mcp_mirror.evals.running import SYSTEM, record
from mcp_mirror.evals.stage import Place

_AGENT: Final = Path(__file__).with_name("beeai_agent.py")
_SLACK: Final = 120.0
"""Seconds beside the case's own in which the processes start and end."""
_SUFFIX: Final = "_mirrored"

Outcome = Mapping[str, Any]


def in_beeai(matrix: Matrix) -> Matrix:
    """The matrix with its models named so that rows of a table tell the harness, and runs of their own in a log."""
    models = [replace(model, name=f"{model.name} in BeeAI", harness="beeai") for model in matrix.models]
    return replace(matrix, models=models)


def run_missing(matrix: Matrix, log: Log, python: Path, done: Callable[[Record], None]) -> list[str]:
    """Make every run of a matrix that the log does not have; the keys of all.

    Args:
        matrix: Its models' dialects do not matter: BeeAI has its own. Runs without the gateway are left out.
        log: Where runs are put.
        python: The interpreter of the environment that has BeeAI.
        done: Is told of each.
    """
    settings = [setting for setting in matrix.settings() if setting.gateway and not setting.case.earlier]
    for setting in settings:
        if not log.has(setting.key):
            log.add(made := run_one(setting, python))
            done(made)
    return [setting.key for setting in settings]


def run_one(setting: Setting, python: Path) -> Record:
    """Make one run."""
    with TemporaryDirectory(prefix="mcp-mirror-eval-") as folder:
        place = Place(Path(folder), Path(setting.case.file).parent)
        place.prepare(setting.config, setting.case.files.given)
        outcome = _work(setting, place, python)
        transcript = _transcript(setting.case, outcome, place)
        files = {name: _bytes_of(place.files / name) for name in setting.case.files.expected}
        verdict = judge(setting.case, Run(transcript, files, lambda name: name.removesuffix(_SUFFIX), gateway=True))
        return record(setting, transcript, verdict)


def _work(setting: Setting, place: Place, python: Path) -> Outcome:
    """Let the agent work in its own environment."""
    limits, model = setting.case.limits, setting.model
    job = {
        "command": [sys.executable, "-m", "mcp_mirror", "serve", "--config", str(place.config)],
        "env": place.environ,
        "cwd": str(place.files),
        "witness": str(place.witness),
        "log": str(place.log),
        "base_url": model.base_url,
        "model": model.model or model.name,
        "system": model.system or SYSTEM,
        "prompt": setting.case.prompt,
        "temperature": model.temperature or 0.0,
        "seed": setting.seed,
        "max_tokens": model.max_tokens or 400,
        "max_calls": limits.calls,
        "max_seconds": limits.seconds,
    }
    done = subprocess.run(  # noqa: S603  # our own program in our own environment
        [str(python), str(_AGENT)],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        timeout=limits.seconds + _SLACK,
        env=os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"},  # a list that is fetched from the network else
        check=False,
    )
    if done.returncode:
        return {"calls": [], "end": "error", "detail": done.stderr.strip()[-500:]}
    outcome: Outcome = json.loads(done.stdout.strip().splitlines()[-1])
    return outcome


def _transcript(case: Case, outcome: Outcome, place: Place) -> Transcript:
    """The outcome in the words that runs of our own loop are judged in."""
    lines = place.witness.read_text().splitlines() if place.witness.exists() else []
    seen, made = 0, []
    for number, told in enumerate(outcome["calls"]):
        call = Call(f"call_{number}", told["tool"], told["arguments"])
        witnessed = tuple(Witnessed(**json.loads(line)) for line in lines[seen : told["witnessed"]])
        seen = told["witnessed"]
        made.append(Made(Result(call, told["text"], told["is_error"]), witnessed, told["seconds"]))
    answer = outcome.get("answer", "")
    said = [entry for one in made for entry in (Reply(calls=(one.call,)), one.result)]
    return Transcript(
        entries=(User(case.prompt), *said, Reply(answer=answer)),
        made=tuple(made),
        end=outcome["end"],
        answer=answer,
        detail=outcome.get("detail", ""),
        usage=Usage(outcome.get("prompt_tokens", 0), outcome.get("completion_tokens", 0)),
        seconds=outcome.get("seconds", 0.0),
    )


def _bytes_of(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
