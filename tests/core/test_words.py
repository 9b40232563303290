"""Calls, errors, policies: the words that everything else is said in."""

import inspect
import json
import re
from typing import Any

import attrs
import pytest

import ztrio
from ztrio import errors
from ztrio.calls import LOCAL, CallContext, CallResult, Cause, Outcome, Principal, View, new_id
from ztrio.errors import Unresolved, ZtrioError
from ztrio.policies import Input, Output
from ztrio.policy import allow

CLASSES = [
    value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, ZtrioError) and value.codes
]


def test_ids_are_fit_for_file_names() -> None:
    """An id is its prefix and 16 characters that need no quoting, and never comes twice."""
    ids = {new_id("job_") for _ in range(1000)}
    assert 1000 == len(ids)
    assert all(re.fullmatch("job_[a-z2-7]{16}", one) for one in ids)


def test_the_gate_scope_is_the_principal_unless_said_otherwise() -> None:
    """A surface may choose another scope; nobody else has to."""
    assert "ann" == CallContext(Principal("ann")).gate_scope
    assert "team" == CallContext(Principal("ann"), gate_scope="team").gate_scope
    assert ("local", True, "embed", None) == (
        LOCAL.principal.id,
        LOCAL.view.admin,
        LOCAL.surface,
        LOCAL.request_id,
    )
    assert View() == CallContext(Principal("ann")).view


def test_contexts_and_results_do_not_change() -> None:
    """What describes a call is frozen."""
    for value, name in ((LOCAL, "surface"), (CallResult(1, "job_x", Outcome.COMMITTED), "value")):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(value, name, None)


def test_the_first_cause_stands() -> None:
    """Whoever stops a call first says why; later words change nothing."""
    cause = Cause()
    assert cause.record("timeout") is True
    assert cause.record("cancelled by client: bored") is False
    assert "timeout" == cause.text


def make(kind: type[ZtrioError], **details: Any) -> ZtrioError:
    """An error of this class."""
    if issubclass(kind, Unresolved):
        return kind("It is not known. Look.", reason="termination_unconfirmed", **details)
    return kind("It failed. Mend it.", **details)


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_has_a_code_and_a_wire_form(kind: type[ZtrioError]) -> None:
    """An error prints its code first, and its JSON form holds what is known and nothing that is not."""
    error = make(kind, limit=3)
    assert f"{error.code}: {error.message}" == str(error)
    assert error.code in kind.codes
    assert {"code", "message", "limit"} == error.as_dict().keys() - {"reason"}
    error.job_id, error.outcome = "job_x", Outcome.ROLLED_BACK
    assert ("job_x", "rolled_back") == (error.as_dict()["job_id"], error.as_dict()["outcome"])
    assert type(error.as_dict()["outcome"]) is str
    assert error.as_dict() == json.loads(json.dumps(error.as_dict()))


def test_codes_belong_to_one_class() -> None:
    """A code leads to one decision, so to one class."""
    codes = [code for kind in CLASSES for code in kind.codes]
    assert sorted(set(codes)) == sorted(codes)


def test_a_foreign_code_is_a_mistake_of_the_program() -> None:
    """A class takes its own codes only."""
    assert "WORKER_START_FAILED" == errors.WorkerFailed("It did not start.", code="WORKER_START_FAILED").code
    with pytest.raises(ValueError, match="QueueFull has no code 'TOOL_ERROR'"):
        errors.QueueFull("No.", code="TOOL_ERROR")


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("termination_unconfirmed", "TERMINATION_UNCONFIRMED"),
        ("commit_unconfirmed", "COMMIT_UNCONFIRMED"),
        ("external_effects", "CALL_UNRESOLVED"),
    ],
)
def test_the_reason_decides_the_code_of_unresolved(reason: str, code: str) -> None:
    """Why a call is unresolved is on the error, in the code and in the wire form."""
    error = Unresolved("Look.", reason=reason)
    assert (code, reason, reason) == (error.code, error.reason, error.as_dict()["reason"])


def test_busy_means_safe_to_repeat() -> None:
    """One `except` catches everything that may be repeated without thought."""
    assert issubclass(ztrio.QueueFull, ztrio.Busy)
    assert issubclass(ztrio.QueueTimeout, ztrio.Busy)


def test_defaults_of_outputs() -> None:
    """A file is replaced, a directory is not: replacing one drops what else was in it."""
    assert ("file", "replace", True, "fail") == attrs.astuple(Output())
    assert "refuse" == Output(kind="dir").existing
    assert "copy_in" == Output(kind="dir", existing="copy_in").existing
    assert "any" == Input().kind


@pytest.mark.parametrize(
    "wrong", [{"kind": "link"}, {"existing": "keep"}, {"on_conflict": "ask"}, {"kind": None}], ids=str
)
def test_wrong_output_policies_are_refused_where_they_are_written(wrong: dict[str, Any]) -> None:
    """A misspelt policy is an error at once, not at the first call."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Output(**wrong)


def test_wrong_input_policies_are_refused_where_they_are_written() -> None:
    """The same for inputs."""
    with pytest.raises(ValueError, match="kind"):
        Input(kind="link")  # type: ignore[arg-type]


toolbox = ztrio.Toolbox("policies")


@toolbox.tool(capability="read")
def look() -> None:
    """Look."""


@toolbox.tool(capability="write")
def change() -> None:
    """Change."""


@toolbox.tool(capability="destructive")
def drop() -> None:
    """Drop."""


@pytest.mark.parametrize(
    ("granted", "allowed"),
    [
        ((), []),
        (("read",), ["look"]),
        (("write", "read"), ["look", "change"]),
        (("destructive",), ["drop"]),
        (("read", "write", "destructive"), ["look", "change", "drop"]),
    ],
)
def test_allow_grants_what_it_names(granted: tuple[str, ...], allowed: list[str]) -> None:
    """The policy lets through the capabilities given, and refuses the others saying which are."""
    policy = allow(*granted)
    answers = {tool.name: policy(LOCAL, tool) for tool in toolbox}
    assert allowed == [name for name, reason in answers.items() if reason is None]
    for reason in filter(None, answers.values()):
        assert reason.endswith(f"(allowed: {', '.join(sorted(granted)) or 'none'})")


def test_allow_knows_its_words() -> None:
    """A misspelt capability is refused with the choice there is."""
    with pytest.raises(
        ztrio.InvalidArguments, match="'writ' is not a capability; choose from read, write, destructive"
    ):
        allow("read", "writ")
