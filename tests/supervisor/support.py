"""What the tests of a call share: a supervisor with its events, and how to see that nothing is left of a call."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio
import trio.testing

import ztrio
from tests.supervisor.tools_for_calls import toolbox
from ztrio import AuditEvent, CallContext, Principal, View
from ztrio.testing import ScriptedBackend, ScriptedCall, open_scripted_supervisor

ANNA = CallContext(Principal("anna"))
BERT = CallContext(Principal("bert"))
ADMIN = CallContext(Principal("root"), View(admin=True))

SETTINGS = ztrio.Settings(termination_bound=2.0, commit_bound=10.0, shutdown_bound=3.0)

# One for each class of exception that may strike anywhere.
ANYTHING: list[BaseException] = [
    OSError(28, "No space left on device"),
    PermissionError(13, "Permission denied"),
    MemoryError(),
    RuntimeError("broken"),
    KeyboardInterrupt(),
    SystemExit(3),
]


@attrs.define
class Log:
    """What a supervisor published, in order: about calls, and about those of them that are pending."""

    events: list[AuditEvent] = attrs.field(factory=list)
    pending: list[AuditEvent] = attrs.field(factory=list)

    def take(self, event: AuditEvent) -> None:
        """Note an event."""
        (self.events if event.pending is None else self.pending).append(event)

    def names(self, job_id: str | None = None) -> list[str]:
        """The events of one call; of the only one, when its id is omitted."""
        jobs = {event.execution_job_id for event in self.events}
        if job_id is None:
            (job_id,) = jobs
        return [event.event for event in self.events if event.execution_job_id == job_id]

    def one(self, name: str) -> AuditEvent:
        """The only event of that name."""
        (found,) = [event for event in self.events if event.event == name]
        return found


@asynccontextmanager
async def opened(workspace: Path, script: Any = None, **options: Any) -> AsyncIterator[tuple[ztrio.Supervisor, Log]]:
    """A scripted supervisor for `toolbox`, with what it publishes."""
    backend = script if isinstance(script, ScriptedBackend) else ScriptedBackend(script or play)
    options.setdefault("settings", SETTINGS)
    log = Log()
    async with open_scripted_supervisor(toolbox, workspace, backend, **options) as supervisor:
        supervisor.audit.add_reducer(log.take)
        yield supervisor, log


async def play(call: ScriptedCall) -> Any:
    """Play every tool as its function would run."""
    await trio.lowlevel.checkpoint()
    for name in ("page", "fresh", "out"):
        if name in call.arguments:
            Path(call.arguments[name]).write_text(call.arguments.get("text", f"new {name}"))
    if "site" in call.arguments:
        Path(call.arguments["site"]).mkdir()
        (Path(call.arguments["site"]) / "index").write_text("new site")
    if call.request.function in ("count", "publish"):
        call.session["count"] = call.session.get("count", 0) + 1
        return call.session["count"]
    return None


async def sleep_forever(call: ScriptedCall) -> None:
    """Play a tool that has written everything and never ends."""
    await play(call)
    await trio.sleep_forever()


def fill(workspace: Path) -> dict[str, str]:
    """What `publish` is going to replace; its arguments."""
    (workspace / "page").write_text("old page")
    (workspace / "page").chmod(0o640)
    (workspace / "site").mkdir()
    (workspace / "site" / "index").write_text("old site")
    (workspace / "site" / "more").write_text("old more")
    return {"page": "page", "fresh": "fresh", "site": "site"}


async def settle() -> None:
    """Let everything that needs no time happen: the cleanup after an answer, for instance."""
    await trio.testing.wait_all_tasks_blocked()


async def nothing_left(supervisor: ztrio.Supervisor, workspace: Path) -> None:
    """Assert that no call holds anything any more."""
    await settle()
    left = supervisor.statistics()
    assert (0, 0, 0, 0, {}, 0) == (
        left.calls,
        left.pending.registry.in_flight,
        left.tickets.granted,
        left.tickets.waiting,
        left.tickets.keys,
        left.slots_in_use,
    )
    assert len(supervisor._runtime.pins) == 0
    assert [] == job_directories(workspace)


def job_directories(workspace: Path) -> list[Path]:
    """Job directories anywhere below the workspace."""
    return sorted(workspace.rglob(".ztrio-*"))


async def state(supervisor: ztrio.Supervisor, session: str = "default", context: CallContext = ztrio.LOCAL) -> Any:
    """(version, state) of a session, as it is stored; None where there is none."""
    row = await supervisor._runtime.store.session(context.principal.id, session)
    return None if row is None else (row.version, row.state)


def after(events: Iterable[str], first: str) -> list[str]:
    """The names that follow the first `first`."""
    names = list(events)
    return names[names.index(first) + 1 :]
