"""The data that errors carry besides their messages."""

import pickle
from pathlib import Path

import pytest

from mcp_mirror.errors import (
    BusyError,
    EndpointError,
    FlowError,
    LogNote,
    MirrorError,
    RefusalReason,
    RefusedError,
    ToolError,
    UpstreamError,
    drop_tracebacks,
    summarize_traceback,
    walk_causes,
)


def test_an_endpoint_error_has_retry_after_and_context_exceeded() -> None:
    busy, full = EndpointError("busy", retry_after=2.5), EndpointError("full", is_context_exceeded=True)
    assert (str(busy), busy.retry_after, busy.is_context_exceeded) == ("busy", 2.5, False)
    assert (str(full), full.retry_after, full.is_context_exceeded) == ("full", None, True)
    assert isinstance(busy, MirrorError)


def test_a_refusal_has_the_code_message_and_data_of_the_peer() -> None:
    refused = RefusedError("It refused.", -32602, "no such thing", {"a": 1})
    assert (str(refused), refused.code, refused.peer_message, refused.data) == (
        "It refused.",
        -32602,
        "no such thing",
        {"a": 1},
    )


def test_log_messages_contain_nothing_that_a_peer_wrote() -> None:
    assert MirrorError("ours").log_message == "ours"
    assert RefusedError("It refused: c4nary.", -1, "c4nary").log_message == "A request was refused (error -1)."
    error = UpstreamError("It ended. Its last words: c4nary").with_log_message("It ended.")
    assert (error.log_message, str(error)) == ("It ended.", "It ended. Its last words: c4nary")


def test_a_traceback_summary_has_types_and_locations_but_no_values() -> None:
    try:
        int("c4nary")
    except ValueError as error:
        summary = summarize_traceback(error)
    assert summary.startswith("ValueError at unit/test_errors.py:")
    assert "c4nary" not in summary
    assert summarize_traceback(ValueError("c4nary")) == "ValueError at no known location"


def test_a_traceback_summary_names_call_causes_and_error_number() -> None:
    def fail() -> None:
        try:
            Path("/c4nary").stat()
        except OSError as error:
            raise KeyError("c4nary") from error

    with pytest.raises(KeyError) as caught:
        fail()
    caught.value.add_note("c4nary")
    caught.value.add_note(LogNote("call of say_mirrored, correlation c1"))
    summary = summarize_traceback(caught.value)
    assert summary.startswith("KeyError in call of say_mirrored, correlation c1 at unit/test_errors.py:")
    assert ", caused by FileNotFoundError (ENOENT) at " in summary
    assert "c4nary" not in summary
    assert summarize_traceback(OSError("c4nary")) == "OSError at no known location"


def test_a_refused_flow_is_a_tool_error_with_a_question() -> None:
    error = FlowError("It may not go there.", "crm -> mail in send", "May it go there?")
    assert isinstance(error, ToolError)
    assert (str(error), error.flow, error.elicitation) == (
        "It may not go there.",
        "crm -> mail in send",
        "May it go there?",
    )


def test_the_causes_of_an_error_are_listed_once_each() -> None:
    first, second = OSError("first"), ValueError("second")
    second.__cause__ = first
    first.__context__ = second
    assert list(walk_causes(second)) == [second, first]
    assert list(walk_causes(KeyError())) != []


def test_an_answered_error_keeps_no_variables_of_functions() -> None:
    def fail() -> None:
        try:
            int("x")
        except ValueError:
            raise ToolError("no number") from None

    with pytest.raises(ToolError) as caught:
        fail()
    drop_tracebacks(caught.value)
    assert [one.__traceback__ for one in walk_causes(caught.value)] == [None, None]


@pytest.mark.parametrize(
    "error",
    [
        BusyError("`limits.x` (1) calls are running.", 2.5),
        FlowError("No.", "key", "May it?"),
        RefusedError("Upstream 'a' refused.", -32000, "no", {"a": 1}),
        EndpointError("None.", retry_after=1.0, is_context_exceeded=True),
        ToolError("Again.", RefusalReason.QUOTA).with_log_message("A quota is used up."),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_another_process_keeps_message_and_attributes(error: MirrorError) -> None:
    received = pickle.loads(pickle.dumps(error))  # noqa: S301  # its own bytes
    assert type(received) is type(error)
    assert str(received) == str(error)
    assert vars(received) == vars(error)
