"""What the calls, the files and the answer of a run say against its case.

Pure: a transcript in, checks with their reasons out.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any, Final

from mcp_mirror.evals.cases import Case, ExpectedCall, ResultOf
from mcp_mirror.evals.conversation import Made, Transcript
from mcp_mirror.evals.pointers import Written, given_by, judge_pointer, value_at
from mcp_mirror.memory.tools.table import TOOLS
from mcp_mirror.paths import find_bases, label_of
from mcp_mirror.tokens import estimate_tokens

_SHOWN: Final = 160
_SPACE: Final = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that had to be so."""

    name: str
    passed: bool
    reason: str = ""
    """Why it did not pass."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """All of what was checked, and how paths were written."""

    checks: tuple[Check, ...]
    exact: bool | None = None
    """Each argument that had to be a path was one to the letter; None where none had to."""
    received: bool | None = None
    """The upstream got the value behind each of them."""

    @property
    def passed(self) -> bool:
        """All is well."""
        return all(check.passed for check in self.checks)


@dataclass(frozen=True, slots=True)
class Run:
    """What is judged."""

    transcript: Transcript
    files: Mapping[str, bytes | None]
    """Those that the case expects; None for one that is not there."""
    name_of: Callable[[str], str]
    """The upstream's own name of a tool by the name that it is listed under."""
    gateway: bool
    earlier: tuple[Made, ...] = ()
    """Calls that were made before the model was asked."""
    told: frozenset[str] = frozenset()
    """The bases that the model could know by them."""

    @property
    def named(self) -> tuple[tuple[str, Made], ...]:
        """The model's calls, each with its tool's own name."""
        return tuple((self.name_of(made.call.name), made) for made in self.transcript.made)

    def given_before(self, index: int) -> frozenset[str]:
        """The bases that the model could know before its call at this position."""
        return self.told | given_by(self.transcript.made[:index])

    def results_of(self, wanted: ResultOf) -> list[Any]:
        """What an upstream's tool answered with, as the upstream tells it, the newest first."""
        every = (*self.earlier, *self.transcript.made)
        seen = [seen for made in every for seen in made.witnessed if seen.tool == wanted.result_of]
        return [one.result for one in seen if _has(one.arguments, wanted.arguments)][::-1]


@dataclass(frozen=True, slots=True)
class _Match:
    """Calls that are an expected one."""

    expected: ExpectedCall
    tried: tuple[int, ...]
    """Positions of those that name its tool and have its arguments."""
    done: tuple[int, ...]
    """Of these, the ones that went well."""

    @property
    def counted(self) -> int | None:
        """The one that paths are judged by: the last that went well, else the last."""
        return (self.done or self.tried or (None,))[-1]


def judge(case: Case, run: Run) -> Verdict:
    """What came of a run."""
    matches = [_match(expected, run) for expected in case.calls if _is_there(expected, run)]
    pointers = [checked for match in matches for checked in _pointers(match, run)] if run.gateway else []
    checks = (
        _check_end(run.transcript),
        *(_check_count(match, run) for match in matches),
        *((_check_order(matches),) if case.order and len(matches) > 1 else ()),
        *(_check_pointer(match, name, written) for match, name, written in pointers),
        *(_check_stored(match, run) for match in matches if run.gateway and match.expected.pointer_result is not None),
        *(_check_forbidden(glob, run) for glob in case.forbid),
        *_check_answer(case, run.transcript.answer),
        *(_check_file(name, wanted, run) for name, wanted in case.files.expected.items()),
    )
    exact = all(written.form == "exact" for _, _, written in pointers) if pointers else None
    received = _all_received(matches, run) if any(match.expected.pointers for match in matches) else None
    return Verdict(checks, exact, received)


def _is_there(expected: ExpectedCall, run: Run) -> bool:
    """Without the gateway its own tools are not there to be called; a tool that never was is missed."""
    return run.gateway or not all(is_own(tool) for tool in expected.tool)


