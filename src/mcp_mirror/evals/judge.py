"""Checks the calls, files and answer of a run against its case.

Pure. The input is a transcript, the output are checks with reasons.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any, Final

import msgspec

from mcp_mirror import OWN_TOOLS
from mcp_mirror.evals.cases import Case, ExpectedCall, ResultOf
from mcp_mirror.evals.conversation import MadeCall, Transcript
from mcp_mirror.evals.pointers import JudgedPointer, bases_in_results, judge_pointer, value_at
from mcp_mirror.paths import slug_of
from mcp_mirror.tokens import estimate_tokens

_SHOWN: Final = 160
_SPACE: Final = re.compile(r"\s+")


class Check(msgspec.Struct, frozen=True):
    """The outcome of one check."""

    name: str
    passed: bool
    reason: str = ""
    """Why the check failed; empty if it passed."""


class Verdict(msgspec.Struct, frozen=True):
    """The checks of a run, and how the model wrote paths."""

    checks: tuple[Check, ...]
    exact: bool | None = None
    """Whether each argument that must be a path is an exact path; None without such arguments."""
    received: bool | None = None
    """Whether the upstream received the value of each such path; None without such arguments."""

    @property
    def passed(self) -> bool:
        """Whether all checks passed."""
        return all(check.passed for check in self.checks)


class Run(msgspec.Struct, frozen=True):
    """The data of a run that is judged."""

    transcript: Transcript
    files: Mapping[str, bytes | None]
    """The content of each file that the case expects; None if the file does not exist."""
    name_of: Callable[[str], str]
    """Returns the upstream's name of a tool for its listed name."""
    gateway: bool
    earlier: tuple[MadeCall, ...] = ()
    """Calls that were made before the prompt."""
    earlier_bases: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The bases in the results of those calls that the model saw."""

    @property
    def named_calls(self) -> tuple[tuple[str, MadeCall], ...]:
        """The model's calls, each with the upstream's name of its tool."""
        return tuple((self.name_of(made.named_call.name), made) for made in self.transcript.made_calls)


class _Match(msgspec.Struct, frozen=True):
    """The calls that match an expected call."""

    expected: ExpectedCall
    attempts: tuple[int, ...]
    """Indices of the calls with its tool and arguments."""
    successes: tuple[int, ...]
    """The attempts without an error."""

    @property
    def judged_call(self) -> int | None:
        """The call whose paths are judged: the last success, else the last attempt."""
        return (self.successes or self.attempts or (None,))[-1]


def judge(case: Case, run: Run) -> Verdict:
    """Judge a run."""
    # Without the gateway, calls of its own tools are not expected.
    expected_calls = [one for one in case.calls if run.gateway or not OWN_TOOLS.issuperset(one.tool)]
    matches = [_match(expected, run) for expected in expected_calls]
    checks = [_check_end(run.transcript)]
    checks += [_check_count(match, run) for match in matches]
    if case.order and len(matches) > 1:
        checks.append(_check_order(matches))
    pointers = [pointer for match in matches for pointer in _judge_pointers(match, run)] if run.gateway else []
    checks += [Check(f"path for {title}", judged.path is not None, judged.reason) for title, judged in pointers]
    if run.gateway:
        checks += [_check_stored(match, run) for match in matches if match.expected.pointer_result is not None]
    checks += [_check_forbidden(glob, run) for glob in case.forbid]
    checks += _check_answer(case, run.transcript.answer)
    checks += [_check_file(name, wanted, run) for name, wanted in case.files.expected.items()]
    exact = [judged.form == "exact" for _, judged in pointers]
    sources = ((match, name, source) for match in matches for name, source in match.expected.pointers.items())
    received = [_is_received(run, match.judged_call, name, source) for match, name, source in sources]
    return Verdict(tuple(checks), all(exact) if exact else None, all(received) if received else None)


def _match(expected: ExpectedCall, run: Run) -> _Match:
    attempts: list[int] = []
    for index, (name, made) in enumerate(run.named_calls):
        # The arguments are those that the model wrote, or those that the tool received.
        received = (call.arguments for call in made.received_calls if call.tool == name)
        has_arguments = any(_has(given, expected.arguments) for given in (made.named_call.arguments, *received))
        if name in expected.tool and has_arguments:
            attempts.append(index)
    successes = tuple(index for index in attempts if not run.transcript.made_calls[index].result.is_error)
    return _Match(expected, tuple(attempts), successes)


def _has(arguments: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(key in arguments and arguments[key] == value for key, value in wanted.items())


def _fail_if(is_failed: bool, name: str, reason: str) -> Check:  # noqa: FBT001  # reads as a condition
    """Return a check, which has the reason only if it failed."""
    return Check(name, not is_failed, reason if is_failed else "")


def _check_end(transcript: Transcript) -> Check:
    reason = f"ended by {transcript.end} {transcript.detail}".strip()
    return _fail_if(transcript.end != "answered", "answered", reason)


def _title(expected: ExpectedCall) -> str:
    arguments = json.dumps(dict(expected.arguments)) if expected.arguments else ""
    return f"{' or '.join(expected.tool)}({arguments[1:-1]})" if arguments else " or ".join(expected.tool)


def _check_count(match: _Match, run: Run) -> Check:
    expected, count = match.expected, len(match.successes)
    passed = count >= expected.count if expected.allow_multiple else count == expected.count
    at_least = "at least " if expected.allow_multiple else ""
    reason = f"{count} successful calls, expected {at_least}{expected.count}"
    if match.attempts:
        last = run.transcript.made_calls[match.attempts[-1]].result
        reason += f"; {len(match.attempts) - count} failed: {_cut(last.text)}" if last.is_error else ""
    else:
        given = [made.named_call.arguments for name, made in run.named_calls if name in expected.tool]
        reason += f"; called with {', '.join(_cut(json.dumps(dict(one))) for one in given)}" if given else ""
    return _fail_if(not passed, f"calls {_title(expected)}", reason)


def _check_order(matches: Iterable[_Match]) -> Check:
    """Compare the order of the first successes with the case. Other checks report missing calls."""
    firsts = [(match.successes[0], _title(match.expected)) for match in matches if match.successes]
    for (index, title), (following, following_title) in pairwise(firsts):
        if index >= following:
            return Check("order", passed=False, reason=f"{following_title} came before {title}")
    return Check("order", passed=True)


def _judge_pointers(match: _Match, run: Run) -> Iterable[tuple[str, JudgedPointer]]:
    """Yield the title and the judgement of each argument that must be a path."""
    for name, source in match.expected.pointers.items():
        yield f"{_title(match.expected)}.{name}", _judge_argument(run, match.judged_call, name, source)


def _judge_argument(run: Run, index: int | None, name: str, source: str) -> JudgedPointer:
    if index is None:
        return JudgedPointer("missing", "the call was not made")
    arguments = run.transcript.made_calls[index].named_call.arguments
    if name not in arguments:
        return JudgedPointer("missing", "the argument is missing")
    known = {**run.earlier_bases, **bases_in_results(run.transcript.made_calls[:index])}
    return judge_pointer(arguments[name], known, source, name)


def _check_stored(match: _Match, run: Run) -> Check:
    wanted = match.expected.pointer_result
    name = f"{_title(match.expected)} {'is' if wanted else 'is not'} stored"
    if not match.successes:
        return Check(name, passed=False, reason="the call did not succeed")
    made = run.transcript.made_calls[match.successes[-1]]
    stored = bool(bases_in_results([made]))
    return _fail_if(stored != wanted, name, f"the result is {_cut(made.result.text)}")


def _check_forbidden(glob: str, run: Run) -> Check:
    called = sorted({name for name, _ in run.named_calls if fnmatchcase(name, glob)})
    return _fail_if(bool(called), f"no {glob}", f"called {', '.join(called)}")


def _check_answer(case: Case, answer: str) -> Iterable[Check]:
    wanted, shown = case.answer, f"the answer is {_cut(answer)}"
    for texts in (*wanted.contains, *((wanted.any_of,) if wanted.any_of else ())):
        is_found = any(_contains(answer, text) for text in texts)
        yield _fail_if(not is_found, f"answer has {' or '.join(texts)}", shown)
    for text in wanted.excludes:
        yield _fail_if(_contains(answer, text), f"answer has no {text}", shown)
    if wanted.max_tokens is not None:
        tokens = estimate_tokens(answer.encode())
        yield _fail_if(tokens > wanted.max_tokens, f"answer of {wanted.max_tokens} tokens", f"it has {tokens}")


def _contains(answer: str, text: str) -> bool:
    """Whether a text is in an answer, but not as a part of a longer number: 17 is not in 170, 3.17, 17.5."""
    before = r"(?<!\d)(?<!\d[.,])" if text[:1].isdigit() else ""
    after = r"(?![.,]?\d)" if text[-1:].isdigit() else ""
    return re.search(f"{before}{re.escape(_fold(text))}{after}", _fold(answer)) is not None


def _fold(text: str) -> str:
    return _SPACE.sub(" ", text).casefold()


def _check_file(name: str, wanted: str | ResultOf, run: Run) -> Check:
    title, found = f"file {name}", run.files.get(name)
    if found is None:
        return Check(title, passed=False, reason="it does not exist")
    texts = [wanted] if isinstance(wanted, str) else [*_values_of(wanted, run)]
    if not texts:
        return Check(title, passed=False, reason="the expected tool returned no result for it")
    # A text is compared byte for byte, any other value as JSON.
    is_equal = any(found == text.encode() if isinstance(text, str) else _parse(found) == text for text in texts)
    return _fail_if(not is_equal, title, f"it contains {_cut(found.decode(errors='replace'))}")


def _values_of(wanted: ResultOf, run: Run) -> Iterable[Any]:
    """Yield the part that is wanted of each result of a tool, as its upstream recorded it, the newest first."""
    made_calls = (*run.earlier, *run.transcript.made_calls)
    received = [call for made in made_calls for call in made.received_calls if call.tool == wanted.result_of]
    for call in reversed(received):
        if _has(call.arguments, wanted.arguments):
            with suppress(LookupError):
                value = value_at(call.result, wanted.at)
                for old, new in wanted.replace.items():
                    value = value.replace(old, new) if isinstance(value, str) else value
                yield value


def _is_received(run: Run, index: int | None, name: str, source: str) -> bool:
    """Whether the upstream received the value. Without records of upstreams, an accepted path counts."""
    if index is None or (made := run.transcript.made_calls[index]).result.is_error:
        return False
    judged = _judge_argument(run, index, name, source)
    received = next((call.arguments[name] for call in made.received_calls if name in call.arguments), None)
    tool, _, pointer = source.partition("/")
    below = f"/{pointer}" if pointer else ""
    if not tool and judged.path is not None:
        tool, below = slug_of(judged.path.base), str(judged.path).removeprefix(judged.path.base)
    expected = [*_values_of(ResultOf(result_of=tool, at=below), run)]
    if received is None or not expected:
        return judged.path is not None
    # One may be the JSON text of the other: the gateway converts values for arguments.
    return any(received == value or _parse(received) == _parse(value) for value in expected)


def _parse(value: Any) -> Any:
    """A JSON text as its value; any other value unchanged."""
    if not isinstance(value, str | bytes):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _cut(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
