"""Serve the model's weights on 127.0.0.1 with an API like OpenAI's, as long as the process that started it lives.

`python evals/model/serve.py` prints the base URL on one line when it is ready. The model answers in JSON under a
schema (`response_format: json_schema`); a prompt's beginning that was read before is not read again.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Final

import xllamacpp

from fetch import QWEN, cache_folder

_CONTEXT: Final = 8_192
"""Tokens of a conversation; each of several at a time gets as many."""
_ERRORS: Final = 1
"""What the server writes to standard error."""


def main() -> None:
    """Serve until the parent has ended."""
    parser = argparse.ArgumentParser(description="Serve the model that `make eval` asks.")
    parser.add_argument("--weights", type=Path, default=cache_folder() / QWEN.file)
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--parallel", type=int, default=1, help="conversations at a time")
    given = parser.parse_args()
    parent = os.getppid()
    server = xllamacpp.Server(parameters(given.weights, given.port, given.threads, given.parallel))
    print(f"{server.listening_address}/v1", flush=True)
    while os.getppid() == parent:
        time.sleep(1)


def parameters(weights: Path, port: int, threads: int, parallel: int) -> xllamacpp.CommonParams:
    """The server's settings."""
    chosen = xllamacpp.CommonParams()
    chosen.model.path = str(weights)
    chosen.model_alias = {QWEN.name}
    chosen.hostnames, chosen.port = ["127.0.0.1"], port
    chosen.n_ctx, chosen.n_parallel = _CONTEXT * parallel, parallel
    chosen.cpuparams.n_threads = chosen.cpuparams_batch.n_threads = threads
    chosen.prefill_assistant = False  # a message of the assistant at the end is no beginning to be gone on with
    chosen.ui = False
    chosen.verbosity = _ERRORS
    return chosen


if __name__ == "__main__":
    main()
