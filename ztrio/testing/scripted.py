"""A supervisor without processes and threads: for tests on a virtual clock, of ztrio and of programs that embed it.

Everything of a call is real but the worker, which a script plays, and the threads, whose work is done in line: trio's
`MockClock` jumps ahead when every task waits, and it does not know of threads.

    async def script(call):
        await trio.sleep(40)
        return {"done": True}

    async with open_scripted_supervisor(toolbox, tmp_path, script) as supervisor:
        with pytest.raises(ztrio.ToolTimeout):
            await supervisor.call("build", timeout=30)          # takes no time at all
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

from ztrio.errors import ZtrioError
from ztrio.jobs import Settings
from ztrio.opening import open_supervisor
from ztrio.plain import decode, encode, plain
from ztrio.policy import Policy
from ztrio.publication.exchange import FileOps
from ztrio.publication.staging import Publisher
from ztrio.store import Store
from ztrio.supervisor import Supervisor
from ztrio.tools import Toolbox
from ztrio.workers.backend import BackendSettings, BackendStatistics, Proof
from ztrio.workers.ladder import ContainmentReport
from ztrio.workers.wire import Failure, Request, Result

__all__ = ["Script", "ScriptedBackend", "ScriptedCall", "inline", "open_scripted_supervisor"]


@attrs.define
class ScriptedCall:
    """What a script is handed.

    Args:
        request: The call as a worker gets it.
        arguments: Its arguments; outputs name staging paths.
        session: The session state; what is left in it is committed.
        progress: Reports (progress, total, message), as `ToolContext.progress` does.
    """

    request: Request
    arguments: dict[str, Any]
    session: dict[str, Any]
    progress: Callable[[float, float | None, str | None], None]


Script = Callable[[ScriptedCall], Awaitable[Any]]
"""Plays the tool: returns its result, or raises; a `ZtrioError` stands for a worker that failed."""


async def _nothing(_: ScriptedCall) -> None:
    await trio.lowlevel.checkpoint()


async def inline(function: Callable[..., Any], /, *args: Any) -> Any:
    """Run a blocking function here and now; for `open_supervisor(blocking=)` on a virtual clock."""
    await trio.lowlevel.cancel_shielded_checkpoint()
    return function(*args)


@attrs.define(eq=False)
class ScriptedBackend:
    """A backend whose workers are scripts. Pass `open` as `open_supervisor(backend=)`.

    Args:
        script: Plays the tool.
        stall: Steps that never end: `acquire`, `send_request`, `receive`, `reload`.
        dies_after: Trio seconds from a kill to the proof of death; infinite for a process that cannot be killed.
    """

    script: Script = _nothing
    stall: Collection[str] = ()
    dies_after: float = 0.0
    # Counters of workers handed over, of those proven dead, and of those given up.
    handed_over: int = 0
    proven: int = 0
    unproven: int = 0
    # Trio times at which a worker was asked to end, with the grace it was given.
    terminations: list[tuple[float, float]] = attrs.field(factory=list)
    # `kill` and `terminate`, in the order in which workers were asked.
    ends: list[str] = attrs.field(factory=list)
    report: ContainmentReport = attrs.field(
        factory=lambda: ContainmentReport(backend="scripted", rung="scripted", complete=True)
    )

    def open(self, settings: BackendSettings) -> AbstractAsyncContextManager[ScriptedBackend]:
        """The backend factory."""
        del settings
        return self._open()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[ScriptedBackend]:
        yield self

    async def acquire(self) -> ScriptedWorker:
        """A worker."""
        await self.step("acquire")
        self.handed_over += 1
        return ScriptedWorker(self, 100_000 + self.handed_over)

    def statistics(self) -> BackendStatistics:
        """A snapshot."""
        return BackendStatistics("scripted", 0, 0, self.handed_over, self.unproven)

    async def reload(self, settings: BackendSettings) -> None:
        """A script stays what it is."""
        del settings
        await self.step("reload")

    async def step(self, name: str) -> None:
        """A checkpoint, or for ever."""
        await trio.lowlevel.checkpoint()
        if name in self.stall:
            await trio.sleep_forever()


@attrs.define(eq=False)
class ScriptedWorker:
    """A worker that is no process."""

    _backend: ScriptedBackend
    pid: int
    started_at: float = 0.0
    # None until the request was sent.
    _request: Request | None = None

    async def send_request(self, request: Request) -> None:
        """Take the call."""
        await self._backend.step("send_request")
        self._request = request

    async def receive(self, on_progress: Callable[[float, float | None, str | None], None]) -> Result | Failure:
        """Play the script."""
        await self._backend.step("receive")
        request = self._request
        assert request is not None
        call = ScriptedCall(request, decode(request.arguments), decode(request.session), on_progress)
        try:
            value = await self._backend.script(call)
        except ZtrioError:
            raise
        except Exception as error:  # noqa: BLE001 - a script may raise whatever a tool may
            kind = type(error).__name__
            return Failure(code="TOOL_ERROR", message=f"{kind}: {error}", exception_type=kind)
        state = encode(plain(call.session, rich=True))
        changed = state != request.session and not request.read_only
        return Result(value=encode(plain(value)), session=state if changed else None)

    def kill(self) -> None:
        """Note it: a script is no process, and `terminate` follows."""
        self._backend.ends.append("kill")

    async def terminate(self, *, grace: float, bound: float) -> Proof | None:
        """Die, or not."""
        killed_at = trio.current_time()
        self._backend.terminations.append((killed_at, grace))
        self._backend.ends.append("terminate")
        with trio.move_on_after(grace + bound):
            await trio.sleep(self._backend.dies_after)
            self._backend.proven += 1
            return Proof(
                rung="scripted",
                complete=True,
                pid=self.pid,
                status=-9,
                killed_at=killed_at,
                proven_at=trio.current_time(),
            )
        self._backend.unproven += 1
        return None

    def output_tail(self) -> str:
        """A script prints nothing that is captured."""
        return ""


@asynccontextmanager
async def open_scripted_supervisor(
    toolbox: Toolbox,
    workspace: Path,
    script: Script | ScriptedBackend = _nothing,
    *,
    store: Store | None = None,
    ops: FileOps | None = None,
    policy: Policy | None = None,
    settings: Settings | None = None,
) -> AsyncIterator[Supervisor]:
    """A supervisor whose workers are played by `script`, without processes and threads.

    Args:
        toolbox: The tools; their functions are not called (but reads in the server process are).
        workspace: An existing directory.
        script: Plays every tool, or a backend with more to set.
        store: Where things are kept, for example a `FaultyStore`.
        ops: File operations, for example `FaultyOps`.
        policy: Who may use what.
        settings: The bounds.
    """
    backend = script if isinstance(script, ScriptedBackend) else ScriptedBackend(script)
    async with open_supervisor(
        toolbox,
        workspace=workspace,
        store=store,
        backend=backend.open,
        sandbox="off",
        policy=policy,
        settings=settings,
        publisher=Publisher(workspace, ops=ops),
        blocking=inline,
    ) as supervisor:
        yield supervisor
