"""Performs the runs of a matrix with BeeAI's RequirementAgent instead of our own loop: same servers, checks and log.

BeeAI needs an MCP SDK before version 2, so the agent runs in a separate environment (`beeai_agent.py`), one process per
run. The gateway and the checks are those of `mcp-mirror eval`.
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
from mcp_mirror.evals.conversation import Call, MadeCall, ReceivedCall, Reply, Result, Transcript, Usage, User
from mcp_mirror.evals.judge import Run, judge
from mcp_mirror.evals.log import Log, Record
from mcp_mirror.evals.matrix import Matrix, Setting
from mcp_mirror.evals.servers import RunFolder
from mcp_mirror.evals.single_run import SYSTEM, record

_AGENT: Final = Path(__file__).with_name("beeai_agent.py")
_SLACK: Final = 120.0
"""Seconds for the start and the end of the processes, in addition to the limit of the case."""
_SUFFIX: Final = "_mirrored"

Outcome = Mapping[str, Any]


def in_beeai(matrix: Matrix) -> Matrix:
    """Return the matrix with BeeAI in the names of the models, so that rows of the table and keys of runs differ."""
    models = [replace(model, name=f"{model.name} in BeeAI", harness="beeai") for model in matrix.models]
    return replace(matrix, models=models)


def run_missing(matrix: Matrix, log: Log, python: Path, done: Callable[[Record], None]) -> list[str]:
    """Perform each run of a matrix that is not in the log, and return the keys of all runs.

    Args:
        matrix: The matrix. Dialects of models are not used, and runs without the gateway are left out.
        log: Has earlier runs and gets new ones.
        python: The interpreter of the environment with BeeAI.
        done: Called with the record of each new run.
    """
    settings = [setting for setting in matrix.settings() if setting.gateway and not setting.case.earlier]
    for setting in settings:
        if not log.has(setting.key):
            log.add(made := run_one(setting, python))
            done(made)
    return [setting.key for setting in settings]


def run_one(setting: Setting, python: Path) -> Record:
    """Perform one run."""
    with TemporaryDirectory(prefix="mcp-mirror-eval-") as folder:
        run_folder = RunFolder(Path(folder), Path(setting.case.file).parent)
        run_folder.prepare(setting.config, setting.case.files.given)
        outcome = _run_agent(setting, run_folder, python)
        transcript = _transcript(setting.case, outcome, run_folder)
        files = {name: _bytes_of(run_folder.files / name) for name in setting.case.files.expected}
        verdict = judge(setting.case, Run(transcript, files, lambda name: name.removesuffix(_SUFFIX), gateway=True))
        return record(setting, transcript, verdict)


def _run_agent(setting: Setting, run_folder: RunFolder, python: Path) -> Outcome:
    """Run the agent in its own environment."""
    limits, model = setting.case.limits, setting.model
    job = {
        "command": [sys.executable, "-m", "mcp_mirror", "serve", "--config", str(run_folder.config)],
        "env": run_folder.environ,
        "cwd": str(run_folder.files),
        "witness": str(run_folder.witness),
        "log": str(run_folder.log),
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
        env=os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"},  # otherwise it downloads a list
        check=False,
    )
    if done.returncode:
        return {"calls": [], "end": "error", "detail": done.stderr.strip()[-500:]}
    outcome: Outcome = json.loads(done.stdout.strip().splitlines()[-1])
    return outcome


def _transcript(case: Case, outcome: Outcome, run_folder: RunFolder) -> Transcript:
    """Convert the outcome to a transcript, which is judged like those of our own loop."""
    lines = run_folder.witness.read_text().splitlines() if run_folder.witness.exists() else []
    start, made_calls = 0, []
    for number, one in enumerate(outcome["calls"]):
        call = Call(f"call_{number}", one["tool"], one["arguments"])
        received = tuple(ReceivedCall(**json.loads(line)) for line in lines[start : one["lines"]])
        start = one["lines"]
        made_calls.append(MadeCall(Result(call, one["text"], one["is_error"]), received, one["seconds"]))
    answer = outcome.get("answer", "")
    entries = [entry for made in made_calls for entry in (Reply(calls=(made.call,)), made.result)]
    return Transcript(
        entries=(User(case.prompt), *entries, Reply(answer=answer)),
        made_calls=tuple(made_calls),
        end=outcome["end"],
        answer=answer,
        detail=outcome.get("detail", ""),
        usage=Usage(
            outcome.get("prompt_tokens", 0), outcome.get("completion_tokens", 0), steps=outcome.get("steps", 0)
        ),
        seconds=outcome.get("seconds", 0.0),
    )


def _bytes_of(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
