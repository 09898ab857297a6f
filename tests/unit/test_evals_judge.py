"""Calls, files, answers and paths of a run are checked against its case."""

from typing import Any

import pytest

from mcp_mirror.evals.cases import Answer, Case, ExpectedCall, Files, ResultOf
from mcp_mirror.evals.conversation import Call, End, MadeCall, ReceivedCall, Result, Transcript
from mcp_mirror.evals.judge import Run, Verdict, judge
from mcp_mirror.evals.pointers import bases_in_results, judge_pointer, value_at

UUID = "9c1d4f0e-6a55-4b8e-9d0a-0f3b2f6f6a11"
GET = f"get-{UUID}"
OTHER = f"other-{UUID}"
KNOWN = {GET: "", OTHER: ""}
NOTICE = f'"{GET}"\nThis path stands for object 9 kB.\nUse the path as the argument of the next tool.'
TEXT = "word " * 9
VALUE = {"rows": [{"a": 1}], "text": TEXT}


def made(
    name: str, text: str, arguments: dict[str, Any] | None = None, *seen: ReceivedCall, fails: bool = False
) -> MadeCall:
    return MadeCall(Result(Call("c", f"{name}_mirrored", arguments or {}), text, is_error=fails), seen)


def got(value: Any = VALUE) -> MadeCall:
    return made("get", NOTICE, {"number": 1}, ReceivedCall("get", {"number": 1}, value))


def sent(written: Any, received: Any, *, fails: bool = False) -> MadeCall:
    seen = () if fails else (ReceivedCall("send", {"text": received}, "sent"),)
    return made("send", "no such path" if fails else "sent", {"text": written}, *seen, fails=fails)


def own_name(name: str) -> str:
    return name.removesuffix("_mirrored")


def verdict(case: Case, *calls: MadeCall, answer: str = "Done.", end: End = "answered", **more: Any) -> Verdict:
    run = {"files": {}, "gateway": True, **more}
    return judge(case, Run(Transcript((), calls, end, answer, "why"), name_of=own_name, **run))


def case(**keys: Any) -> Case:
    return Case(title="T", servers={}, prompt="P", **keys)


def failed(found: Verdict) -> dict[str, str]:
    return {check.name: check.reason for check in found.checks if not check.passed}


GET_CALL = ExpectedCall(tool=("get",))
SEND_CALL = ExpectedCall(tool=("send",), pointer_input={"text": "get/rows"})


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (f"{GET}/rows", "exact"),
        (f"`{GET}/rows`", "forgiven"),
        (f"memory://{GET}/rows", "forgiven"),
        (f"see {GET}/rows", "wrong"),
        (f"{OTHER}/rows", "wrong"),
        (f"{GET[:-1]}0/rows", "wrong"),
        (f"{GET}/row", "wrong"),
        (GET, "wrong"),
        ([{"a": 1}], "wrong"),
        ("x" * 500, "wrong"),
    ],
)
def test_a_path_is_judged_as_exact_forgiven_or_wrong(value: Any, form: str) -> None:
    judged = judge_pointer(value, KNOWN, "get/rows")
    assert judged.form == form
    assert (judged.path is None) == (form == "wrong")
    assert bool(judged.reason) == (form != "exact")
    assert len(judged.reason) < 200


def test_a_whole_notice_is_forgiven_and_one_with_two_paths_is_wrong() -> None:
    assert judge_pointer(NOTICE, {GET: NOTICE}, "get").form == "forgiven"
    assert judge_pointer(NOTICE.replace("object", OTHER), KNOWN, "").form == "wrong"


def test_a_notice_without_its_path_is_forgiven_if_it_is_a_copy_of_one() -> None:
    lines = [
        "This path stands for the result. Preview, not the result: text, 9 kB",
        "| a",
        "| b",
        "Use it in the next tool.",
    ]
    copied, wrong = "\n".join(lines), "\n".join([lines[0], "| x", "| y", lines[-1]])
    known = {GET: f'"{GET}"\n{copied}', OTHER: f'"{OTHER}"\nThis path stands for 1 kB.\nUse it in the next tool.'}
    assert judge_pointer(copied.replace("| b", "| c"), known, "get").form == "forgiven"
    assert judge_pointer(wrong, known, "get").form == "wrong"
    assert judge_pointer(copied, {**known, OTHER: known[GET]}, "").form == "wrong"


def test_without_a_named_source_any_known_path_is_exact() -> None:
    assert judge_pointer(f"{OTHER}/x", KNOWN, "").form == "exact"
    assert judge_pointer(OTHER, {GET: ""}, "").form == "wrong"


@pytest.mark.parametrize(
    ("value", "source", "name", "form"),
    [
        (GET, "get/rows", "rows", "forgiven"),
        (f"{GET}/data", "get/data/rows", "rows", "forgiven"),
        (GET, "get/rows", "data", "wrong"),
        (GET, "get/data/rows", "rows", "wrong"),
        (GET, "", "rows", "exact"),
    ],
)
def test_the_path_of_an_object_stands_for_its_key_with_the_arguments_name(
    value: str, source: str, name: str, form: str
) -> None:
    assert judge_pointer(value, KNOWN, source, name).form == form


