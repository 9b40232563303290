"""What enters an event passes a redactor, has a bound, and is withheld when the redactor fails."""

from typing import Any

import pytest

from tests.core.audit_support import drain, happened
from ztrio.audit import AuditBus, AuditEvent
from ztrio.redaction import MAX_TEXT, REDACTED, redacted_text, redacted_values


def hide(text: str) -> str:
    """A redactor that knows one secret, and one name of secrets."""
    name, colon, rest = text.partition(": ")
    return f"{name}{colon}{REDACTED}" if name == "password" and rest else text.replace("S3CR3T", REDACTED)


@pytest.mark.case("R56")
async def test_what_tools_and_callers_said_is_redacted() -> None:
    """Reason, cause and arguments are clean for the log, reducers, viewers and transactions alike."""
    recorded: list[AuditEvent] = []
    reduced: list[AuditEvent] = []
    bus = AuditBus(recorder=recorded.append, redact=hide)
    bus.add_reducer(reduced.append)
    facts: dict[str, Any] = {
        "reason": "no S3CR3T",
        "cause": "cancelled by client: S3CR3T",
        "arguments": {"url": "S3CR3T@x", "deep": [{"password": "hunter2"}]},
    }
    async with bus.subscribe() as viewer:
        published = bus.publish(happened("error", **facts))
        seen = drain(viewer)
    stamped = bus.stamp(happened("rollback", **facts))
    for event in (published, stamped, *recorded, *reduced, *seen):
        assert (f"no {REDACTED}", f"cancelled by client: {REDACTED}") == (event.reason, event.cause)
        assert {"url": f"{REDACTED}@x", "deep": [{"password": REDACTED}]} == event.arguments
    assert (1, 1, 1) == (len(recorded), len(reduced), len(seen))


async def test_an_event_that_says_nothing_is_not_looked_at() -> None:
    """A redactor costs nothing where no tool and no caller said anything: it is not called."""
    called: list[str] = []
    bus = AuditBus(redact=lambda text: called.append(text) or text)  # type: ignore[func-returns-value]
    for name in ("allow", "start", "commit"):
        bus.publish(happened(name, tool="S3CR3T", targets=("/ws/a",), proof={"rung": "group"}))
    assert [] == called


async def test_without_a_redactor_there_is_still_a_bound() -> None:
    """Where nobody looks for secrets, texts stay as they are, as long as they are not too long."""
    event = AuditBus().publish(happened("error", reason="S3CR3T " * 1000, arguments={"password": "hunter2"}))
    assert {"password": "hunter2"} == event.arguments
    assert event.reason is not None
    assert event.reason.startswith("S3CR3T S3CR3T")
    assert MAX_TEXT + 40 > len(event.reason)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a" * MAX_TEXT, "a" * MAX_TEXT),
        ("a" * 2000 + " " + "b" * 100, "a" * 2000 + " [101 more characters]"),
        ("a" * MAX_TEXT + " b", "a" * MAX_TEXT + " [2 more characters]"),
        ("a" * 5000, "a" * (MAX_TEXT - 256) + f" [{5000 - MAX_TEXT + 256} more characters]"),
    ],
)
def test_a_long_text_is_cut_between_words(text: str, kept: str) -> None:
    """A secret that the bound cuts in two would not be recognized, so its first half is left out as well."""
    assert kept == redacted_text(None, text)


def test_a_redactor_that_fails_lets_nothing_through() -> None:
    """What could not be looked through is withheld, and the call goes on."""

    def broken(text: str) -> str:
        raise ValueError(text)

    assert "[withheld: the redactor failed with ValueError]" == redacted_text(broken, "S3CR3T")
    assert {"[withheld: the redactor failed with ValueError]": REDACTED} == redacted_values(broken, {"a": "S3CR3T"})


def test_values_under_the_name_of_a_secret() -> None:
    """Whatever stands there is hidden, at any depth; flags and absence are none; other values keep their types."""
    before = {"password": {"a": ["x", 7, None, True, {"b": 1.5}]}, "other": ["x", 7, None, ("S3CR3T",)], "S3CR3T": 1}
    after = {
        "password": {"a": [REDACTED, REDACTED, None, True, {"b": REDACTED}]},
        "other": ["x", 7, None, [REDACTED]],
        REDACTED: REDACTED,  # its name holds one
    }
    assert after == redacted_values(hide, before)
