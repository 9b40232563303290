"""Supervisors whose workers are scripts, with calls of which nobody knows the end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import jsonschema
import pytest
import trio
import trio.testing

import ztrio
from tests.supervisor.support import SETTINGS, Log, play
from tests.supervisor.tools_for_calls import toolbox
from ztrio import AuditEvent
from ztrio.pending import PENDING_CALL_SCHEMA
from ztrio.testing import ScriptedBackend, ScriptedCall, inline

SERVER = "local:calls"


@attrs.define
class Shell(Log):
    """A supervisor with what it published and what its log was told."""

    supervisor: Any = None
    notices: list[tuple[str, dict[str, Any]]] = attrs.field(factory=list)

    def notify(self, name: str, **facts: Any) -> None:
        """Be the log."""
        self.notices.append((name, facts))

    @property
    def steps(self) -> list[tuple[str, str]]:
        """(step, state) of each event about a pending call."""
        return [(event.pending["step"], event.pending["state"]) for event in self.pending if event.pending is not None]


@asynccontextmanager
async def shell(workspace: Path, script: Any = None, **options: Any) -> AsyncIterator[Shell]:
    """A scripted supervisor for the toolbox `calls`."""
    backend = script if isinstance(script, ScriptedBackend) else ScriptedBackend(script or behave)
    options.setdefault("settings", SETTINGS)
    options.setdefault("store", None)
    found = Shell()
    async with ztrio.open_supervisor(
        toolbox,
        workspace=workspace,
        backend=backend.open,
        sandbox="off",
        blocking=inline,
        notify=found.notify,
        **options,
    ) as supervisor:
        found.supervisor = supervisor
        supervisor.audit.add_reducer(found.take)
        yield found


async def behave(call: ScriptedCall) -> Any:
    """Mail never ends, everything else does as its function would."""
    if call.request.function == "mail":
        await trio.sleep_forever()
    return await play(call)


async def lose(shell: Shell, **options: Any) -> ztrio.Unresolved:
    """A mail that is stopped in the middle; the error."""
    options.setdefault("timeout", 1.0)
    with pytest.raises(ztrio.Unresolved) as caught:
        await shell.supervisor.call("mail", **options)
    return caught.value


def pending_of(error: ztrio.ZtrioError) -> dict[str, Any]:
    """The pending call that an error shows, checked against the schema."""
    shown = error.details["pending_call"]
    conforms(shown)
    assert isinstance(shown, dict)
    return shown


def conforms(shown: Any) -> None:
    """Assert that it is what every surface shows."""
    jsonschema.validate(shown, dict(PENDING_CALL_SCHEMA), format_checker=jsonschema.FormatChecker())


def states(shell: Shell, context: ztrio.CallContext = ztrio.LOCAL) -> list[tuple[str, str]]:
    """(tool, state) of the pending calls that a caller sees."""
    calls = shell.supervisor.pending.calls(context)
    for call in calls:
        conforms(call)
    return [(call["tool"], call["state"]) for call in calls]


def proof(call_id: str, outcome: str) -> AuditEvent:
    """The event by which somebody says what became of a call."""
    return AuditEvent(event="pending_proof", pending={"call_id": call_id, "proof": outcome})