def test_known_bases_are_those_that_results_add_to_their_calls() -> None:
    assert [*bases_in_results([got(), made("read", f"{GET} holds text", {"path": GET})])] == [GET]
    assert bases_in_results([made("read", f"no {OTHER}, nearest {GET}", {"path": OTHER}, fails=True)]).keys() == {GET}


def test_a_value_is_found_by_a_pointer() -> None:
    assert value_at(VALUE, "/rows/0/a") == 1
    for pointer in ("/rows/x", "/rows/7", "/gone", "/text/0"):
        with pytest.raises(LookupError):
            value_at(VALUE, pointer)


PASS_ON = case(calls=(GET_CALL, SEND_CALL))


@pytest.mark.parametrize(
    ("written", "received", "exact", "arrived", "passed"),
    [
        (f"{GET}/rows", '[{"a": 1}]', True, True, True),
        (f'"{GET}/rows"', [{"a": 1}], False, True, True),
        (f"{GET}/rows", "something else", True, False, True),
        ("[]", "[]", False, False, False),
        ('[{"a": 1}]', '[{"a": 1}]', False, True, False),
        (None, None, False, False, False),
    ],
)
def test_exact_paths_and_received_values_are_judged_separately(
    *, written: Any, received: Any, exact: bool, arrived: bool, passed: bool
) -> None:
    found = verdict(PASS_ON, got(), sent(written, received))
    assert (found.exact, found.received, found.passed) == (exact, arrived, passed)


def test_without_records_an_accepted_path_counts_as_received() -> None:
    calls = (made("get", NOTICE), made("send", "sent", {"text": f"{GET}/rows"}))
    assert verdict(PASS_ON, *calls).received is True
    assert verdict(PASS_ON, calls[0], made("send", "sent", {"text": "rows"})).received is False


def test_of_several_attempts_the_last_success_counts() -> None:
    found = verdict(PASS_ON, got(), sent("rows", None, fails=True), sent(f"{GET}/rows", [{"a": 1}]))
    assert (found.passed, found.exact, found.received) == (True, True, True)
    found = verdict(PASS_ON, got(), sent(f"{GET}/rows", None, fails=True))
    assert (found.exact, found.received) == (True, False)
    assert failed(found) == {"calls send": "0 successful calls, expected 1; 1 failed: 'no such path'"}


def test_without_a_named_source_the_value_of_the_path_must_arrive() -> None:
    anyone = case(calls=(ExpectedCall(tool=("send",), pointer_input=("text",)),))
    assert verdict(anyone, got(), sent(f"{GET}/text", TEXT)).received is True
    assert verdict(anyone, got(), sent(f"{GET}/text", "word")).received is False
    assert verdict(anyone, got(), sent("word", "word")).received is False


def test_a_path_can_be_known_from_earlier_calls() -> None:
    pass_on = case(calls=(SEND_CALL,))
    call = sent(f"{GET}/rows", [{"a": 1}])
    assert verdict(pass_on, call, earlier=(got(),), earlier_bases={GET: ""}).exact is True
    assert failed(verdict(pass_on, call, earlier=(got(),))) == {
        "path for send.text": f"a path that no result contained: '{GET}/rows'"
    }


def test_a_missing_call_fails_all_its_checks() -> None:
    stored = case(calls=(GET_CALL, SEND_CALL.model_copy(update={"pointer_result": False})))
    found = verdict(stored, got())
    assert failed(found) == {
        "calls send": "0 successful calls, expected 1",
        "path for send.text": "the call was not made",
        "send is not stored": "the call did not succeed",
    }
    assert (found.exact, found.received) == (False, False)
    assert failed(verdict(PASS_ON, got(), made("send", "sent")))["path for send.text"] == "the argument is missing"


@pytest.mark.parametrize(
    ("expected", "times", "reason"),
    [
        ({}, 1, None),
        ({}, 2, "2 successful calls, expected 1"),
        ({"allow_multiple": True}, 2, None),
        ({"allow_multiple": True, "count": 2}, 1, "1 successful calls, expected at least 2"),
        ({"count": 0}, 0, None),
        ({"arguments": {"number": 1}}, 1, None),
        ({"arguments": {"number": 2}}, 1, "0 successful calls, expected 1; called with '{\"number\": 1}'"),
    ],
)
def test_calls_are_counted(expected: dict[str, Any], times: int, reason: str | None) -> None:
    found = verdict(case(calls=(ExpectedCall(tool=("get",), **expected),)), *[got()] * times)
    assert list(failed(found).values()) == ([reason] if reason else [])


@pytest.mark.parametrize(("written", "received", "counts"), [("1", 1, True), ("1", "1", False), ("2", 2, False)])
def test_arguments_count_as_the_tool_received_them(written: str, received: Any, *, counts: bool) -> None:
    call = made("get", NOTICE, {"number": written}, ReceivedCall("get", {"number": received}, VALUE))
    assert verdict(case(calls=(ExpectedCall(tool=("get",), arguments={"number": 1}),)), call).passed == counts


