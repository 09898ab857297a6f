"""Serves the model's weights on 127.0.0.1 with an API like OpenAI's until the parent process ends.

`python evals/model/serve.py` prints the base URL on one line when it is ready. The server enforces JSON schemas
(`response_format: json_schema`) and caches the beginnings of prompts.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Final

import xllamacpp

from fetch import QWEN, cache_folder

_CONTEXT: Final = 8_192
"""Tokens of each parallel conversation."""
_ERRORS: Final = 1
"""The log level: only errors."""


def main() -> None:
    """Serve until the parent process ends."""
    parser = argparse.ArgumentParser(description="Serve the model for `make eval`.")
    parser.add_argument("--weights", type=Path, default=cache_folder() / QWEN.file)
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--parallel", type=int, default=1, help="parallel conversations")
    given = parser.parse_args()
    parent = os.getppid()
    server = xllamacpp.Server(parameters(given.weights, given.port, given.threads, given.parallel))
    print(f"{server.listening_address}/v1", flush=True)
    while os.getppid() == parent:
        time.sleep(1)


def parameters(weights: Path, port: int, threads: int, parallel: int) -> xllamacpp.CommonParams:
    """Return the settings of the server."""
    chosen = xllamacpp.CommonParams()
    chosen.model.path = str(weights)
    chosen.model_alias = {QWEN.name}
    chosen.hostnames, chosen.port = ["127.0.0.1"], port
    chosen.n_ctx, chosen.n_parallel = _CONTEXT * parallel, parallel
    chosen.cpuparams.n_threads = chosen.cpuparams_batch.n_threads = threads
    chosen.prefill_assistant = False  # do not continue a final message of the assistant
    chosen.ui = False
    chosen.verbosity = _ERRORS
    return chosen


if __name__ == "__main__":
    main()
