"""Frames between supervisor and worker: a four-byte length, a one-byte kind, a MessagePack body.

msgspec decodes each body into the attrs class that its kind names, under a size limit. Whatever does not fit is a
`ProtocolError`: a worker runs foreign code and may send anything.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import attrs
import msgspec

from ztrio.workers.sandbox import SandboxPolicy

__all__ = [
    "MAX_FRAME",
    "Boot",
    "Failure",
    "Frame",
    "FrameDecoder",
    "Progress",
    "ProtocolError",
    "Ready",
    "Request",
    "Result",
    "Started",
    "encode_frame",
]

MAX_FRAME: Final = 32 * 2**20
"""Bytes of the largest frame accepted; above what the bounds on results and state can add up to."""

_HEADER: Final = struct.Struct("<IB")


class ProtocolError(Exception):
    """The other side sent something that is no frame of this protocol."""


@attrs.frozen(kw_only=True)
class Boot:
    """Supervisor → worker, first: what to load before a request is there.

    Args:
        modules: (name, file or None) of each module to load, see `loading.ModuleRef`.
        functions: (module name, function name) of each tool, to build its validators early.
    """

    modules: list[tuple[str, str | None]]
    functions: list[tuple[str, str]]


@attrs.frozen(kw_only=True)
class Request:
    """Supervisor → worker, once: the call.

    Args:
        job_id: The call's id.
        tool: The tool's name.
        module: (name, file or None) of the function's module.
        function: Name of the function.
        arguments: `plain.encode` of the arguments; outputs already name staging paths.
        session: `plain.encode` of the session state.
        session_name: The caller's name for the session.
        principal: Id of who calls.
        request_id: `plain.encode` of the caller's own request id.
        workspace: Absolute path, becomes the current directory.
        tmp: Absolute path, becomes TMPDIR.
        env: Variables beside the standard ones.
        read_only: The session is a copy; it is not sent back.
        max_result: Bytes of the largest encoded result.
        max_state: Bytes of the largest encoded session state.
        sandbox: What the worker gives up before the tool runs.
        init: Put a real PID 1 above the tool, where the worker would be it.
    """

    job_id: str
    tool: str
    module: tuple[str, str | None]
    function: str
    arguments: bytes
    session: bytes
    session_name: str
    principal: str
    request_id: bytes
    workspace: str
    tmp: str
    env: dict[str, str]
    read_only: bool
    max_result: int
    max_state: int
    sandbox: SandboxPolicy = attrs.field(factory=SandboxPolicy)
    init: bool = False


@attrs.frozen(kw_only=True)
class Ready:
    """Worker → supervisor, first: everything is loaded. `problem` says why not."""

    problem: str | None = None


@attrs.frozen(kw_only=True)
class Started:
    """Worker → supervisor: the request is here; the clock of `timeout` starts. `problem` says why it does not."""

    problem: str | None = None


@attrs.frozen(kw_only=True)
class Progress:
    """Worker → supervisor: `ToolContext.progress` was called."""

    progress: float
    total: float | None = None
    message: str | None = None


@attrs.frozen(kw_only=True)
class Result:
    """Worker → supervisor, last: the tool returned.

    Args:
        value: `plain.encode` of the result.
        session: `plain.encode` of the session state, or None where it did not change.
    """

    value: bytes
    session: bytes | None = None


@attrs.frozen(kw_only=True)
class Failure:
    """Worker → supervisor, last: the tool failed.

    Args:
        code: TOOL_ERROR, RESULT_TOO_LARGE or STATE_TOO_LARGE.
        message: A sentence.
        exception_type: Qualified class name of the exception, or None.
        traceback: The traceback, bounded.
        path: The path that the tool was denied.
        limit: The limit that the tool reached, a name of `Limits`.
    """

    code: str
    message: str
    exception_type: str | None = None
    traceback: str = ""
    path: str | None = None
    limit: str | None = None


Frame = Boot | Request | Ready | Started | Progress | Result | Failure

_KINDS: Final[tuple[type[Any], ...]] = (Boot, Request, Ready, Started, Progress, Result, Failure)
_CODES: Final = {kind: code for code, kind in enumerate(_KINDS, start=1)}
_DECODERS: Final = {code: msgspec.msgpack.Decoder(kind) for kind, code in _CODES.items()}
_encoder = msgspec.msgpack.Encoder()


def encode_frame(frame: Frame) -> bytes:
    """The bytes of one frame.

    Raises:
        ProtocolError: the frame is larger than `MAX_FRAME`.
    """
    body = _encoder.encode(frame)
    if len(body) > MAX_FRAME:
        raise ProtocolError(f"a {type(frame).__name__} frame of {len(body)} bytes is over the limit of {MAX_FRAME}")
    return _HEADER.pack(len(body), _CODES[type(frame)]) + body


class FrameDecoder:
    """Cuts a stream of bytes into frames, whatever the chunks.

    Args:
        limit: Bytes of the largest body; a header that announces more is refused before the body arrives.
    """

    def __init__(self, limit: int = MAX_FRAME) -> None:
        # Lowered once the request says how large its result may be; never raised.
        self.limit = limit
        # Bytes received that do not yet form a whole frame; at most header + limit + one chunk.
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> None:
        """Add received bytes."""
        self._buffer += chunk

    def next_frame(self) -> Frame | None:
        """The next whole frame, or None until more bytes are fed.

        Raises:
            ProtocolError: unknown kind, a body that does not decode, or one over the limit.
        """
        if len(self._buffer) < _HEADER.size:
            return None
        length, code = _HEADER.unpack_from(self._buffer)
        decoder = _DECODERS.get(code)
        if decoder is None:
            raise ProtocolError(f"unknown frame kind {code}")
        if length > self.limit:
            raise ProtocolError(f"a frame of {length} bytes is over the limit of {self.limit}")
        end = _HEADER.size + length
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_HEADER.size : end])
        del self._buffer[:end]
        try:
            frame: Frame = decoder.decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ProtocolError(f"a frame of kind {code} does not decode: {error}") from error
        return frame

    @property
    def partial(self) -> bool:
        """Whether bytes of an unfinished frame are waiting."""
        return bool(self._buffer)