def test_any_of_several_tools_is_accepted() -> None:
    either = case(calls=(ExpectedCall(tool=("take", "get")),))
    assert verdict(either, got()).passed
    assert failed(verdict(either)) == {"calls take or get": "0 successful calls, expected 1"}


def test_the_order_of_calls_is_checked_if_the_case_wants_it() -> None:
    calls = (made("send", "sent"), got())
    both = (GET_CALL, ExpectedCall(tool=("send",)))
    assert failed(verdict(case(calls=both), *calls)) == {"order": "send came before get"}
    assert verdict(case(calls=both), *calls[::-1]).passed
    assert verdict(case(calls=both, order=False), *calls).passed


@pytest.mark.parametrize(
    ("is_stored", "text", "passed"), [(True, NOTICE, True), (False, "9", True), (True, "9", False)]
)
def test_a_stored_result_is_required_or_forbidden(*, is_stored: bool, text: str, passed: bool) -> None:
    expected = case(calls=(ExpectedCall(tool=("get",), pointer_result=is_stored),))
    assert verdict(expected, made("get", text)).passed is passed


def test_forbidden_tools_are_named() -> None:
    assert failed(verdict(case(forbid=("memory_*", "get*")), made("memory_read", ""), got())) == {
        "no memory_*": "called memory_read",
        "no get*": "called get",
    }


def test_an_answer_is_compared_without_case_and_space() -> None:
    wanted = Answer(
        contains=(("the  Sky",), ("blue", "azure")), any_of=("today", "now"), excludes=("red",), max_tokens=30
    )
    assert verdict(case(answer=wanted), answer="Now the\nsky is AZURE").passed
    assert list(failed(verdict(case(answer=wanted), answer="red " * 99))) == [
        "answer has the  Sky",
        "answer has blue or azure",
        "answer has today or now",
        "answer has no red",
        "answer of 30 tokens",
    ]


@pytest.mark.parametrize(
    ("answer", "is_there"),
    [
        *(("It is 17.", True), ("17, I think", True), ("(17)", True), ("17, 18", True)),
        *(("170", False), ("1,017", False), ("3.17", False), ("17.5", False)),
    ],
)
def test_a_number_is_not_found_in_a_longer_one(answer: str, *, is_there: bool) -> None:
    assert verdict(case(answer=Answer(contains=(("17",),))), answer=answer).passed is is_there


def test_a_conversation_that_did_not_end_with_an_answer_fails() -> None:
    assert failed(verdict(case(), end="calls")) == {"answered": "ended by calls why"}


@pytest.mark.parametrize(
    ("wanted", "stored", "reason"),
    [
        ("abc", b"abc", None),
        ("abc", b"abc\n", "it contains 'abc\\n'"),
        ("abc", None, "it does not exist"),
        (ResultOf(result_of="get", at="/text"), TEXT.encode(), None),
        (ResultOf(result_of="get", at="/text"), b"word", "it contains 'word'"),
        (ResultOf(result_of="get", at="/rows"), b'[{"a":1}]', None),
        (ResultOf(result_of="get", at="/rows"), b"[{", "it contains '[{'"),
        (
            ResultOf(result_of="get", at="/text", replace={"word": "work"}),
            TEXT.replace("d", "k").encode(),
            None,
        ),
        (ResultOf(result_of="get", at="/rows", replace={"a": "b"}), b'[{"a":1}]', None),
        (ResultOf(result_of="get", arguments={"number": 2}), b"{}", "the expected tool returned no result for it"),
        (ResultOf(result_of="get", at="/gone"), b"{}", "the expected tool returned no result for it"),
    ],
)
def test_a_file_must_have_the_expected_content(
    wanted: str | ResultOf, stored: bytes | None, reason: str | None
) -> None:
    found = verdict(case(files=Files(expected={"a": wanted})), got(), files={"a": stored})
    assert failed(found) == ({"file a": reason} if reason else {})


def test_without_the_gateway_paths_are_not_checked() -> None:
    ours, stored = ExpectedCall(tool=("memory_read",)), GET_CALL.model_copy(update={"pointer_result": True})
    expected = case(calls=(stored, ours, SEND_CALL))
    found = verdict(expected, got(), sent([{"a": 1}], [{"a": 1}]), gateway=False)
    assert (found.passed, found.exact, found.received) == (True, None, True)
    assert verdict(case(), gateway=False).received is None


@pytest.mark.parametrize(
    ("arguments", "passes"),
    [
        ({"name": "get", "arguments": {"number": 1}}, True),
        ({"name": "get_mirrored", "arguments": {"number": 1}}, True),
        ({"name": "get"}, False),
        ({"name": 1, "arguments": {"number": 1}}, False),
        ({"name": "get", "arguments": "1"}, False),
    ],
)
def test_a_call_tool_call_counts_as_the_call_of_its_tool(arguments: dict[str, Any], passes: bool) -> None:  # noqa: FBT001
    searched = MadeCall(Result(Call("c", "call_tool", arguments), NOTICE))
    assert verdict(case(calls=[ExpectedCall(tool=("get",), arguments={"number": 1})]), searched).passed is passes
