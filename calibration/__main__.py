"""`make calibrate`: prints the errors of the estimates on the held-out texts; FIT=1 builds the table first.

FIT=1 fits the costs to the calibration texts and writes them into the package. RECOUNT=1 counts all texts again.
"""

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Final

HERE: Final = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]
sys.modules["mcp_mirror"] = package = ModuleType("mcp_mirror")  # only pure modules of it are used: it is not installed
package.__path__ = [str(HERE.parent / "src" / "mcp_mirror")]

from counts import TOKENIZERS, counter, kept  # noqa: E402
from mcp_mirror.tokens import PROVIDERS, estimate_tokens  # noqa: E402
from mcp_mirror.tokens.estimate import estimate_text  # noqa: E402
from table_file import encode_table  # noqa: E402
from texts import CUT, KINDS, Text, corpus, texts  # noqa: E402

TABLE: Final = HERE.parent / "src" / "mcp_mirror" / "tokens" / "costs.bin"
PER_KIND: Final = dict.fromkeys(KINDS[:11], 2100) | dict.fromkeys(KINDS[11:], 500)
"""Held-out texts of each kind."""


def held_out() -> list[Text]:
    """The texts that the estimates are judged on."""
    return [one for kind in KINDS for one in texts("held", PER_KIND[kind], (kind,))]


def refit() -> None:
    """Build and write the table."""
    from fit import fit

    chosen = list(texts("fit", 500))
    TABLE.write_bytes(encode_table(fit(chosen, [kept(name, "fit", chosen) for name in TOKENIZERS])))


def report() -> None:
    """Print a table for each tokenizer and, for `default`, against the largest count."""
    chosen = held_out()
    true = [kept(name, "held", chosen) for name in TOKENIZERS]
    estimates = [estimate_text(one.text, range(len(TOKENIZERS))) for one in chosen]
    for at, name in enumerate(TOKENIZERS):
        _print(
            name,
            [
                (one.kind, row[at], true[at][row_at])
                for row_at, (one, row) in enumerate(zip(chosen, estimates, strict=True))
            ],
        )
    largest = [max(counts) if min(counts) > 0 else -1 for counts in zip(*true, strict=True)]
    _print("default", [(one.kind, max(row), most) for one, row, most in zip(chosen, estimates, largest, strict=True)])


def _print(name: str, rows: list[tuple[str, int, int]]) -> None:
    print(f"\n{name}\n{'kind':10}{'texts':>7}{'short':>8}{'> 110 %':>9}{'mean':>8}{'least':>8}{'most':>8}")
    for kind in (*KINDS, "all"):
        ratios = [estimate / true for one, estimate, true in rows if kind in (one, "all") and true > 200]
        if ratios:
            short, over = (sum(test) / len(ratios) for test in ((r < 1 for r in ratios), (r > 1.1 for r in ratios)))
            print(
                f"{kind:10}{len(ratios):7,}{short:8.2%}{over:9.2%}{sum(ratios) / len(ratios):8.1%}"
                f"{min(ratios):8.1%}{max(ratios):8.1%}"
            )


def _fastest(call: Callable[[], object], times: int) -> float:
    taken = []
    for _ in range(times):
        before = time.perf_counter()
        call()
        taken.append(time.perf_counter() - before)
    return min(taken)


def speed() -> None:
    """Print how much faster an estimate is than the count that it is for, on 1 MB of prose and of code."""
    for kind in ("prose", "code"):
        whole = corpus(CUT[kind], "held")
        text = (whole * (1_000_000 // len(whole) + 1))[:999_999]
        estimate = _fastest(partial(estimate_tokens, text), 20)
        print(f"\n1 MB of {kind}: estimated for all in {1000 * estimate:.2f} ms")
        for name in PROVIDERS[1:]:
            count = counter(name)
            part = text[:50_000] if name.startswith("anthropic") else text
            took = _fastest(partial(count, part), 3) * len(text) / len(part)
            estimate = _fastest(partial(estimate_tokens, text, name), 20)
            print(
                f"  {name:14} counted in {1000 * took:8.1f} ms, estimated in {1000 * estimate:.2f} ms:"
                f" {took / estimate:6.0f} times"
            )


if __name__ == "__main__":
    if os.environ.get("FIT"):
        refit()
    report()
    speed()
