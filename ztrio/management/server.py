"""The socket's server: answers an operator of the same user, next to whatever else the process serves.

An operator sees and does what the owner of the process may: everybody's calls. So the kernel is asked who is there
before a byte is read. A connection that says nothing for a while is closed, because there are few of them.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from ztrio.calls import LOCAL
from ztrio.errors import InvalidArguments, ZtrioError
from ztrio.management import frames, place
from ztrio.supervisor import Supervisor
from ztrio.tools import Capability

__all__ = ["serve_operators"]

OPERATOR: Final = attrs.evolve(LOCAL, surface="cli")

_CONNECTIONS: Final = 8
_PATIENCE: Final = 10.0  # seconds to wait for a question, and for an answer to be taken
_CHUNK: Final = 65536


@asynccontextmanager
async def serve_operators(
    supervisor: Supervisor, workspace: Path, *, trouble: Callable[[str], object] | None = None
) -> AsyncIterator[Path | None]:
    """Answer operators for as long as the body lasts.

    Args:
        supervisor: What they ask about. It must hold the workspace's lock: a socket that is there is taken for a dead
            server's.
        workspace: The workspace.
        trouble: Told why there is no socket, where there can be none; the body goes on without.

    Yields:
        Path of the socket, or of the link to it; None where there is none.
    """
    try:
        bound, path = place.bind(workspace)
    except OSError as error:
        if trouble is not None:
            trouble(f"{type(error).__name__}: {error}")
        yield None
        return
    failure: BaseException | None = None
    try:
        bound.setblocking(False)
        with trio.socket.from_stdlib_socket(bound) as listening:
            listening.listen(_CONNECTIONS)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_accept, listening, supervisor)
                try:
                    yield path
                except BaseException as error:  # noqa: BLE001, ASYNC103 - raised again below, outside the nursery
                    failure = error
                nursery.cancel_scope.cancel()
    finally:
        place.remove(path)
    if failure is not None:
        raise failure


async def _accept(listening: trio.socket.SocketType, supervisor: Supervisor) -> None:
    room = trio.CapacityLimiter(_CONNECTIONS)
    async with trio.open_nursery() as nursery:
        while True:
            async with room:
                pass  # whoever has no room waits to be accepted
            try:
                connection, _ = await listening.accept()
            except OSError:
                await trio.sleep(0.1)  # no descriptors left, for instance: others will be free soon
                continue
            nursery.start_soon(_serve, trio.SocketStream(connection), supervisor, room)


async def _serve(stream: trio.SocketStream, supervisor: Supervisor, room: trio.CapacityLimiter) -> None:
    async with stream, room:
        try:
            if place.peer_uid(stream.socket) != os.geteuid():
                await _send(stream, frames.failure(code="FORBIDDEN", message="This server belongs to another user."))
                return
            await _answer_all(stream, supervisor)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            return  # the operator has gone


async def _answer_all(stream: trio.SocketStream, supervisor: Supervisor) -> None:
    rest = b""
    while True:
        line, rest = await _line(stream, rest)
        if line is None:
            return
        try:
            request = frames.decode_request(line)
        except frames.BadRequest as bad:
            await _send(stream, frames.failure(code="BAD_REQUEST", message=f"This is no question to a server: {bad}."))
            return
        await _send(stream, await _answer(request, supervisor))


async def _line(stream: trio.SocketStream, rest: bytes) -> tuple[bytes | None, bytes]:
    """The next line, and what came after it; None at the end, or when nothing comes, or too much."""
    got = bytearray(rest)
    with trio.move_on_after(_PATIENCE):
        while (end := got.find(b"\n")) < 0 or end >= frames.MAX_REQUEST:
            if len(got) >= frames.MAX_REQUEST:
                message = f"A question has at most {frames.MAX_REQUEST} bytes."
                await _send(stream, frames.failure(code="BAD_REQUEST", message=message))
                return None, b""
            chunk = await stream.receive_some(_CHUNK)
            if not chunk:
                return None, b""
            got += chunk
        return bytes(got[:end]), bytes(got[end + 1 :])
    return None, b""


async def _send(stream: trio.SocketStream, answer: bytes) -> None:
    with trio.fail_after(_PATIENCE):
        await stream.send_all(answer)


async def _answer(request: frames.Request, supervisor: Supervisor) -> bytes:
    try:
        return frames.success(await _do(request, supervisor))
    except ZtrioError as error:
        return frames.failure(error)
    except Exception as error:  # noqa: BLE001 - a defect costs its own question only
        return frames.failure(code="INTERNAL_ERROR", message=f"The server failed: {type(error).__name__}: {error}.")


async def _do(request: frames.Request, supervisor: Supervisor) -> dict[str, Any]:
    desk = supervisor.pending
    match request:
        case frames.List():
            return {"pending_calls": desk.calls(OPERATOR)}
        case frames.Show(call_id):
            return {"pending_call": await desk.call(call_id, OPERATOR)}
        case frames.Cancel(call_id):
            return await desk.cancel(call_id, OPERATOR)
        case frames.Release(call_id, reason):
            return {"pending_call": await desk.release(call_id, reason, OPERATOR)}
        case frames.Tool(name):
            return {"input_schema": _read_tool(supervisor, name)}
        case frames.Reconcile():
            return await _reconcile(request, supervisor)
        case frames.Reload():
            await supervisor.reload()
            return {"toolbox": supervisor.toolbox.name, "tools": [tool.name for tool in supervisor.toolbox]}


def _read_tool(supervisor: Supervisor, name: str) -> dict[str, Any]:
    """The input schema of a tool that only reads."""
    tool = supervisor.toolbox.get(name)
    if tool is None or tool.capability is not Capability.READ:
        reads = ", ".join(each.name for each in supervisor.toolbox if each.capability is Capability.READ) or "none"
        what = "there is no such tool" if tool is None else "it does not only read"
        raise InvalidArguments(f"{name}: {what}. A read settles a call; there are: {reads}. Nothing ran.")
    return tool.schema.input_schema


async def _reconcile(request: frames.Reconcile, supervisor: Supervisor) -> dict[str, Any]:
    desk = supervisor.pending
    _read_tool(supervisor, request.tool)
    call_id, principal, scope = await desk.owner(request.call_id, OPERATOR)
    if principal != OPERATOR.principal.id:
        raise InvalidArguments(
            "The call is another principal's, and only its own reads can settle it. Nothing ran; look, then release it."
        )
    answer = await supervisor.call(
        request.tool,
        request.arguments,
        session=request.session,
        context=attrs.evolve(OPERATOR, gate_scope=scope),
        reconciles=[call_id],
    )
    return {
        "pending_call": await desk.call(request.call_id, OPERATOR),
        "tool": request.tool,
        "value": answer.value,
        "job_id": answer.job_id,
    }
