"""Arbitrary bytes on both transports: the stored inputs and fixed mutations of them.

`make soak` runs a fuzzer for ten minutes.
"""

import itertools
import re
import time
from pathlib import Path

import pytest
from tests.fuzz.transports import HERE, SIDES, attempts_on, corpus_of, mutations_of, open_stage

SECONDS = 4.0
"""That a side is tried for at the most, beyond its stored inputs."""
MUTATIONS = 120


ANSWERED: dict[str, dict[str, str]] = {
    "client-stdio": {"list": '"name":"calm_steady_mirrored"', "steady": '"text": "x"', "bytes": "not UTF-8"},
    "client-http": {"list": '"name":"calm_steady_mirrored"', "steady": '"text": "x"', "encoded": "HTTP/1.1 415"},
    "upstream-stdio": {"text": "^parrot$", "error": "'stdio' refused 'parrot': no", "none": "^true$"},
    "upstream-http": {"json-text": "^parrot$", "events-text": "^parrot$", "raw-redirect": "'http' "},
}
"""What some stored inputs must have for an answer: else they would try nothing."""


@pytest.mark.slow
@pytest.mark.parametrize("side", SIDES)
async def test_random_bytes_get_an_answer_or_a_closed_connection(tmp_path: Path, side: str) -> None:
    corpus = corpus_of(side)
    assert len(corpus) > 10
    async with open_stage(tmp_path) as stage, attempts_on(stage, side) as attempt:
        answers: dict[bytes, str] = {}
        until = time.monotonic() + SECONDS
        for count, data in enumerate(itertools.chain(corpus, itertools.islice(mutations_of(corpus, 7), MUTATIONS))):
            if count >= len(corpus) and time.monotonic() > until:
                break
            try:
                answers[data] = await attempt(data)
            except BaseException as error:
                error.add_note(f"The input: {data!r}")
                raise
        for name, wanted in ANSWERED[side].items():
            its_own = answers[(HERE / f"corpus-{side}" / name).read_bytes()]  # answers come in any order
            assert re.search(wanted, "".join(answers.values()) if side == "client-stdio" else its_own), name
