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

import trio

from ztrio.errors import ZtrioError
from ztrio.management import frames, place
from ztrio.management.subject import OPERATOR, Subject

__all__ = ["serve_operators"]

_CONNECTIONS: Final = 8
_PATIENCE: Final = 10.0  # seconds to wait for a question, and for an answer to be taken
_CHUNK: Final = 65536


@asynccontextmanager
async def serve_operators(
    subject: Subject, workspace: Path, *, trouble: Callable[[str], object] | None = None
) -> AsyncIterator[Path | None]:
    """Answer operators for as long as the body lasts.

    Args:
        subject: What they ask about.
        workspace: The directory that the socket is for. The caller must hold its lock: a socket that is there is taken
            for a dead server's.
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
                nursery.start_soon(_accept, listening, subject)
                try:
                    yield path
                except BaseException as error:  # noqa: BLE001, ASYNC103 - raised again below, outside the nursery
                    failure = error
                nursery.cancel_scope.cancel()
    finally:
        place.remove(path)
    if failure is not None:
        raise failure


async def _accept(listening: trio.socket.SocketType, subject: Subject) -> None:
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
            nursery.start_soon(_serve, trio.SocketStream(connection), subject, room)


async def _serve(stream: trio.SocketStream, subject: Subject, room: trio.CapacityLimiter) -> None:
    async with stream, room:
        try:
            if place.peer_uid(stream.socket) != os.geteuid():
                await _send(stream, frames.failure(code="FORBIDDEN", message="This server belongs to another user."))
                return
            await _answer_all(stream, subject)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            return  # the operator has gone


async def _answer_all(stream: trio.SocketStream, subject: Subject) -> None:
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
        await _send(stream, await _answer(request, subject))


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


async def _answer(request: frames.Request, subject: Subject) -> bytes:
    try:
        return frames.success(await _do(request, subject))
    except ZtrioError as error:
        return frames.failure(error)
    except Exception as error:  # noqa: BLE001 - a defect costs its own question only
        return frames.failure(code="INTERNAL_ERROR", message=f"The server failed: {type(error).__name__}: {error}.")


async def _do(request: frames.Request, subject: Subject) -> dict[str, Any]:
    desk = subject.desk
    match request:
        case frames.List():
            return {"pending_calls": desk.calls(OPERATOR)}
        case frames.Show(call_id):
            return {"pending_call": await desk.call(call_id, OPERATOR)}
        case frames.Cancel(call_id, kill):
            return await (subject.kill(call_id) if kill else desk.cancel(call_id, OPERATOR))
        case frames.Release(call_id, reason):
            return {"pending_call": await desk.release(call_id, reason, OPERATOR)}
        case frames.Tool(name, reads):
            return {"input_schema": await subject.tool_schema(name, reads=reads)}
        case frames.Reconcile(call_id, tool, arguments, session):
            return await subject.reconcile(call_id, tool, arguments, session=session)
        case frames.Replay(call_id, arguments, reconciles):
            return await subject.replay(call_id, arguments, reconciles=reconciles)
        case frames.Status():
            return await subject.status()
        case frames.Retry():
            return await subject.retry()
        case frames.Reload():
            return await subject.reload()