def is_own(tool: str) -> bool:
    """Whether a tool is the gateway's own."""
    return tool in TOOLS


def _match(expected: ExpectedCall, run: Run) -> _Match:
    tried = tuple(
        index
        for index, (name, made) in enumerate(run.named)
        if name in expected.tool and _has(made.call.arguments, expected.arguments)
    )
    return _Match(expected, tried, tuple(index for index in tried if not run.transcript.made[index].result.is_error))


def _has(arguments: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(key in arguments and arguments[key] == value for key, value in wanted.items())


def _check_end(transcript: Transcript) -> Check:
    reason = "" if transcript.end == "answered" else f"ended by {transcript.end} {transcript.detail}".strip()
    return Check("answered", not reason, reason)


def _title(expected: ExpectedCall) -> str:
    arguments = json.dumps(dict(expected.arguments)) if expected.arguments else ""
    return f"{' or '.join(expected.tool)}({arguments[1:-1]})" if arguments else " or ".join(expected.tool)


def _check_count(match: _Match, run: Run) -> Check:
    expected, done = match.expected, len(match.done)
    passed = done >= expected.count if expected.allow_multiple else done == expected.count
    if passed:
        return Check(f"calls {_title(expected)}", passed=True)
    failed = len(match.tried) - done
    last = run.transcript.made[match.tried[-1]].result if match.tried else None
    said = f"; {failed} failed: {_cut(last.text)}" if last and last.is_error else ""
    others = [_cut(json.dumps(dict(made.call.arguments))) for name, made in run.named if name in expected.tool]
    instead = f"; it was called with {', '.join(others)}" if others and not match.tried else ""
    at_least = "at least " if expected.allow_multiple else ""
    reason = f"called well {done} times, wanted {at_least}{expected.count}{said}{instead}"
    return Check(f"calls {_title(expected)}", passed=False, reason=reason)


def _check_order(matches: Iterable[_Match]) -> Check:
    """The first good call of each, in the order of the case; what was not called is told elsewhere."""
    firsts = [(match.done[0], _title(match.expected)) for match in matches if match.done]
    late = next((names for names in pairwise(firsts) if names[0][0] >= names[1][0]), None)
    reason = f"{late[1][1]} came before {late[0][1]}" if late else ""
    return Check("order", not reason, reason)


def _pointers(match: _Match, run: Run) -> list[tuple[_Match, str, Written]]:
    names = match.expected.pointers
    if (index := match.counted) is None:
        return [(match, name, Written("missing", "the call was not made")) for name in names]
    arguments = run.transcript.made[index].call.arguments
    given = run.given_before(index)
    return [(match, name, _judged(arguments, name, given, source)) for name, source in names.items()]


def _judged(arguments: Mapping[str, Any], name: str, given: frozenset[str], source: str) -> Written:
    if name not in arguments:
        return Written("missing", "the argument was not given")
    return judge_pointer(arguments[name], given, source)


def _check_pointer(match: _Match, name: str, written: Written) -> Check:
    return Check(f"path for {_title(match.expected)}.{name}", written.path is not None, written.reason)


def _check_stored(match: _Match, run: Run) -> Check:
    wanted = match.expected.pointer_result
    name = f"{_title(match.expected)} {'is' if wanted else 'is not'} stored"
    if not match.done:
        return Check(name, passed=False, reason="the call was not made")
    made = run.transcript.made[match.done[-1]]
    stored = bool(find_bases(made.result.text) - find_bases(str(made.call.arguments)))
    return Check(name, stored == wanted, "" if stored == wanted else f"the result reads {_cut(made.result.text)}")


def _check_forbidden(glob: str, run: Run) -> Check:
    called = sorted({name for name, _ in run.named if fnmatchcase(name, glob)})
    return Check(f"no {glob}", not called, f"called {', '.join(called)}" if called else "")


def _check_answer(case: Case, answer: str) -> Iterable[Check]:
    wanted = case.answer
    for texts in (*wanted.contains, *((wanted.any_of,) if wanted.any_of else ())):
        found = any(_says(answer, text) for text in texts)
        yield Check(f"answer has {' or '.join(texts)}", found, "" if found else f"the answer reads {_cut(answer)}")
    for text in wanted.excludes:
        found = _says(answer, text)
        yield Check(f"answer has no {text}", not found, f"the answer reads {_cut(answer)}" if found else "")
    if wanted.max_tokens is not None:
        tokens = estimate_tokens(answer.encode())
        passed = tokens <= wanted.max_tokens
        yield Check(f"answer of {wanted.max_tokens} tokens", passed, "" if passed else f"it takes {tokens}")


def _says(answer: str, text: str) -> bool:
    """Whether a text is in an answer, and not only as a part of a longer number: 17 is not in 170, 3.17, 17.5."""
    before = r"(?<!\d)(?<!\d[.,])" if text[:1].isdigit() else ""
    after = r"(?![.,]?\d)" if text[-1:].isdigit() else ""
    return re.search(f"{before}{re.escape(_folded(text))}{after}", _folded(answer)) is not None


def _folded(text: str) -> str:
    return _SPACE.sub(" ", text).casefold()


def _check_file(name: str, wanted: str | ResultOf, run: Run) -> Check:
    title, found = f"file {name}", run.files.get(name)
    if found is None:
        return Check(title, passed=False, reason="it is not there")
    texts = [wanted] if isinstance(wanted, str) else [*_texts_of(wanted, run)]
    if not texts:
        return Check(title, passed=False, reason="the tool whose result should be in it gave none")
    if any(_is_text(found, text) for text in texts):
        return Check(title, passed=True)
    return Check(title, passed=False, reason=f"it holds {_cut(found.decode(errors='replace'))}")


def _texts_of(wanted: ResultOf, run: Run) -> Iterable[Any]:
    tokens = [token.replace("~1", "/").replace("~0", "~") for token in wanted.at.split("/")[1:]]
    for result in run.results_of(wanted):
        with suppress(LookupError):
            yield _replaced(value_at(result, tokens), wanted.replace)


def _replaced(value: Any, replace: Mapping[str, str]) -> Any:
    for old, new in replace.items():
        value = value.replace(old, new) if isinstance(value, str) else value
    return value


def _is_text(found: bytes, value: Any) -> bool:
    """A text is held byte for byte; anything else as JSON of the same value."""
    if isinstance(value, str):
        return found == value.encode()
    try:
        return bool(json.loads(found) == value)
    except (ValueError, RecursionError):
        return False


def _all_received(matches: Iterable[_Match], run: Run) -> bool:
    return all(
        match.counted is not None and _is_received(run, match.counted, name, source)
        for match in matches
        for name, source in match.expected.pointers.items()
    )


def _is_received(run: Run, index: int, name: str, source: str) -> bool:
    """Whether the upstream got the value. Where no upstream tells, a path that was written well and taken counts."""
    made = run.transcript.made[index]
    if made.result.is_error:
        return False
    written = judge_pointer(made.call.arguments.get(name), run.given_before(index), source)
    got = next((seen.arguments[name] for seen in made.witnessed if name in seen.arguments), None)
    known = [*_sources(run, written, source)]
    if got is None or not known:
        return written.path is not None
    return any(_is_same(got, value) for value in known)


def _sources(run: Run, written: Written, source: str) -> Iterable[Any]:
    """The values that should have been received, as far as upstreams tell of them."""
    tool, _, pointer = source.partition("/")
    below = f"/{pointer}" if pointer else ""
    if not tool and written.path is not None:
        tool, below = label_of(written.path.base), str(written.path).removeprefix(written.path.base)
    return _texts_of(ResultOf(result_of=tool, at=below), run)


def _is_same(got: Any, value: Any) -> bool:
    """Equal, or one the JSON text of the other: the gateway gives a value the type that the argument takes."""
    return bool(got == value) or _parsed(got) == _parsed(value)


def _parsed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _cut(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
