"""Asking a running server: one connection, one question, one answer, or a complaint that says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Self

import msgspec

from ztrio.management import frames, place
from ztrio_cli.console import FAILED, USAGE, Complaint
from ztrio_cli.instances import Instance, find, running
from ztrio_cli.options import HERE
from ztrio_cli.workspace import checked_workspace

__all__ = ["Operator", "reach"]

_PATIENCE: Final = 120.0  # seconds without an answer; a read that reconciles has its own limit, and this is above it
_CHUNK: Final = 65536


class Operator:
    """A connection to a server. A context manager.

    Args:
        folder: Its workspace, or the state directory of a gateway.
        what: What it is: "the server in /srv/boards".
        missing: What to say if it does not run.

    Raises:
        Complaint: SERVER_NOT_RUNNING, SERVER_NOT_YOURS or SERVER_UNREACHABLE.
    """

    def __init__(self, folder: Path, *, what: str, missing: str) -> None:
        try:
            self._socket = place.connect(folder)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            raise Complaint("SERVER_NOT_RUNNING", missing) from None
        except PermissionError:
            raise Complaint("SERVER_NOT_YOURS", f"The process of {what} is another user's; ask as that user.") from None
        except OSError as error:
            raise Complaint("SERVER_UNREACHABLE", f"It is not possible to reach {what}: {error}.") from None
        self._socket.settimeout(_PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, request: frames.Request) -> dict[str, Any]:
        """Ask one question.

        Raises:
            Complaint: what the server refused, under its code; or SERVER_GONE or SERVER_SILENT.
        """
        try:
            self._socket.sendall(frames.encode_request(request))
            answer = self._answer()
        except TimeoutError:
            raise Complaint("SERVER_SILENT", f"The server has not answered for {_PATIENCE:g} s.") from None
        except OSError as error:
            raise Complaint("SERVER_GONE", f"The connection to the server broke: {error}.") from None
        refusal = answer.get("error")
        if refusal is not None:
            code = str(refusal.get("code", "INTERNAL_ERROR"))
            status = USAGE if code == "INVALID_ARGUMENTS" else FAILED
            raise Refused(code, str(refusal.get("message", "")), status, refusal)
        found: dict[str, Any] = answer["ok"]
        return found

    def _answer(self) -> dict[str, Any]:
        got = bytearray()
        while not got.endswith(b"\n"):
            chunk = self._socket.recv(_CHUNK)
            if not chunk or len(got) > frames.MAX_ANSWER:
                raise Complaint("SERVER_GONE", "The server ended before it had answered. Ask again when it is back.")
            got += chunk
        try:
            answer = msgspec.json.decode(got, type=dict[str, Any])
        except msgspec.DecodeError:
            answer = {}
        if not isinstance(answer.get("ok"), dict) and not isinstance(answer.get("error"), dict):
            raise Complaint("SERVER_GONE", "What answered is no server of ztrio, or one of another version.")
        return answer


def reach(workspace: Path | None, name: str | None) -> Operator:
    """Connect to what is meant: a workspace's server, a gateway by its name, or what runs, if that is one thing.

    Args:
        workspace: The workspace, or None.
        name: The gateway's name, or None.

    Raises:
        Complaint: nothing, too much or somebody else's runs, or the words are wrong; its code says which.
    """
    if workspace is not None and name is not None:
        raise Complaint("USAGE", "--name is a gateway's and --workspace a server's; give one of them.", status=USAGE)
    if name is not None:
        return _reach_gateway(find(name))
    folder = checked_workspace(HERE if workspace is None else workspace)
    nothing = f"No `ztrio serve` runs in {folder}"
    try:
        return Operator(
            folder,
            what=f"the server in {folder}",
            missing=f"{nothing}. Start one there, or name its folder with --workspace.",
        )
    except Complaint as missing:
        if missing.code != "SERVER_NOT_RUNNING" or workspace is not None:
            raise
    if not running():
        raise Complaint("SERVER_NOT_RUNNING", f"{nothing}, and no `ztrio wrap`. Name a folder with --workspace.")
    return _reach_gateway(find(None))


def _reach_gateway(instance: Instance) -> Operator:
    return Operator(
        instance.folder,
        what=f"the gateway {instance.name}",
        missing=f"No `ztrio wrap` of the name {instance.name} runs now. Your MCP client starts it as it is configured.",
    )


class Refused(Complaint):
    """What the server said against it, with its facts."""

    def __init__(self, code: str, message: str, status: int, facts: dict[str, Any]) -> None:
        super().__init__(code, message, status=status)
        self._facts = facts

    def as_dict(self) -> dict[str, Any]:
        """The error as the server told it."""
        return self._facts
