"""The operator's socket: private, short, replaced when its server died, and deaf to whatever is no question."""

import json
import os
import socket
import stat
import struct
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

import ztrio
from tests.pending.shell_box import Shell, conforms, lose, pending_of, shell
from tests.supervisor.support import ANNA
from ztrio.management import frames, place
from ztrio.management.server import serve_operators
from ztrio.management.supervised import Supervised

UNKNOWN = "pc_aaaaaaaaaaaaaaaa"


@pytest.fixture
def folder() -> Any:
    """A workspace with a short path, wherever temporary files of tests are."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="zt") as name:
        yield Path(name).resolve()


@attrs.define
class Asking:
    """A connection to a server."""

    workspace: Path
    stream: trio.SocketStream

    async def say(self, line: bytes) -> dict[str, Any]:
        """Send bytes; the next answer."""
        await self.stream.send_all(line)
        return await self.hear()

    async def hear(self) -> dict[str, Any]:
        """The next answer."""
        got = b""
        with trio.fail_after(10):
            while not got.endswith(b"\n"):
                chunk = await self.stream.receive_some()
                assert chunk, "the connection ended"
                got += chunk
        answer: dict[str, Any] = json.loads(got)
        return answer

    async def ended(self) -> bool:
        """Whether the server has closed it."""
        with trio.fail_after(10):
            return await self.stream.receive_some() == b""

    async def ask(self, request: frames.Request) -> Any:
        """Ask; what the server says."""
        answer = await self.say(frames.encode_request(request))
        return answer.get("ok") or answer["error"]


@asynccontextmanager
async def asking(workspace: Path) -> AsyncIterator[Asking]:
    """Connect as the command does."""
    connected = place.connect(workspace)
    connected.setblocking(False)
    async with trio.SocketStream(trio.socket.from_stdlib_socket(connected)) as stream:
        yield Asking(workspace, stream)


@asynccontextmanager
async def served(workspace: Path, script: Any = None, **options: Any) -> AsyncIterator[Shell]:
    """A supervisor with its socket."""
    async with (
        shell(workspace, script, **options) as box,
        serve_operators(Supervised(box.supervisor), workspace) as path,
    ):
        assert path is not None
        yield box


@pytest.mark.req("P56")
async def test_every_question(folder: Path) -> None:
    """List, show, cancel, reconcile, release and reload, all on one connection, with the objects of every surface."""
    async with served(folder) as box, asking(folder) as the:
        call_id = pending_of(await lose(box, timeout=0.05))["call_id"]
        other = pending_of(await lose(box, timeout=0.05, context=ANNA))["call_id"]
        listed = (await the.ask(frames.List()))["pending_calls"]
        for call in listed:
            conforms(call)
        assert [call_id, other] == [call["call_id"] for call in listed]
        assert listed[0] == (await the.ask(frames.Show(call_id)))["pending_call"]
        assert "unsupported_transport" == (await the.ask(frames.Cancel(call_id)))["cancel_error"]
        assert {"seconds", "fail", "scribble", "session"} == set(
            (await the.ask(frames.Tool("look")))["input_schema"]["properties"]
        )
        answer = await the.ask(frames.Reconcile(call_id, "look", {"seconds": 0.0}))
        assert ("reconciled", {}) == (answer["pending_call"]["state"], answer["value"])
        assert "operator:reconcile" == answer["pending_call"]["settled_by"]
        released = await the.ask(frames.Release(other, "looked"))
        assert ("released", False) == (released["pending_call"]["state"], released["pending_call"]["gating"])
        assert "calls" == (await the.ask(frames.Reload()))["toolbox"]


@pytest.mark.req("P56")
async def test_what_only_a_gateway_can_do_is_refused_with_a_reason(folder: Path) -> None:
    """A supervisor says what it is; it kills, repeats and starts nothing on request, and says why not."""
    async with served(folder) as box, asking(folder) as the:
        call_id = pending_of(await lose(box, timeout=0.05))["call_id"]
        status = await the.ask(frames.Status())
        assert ("serve", "calls") == (status["kind"], status["toolbox"])
        assert 1 == status["counters"]["registry"]["gating"]
        assert "properties" in (await the.ask(frames.Tool("count", reads=False)))["input_schema"]
        for request, why in (
            (frames.Cancel(call_id, kill=True), "was killed when the call ended"),
            (frames.Replay(call_id, {"seconds": 0}), "make it with `ztrio call`"),
            (frames.Retry(), "never gives up"),
        ):
            refused = await the.ask(request)
            assert ("INVALID_ARGUMENTS", True) == (refused["code"], why in refused["message"])
        for request in (frames.Cancel(UNKNOWN, kill=True), frames.Replay(UNKNOWN)):
            assert "PENDING_CALL_NOT_FOUND" == (await the.ask(request))["code"]


@pytest.mark.req("P49", "P56")
async def test_refusals_have_codes(folder: Path) -> None:
    """What cannot be done is answered with a stable code, and the connection goes on."""
    async with served(folder) as box, asking(folder) as the:
        other = pending_of(await lose(box, timeout=0.05, context=ANNA))["call_id"]
        for request, code in (
            (frames.Show(UNKNOWN), "PENDING_CALL_NOT_FOUND"),
            (frames.Show("\N{SNOWMAN}"), "PENDING_CALL_NOT_FOUND"),
            (frames.Cancel(UNKNOWN), "PENDING_CALL_NOT_FOUND"),
            (frames.Release(UNKNOWN, "x"), "PENDING_CALL_NOT_FOUND"),
            (frames.Release(other, " "), "INVALID_ARGUMENTS"),
            (frames.Tool("mail"), "INVALID_ARGUMENTS"),
            (frames.Tool("nothing"), "INVALID_ARGUMENTS"),
            (frames.Reconcile(other, "look"), "INVALID_ARGUMENTS"),
            (frames.Reconcile(UNKNOWN, "look"), "PENDING_CALL_NOT_FOUND"),
            (frames.Reconcile(other, "mail"), "INVALID_ARGUMENTS"),
        ):
            assert code == (await the.ask(request))["code"], request


async def test_a_defect_costs_its_own_question(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure of the server itself is answered, and the next question too."""
    async with served(folder) as box, asking(folder) as the:
        monkeypatch.setattr(box.supervisor.pending, "calls", lambda _: 1 / 0)
        assert "INTERNAL_ERROR" == (await the.ask(frames.List()))["code"]
        monkeypatch.undo()
        assert {"pending_calls": []} == (await the.say(frames.encode_request(frames.List())))["ok"]


@pytest.mark.parametrize(
    "garbage",
    [
        b"nonsense\n",
        b"\xff\xfe\n",
        b"\n",
        b"[]\n",
        b'{"op": "list", "more": 1}\n',
        b'{"op": "nothing"}\n',
        b'{"op": "show"}\n',
        b'{"op": "show", "call_id": 7}\n',
        b"x" * frames.MAX_REQUEST,
        b'{"op": "show", "call_id": "' + b"x" * frames.MAX_REQUEST + b'"}\n',
    ],
)
async def test_garbage(folder: Path, garbage: bytes) -> None:
    """What is no question gets one clear error and the end of its connection; the server goes on."""
    async with served(folder):
        async with asking(folder) as the:
            answer = await the.say(garbage)
            assert "BAD_REQUEST" == answer["error"]["code"]
            try:
                assert await the.ended()
            except trio.BrokenResourceError:
                pass  # it was closed with bytes of ours unread
        async with asking(folder) as the:
            assert [] == (await the.say(b'{"op": "list"}\n'))["ok"]["pending_calls"]


async def test_a_question_in_pieces_and_two_at_once(folder: Path) -> None:
    """A line is a question, however it arrives; and half of one is none."""
    async with served(folder), asking(folder) as the:
        await the.stream.send_all(b'{"op": ')
        await trio.sleep(0.02)
        await the.stream.send_all(b'"list"}\n{"op": "list"}')
        assert "ok" in await the.hear()
        await the.stream.send_all(b"\n")
        assert "ok" in await the.hear()
        await the.stream.send_all(b'{"op"')
        await the.stream.send_eof()
        assert await the.ended()


async def test_whoever_says_nothing_is_closed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are few connections, so each has a time to say something, and one too many waits for its turn."""
    monkeypatch.setattr("ztrio.management.server._PATIENCE", 0.2)
    async with served(folder):
        silent = [place.connect(folder) for _ in range(8)]
        async with asking(folder) as the:
            assert "ok" in await the.say(b'{"op": "list"}\n')
        for each in silent:
            each.settimeout(5)
            assert b"" == await trio.to_thread.run_sync(each.recv, 10)
            each.close()


async def test_it_is_private(folder: Path) -> None:
    """The socket is 0600 in a directory of mode 0700, and gone with its server."""
    path = folder / ".ztrio" / "serve.sock"
    async with served(folder):
        assert (0o600, 0o700) == (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode))
    assert not path.exists()
    with pytest.raises(FileNotFoundError):
        place.connect(folder)


@pytest.mark.parametrize("why", ["long", "open directory", "no sockets there"])
async def test_where_it_cannot_lie_in_the_workspace(folder: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    """It lies in a new private directory then, found through a link from the workspace, and all of it goes with it."""
    workspace = folder / ("x" * 120 if why == "long" else "x")
    workspace.mkdir()
    if why == "open directory":
        (workspace / ".ztrio").mkdir(mode=0o755)
    elif why == "no sockets there":
        bind = place._bound

        def refuse(path: Path) -> socket.socket:
            if workspace in path.parents:
                raise OSError(95, "Operation not supported")
            return bind(path)

        monkeypatch.setattr(place, "_bound", refuse)
    link = workspace / ".ztrio" / "serve.sock"
    async with served(workspace), asking(workspace) as the:
        assert "ok" in await the.say(b'{"op": "list"}\n')
        target = link.readlink()
        assert (0o600, 0o700) == (stat.S_IMODE(target.stat().st_mode), stat.S_IMODE(target.parent.stat().st_mode))
        assert len(os.fsencode(target)) <= place.MAX_PATH
    assert not link.is_symlink()
    assert not target.parent.exists()


@pytest.mark.parametrize("linked", [False, True])
async def test_a_dead_servers_socket_is_replaced(folder: Path, linked: bool) -> None:
    """What a killed server left is taken for what it is: nobody answers there, and the next server takes its place."""
    workspace = folder / ("x" * 120 if linked else "x")
    workspace.mkdir()
    left, path = place.bind(workspace)
    left.close()
    old = path.readlink() if linked else None
    with pytest.raises((ConnectionRefusedError, FileNotFoundError)):
        place.connect(workspace)
    async with served(workspace), asking(workspace) as the:
        assert "ok" in await the.say(b'{"op": "list"}\n')
        assert old is None or not old.parent.exists()


def test_only_what_is_ours_is_removed(folder: Path) -> None:
    """A link that leads elsewhere, or to what somebody has cleared away, is removed; what it leads to is not."""
    (folder / ".ztrio").mkdir(mode=0o700)
    for name in ("precious", "ztrio-1", "ztrio-2"):
        (folder / name).mkdir(mode=0o755 if name == "ztrio-1" else 0o700)
        (folder / name / "serve.sock").write_text("precious")
    (folder / "ztrio-2" / "more").write_text("precious")
    for name, left in (("precious", True), ("ztrio-1", True), ("ztrio-2", False), ("ztrio-3", False), ("no", False)):
        link = folder / ".ztrio" / "serve.sock"
        link.symlink_to(folder / name / "serve.sock")
        place.remove(link)
        assert not link.is_symlink()
        assert left == (folder / name / "serve.sock").exists()
    assert (folder / "ztrio-2" / "more").exists()


async def test_where_there_can_be_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that cannot have a socket serves all the same, and says why."""

    def refuse(_: Path) -> Any:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(place, "bind", refuse)
    why: list[str] = []
    async with shell(folder) as box, serve_operators(Supervised(box.supervisor), folder, trouble=why.append) as path:
        assert path is None
        assert (await box.supervisor.call("count")).value == 1
    async with shell(folder) as box, serve_operators(Supervised(box.supervisor), folder) as path:
        assert path is None
    assert ["OSError: [Errno 30] Read-only file system"] == why


async def test_another_users_connection(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says whose process is at the other end: the server refuses another's, and so does the command."""
    async with served(folder), asking(folder) as the:
        monkeypatch.setattr("ztrio.management.server.os.geteuid", lambda: os.getuid() + 1)
        assert "FORBIDDEN" == (await the.hear())["error"]["code"]
        assert await the.ended()
        with pytest.raises(PermissionError, match="belongs to user"):
            place.connect(folder)


@pytest.mark.skipif(sys.platform != "linux", reason="what the kernel answers is asked in its own way on each system")
def test_whose_process_is_there() -> None:
    """Both ends of a connection are told the user of the other."""
    one, two = socket.socketpair(socket.AF_UNIX)
    with one, two:
        assert [os.getuid()] * 2 == [place.peer_uid(one), place.peer_uid(two)]


def test_whose_process_is_there_on_macos(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the kernel answers another question with another structure: its version, the user, and groups."""

    class Connected:
        def getsockopt(self, level: int, optname: int, buflen: int) -> bytes:
            assert (0, 1, 76) == (level, optname, buflen)
            return struct.pack("=IIh2x16I", 0, 501, 1, *[20] * 16)

    monkeypatch.setattr("ztrio.management.place.sys.platform", "darwin")
    assert 501 == place.peer_uid(Connected())


async def test_the_body_ends_as_it_ends(folder: Path) -> None:
    """An exception of the body leaves as it is, never in a group, and the socket is gone."""
    with pytest.raises(KeyError):
        async with served(folder):
            raise KeyError("mine")
    assert not (folder / ".ztrio" / "serve.sock").exists()


async def test_ending_while_a_question_is_answered(folder: Path) -> None:
    """A server that ends closes its connections, also in the middle of an answer."""
    async with trio.open_nursery() as nursery:
        async with served(folder) as box:
            call_id = pending_of(await lose(box, timeout=0.05))["call_id"]
            connected = place.connect(folder)
            connected.sendall(frames.encode_request(frames.Reconcile(call_id, "look", {"seconds": 4.0})))
            await trio.sleep(0.1)
        connected.settimeout(5)
        assert b"" == await trio.to_thread.run_sync(connected.recv, 10)
        connected.close()
        nursery.cancel_scope.cancel()


def test_an_answer_can_always_be_sent() -> None:
    """What JSON cannot carry is replaced, and the rest arrives."""
    odd = {"a": "\ud800", "b": {1, 2}, "c": [Path("x")], "d": ("y", None, 1.5, True)}
    assert {"ok": {"a": "?", "b": [1, 2], "c": ["x"], "d": ["y", None, 1.5, True]}} == json.loads(frames.success(odd))
    error = ztrio.InvalidArguments("no \ud800")
    assert "no ?" == json.loads(frames.failure(error))["error"]["message"]


def test_nothing_is_left_of_a_socket_that_could_not_be_made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where neither place takes a socket, or the link cannot be made, there is no file and no descriptor left."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    folders = set(Path(place._short_directory()).glob("ztrio-*"))
    long = folder / ("x" * 120)
    long.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "symlink_to", refuse)
        with pytest.raises(OSError, match="No space"):
            place.bind(long)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "chmod", refuse)
        with pytest.raises(OSError, match="No space"):
            place.bind(folder)
    assert not (folder / ".ztrio" / "serve.sock").exists()
    assert folders == set(Path(place._short_directory()).glob("ztrio-*"))


async def test_too_few_descriptors_pass(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that cannot be accepted now is accepted when there is room again."""
    with trio.socket.socket(socket.AF_UNIX) as made:
        kind: Any = type(made)
    accept, tried = kind.accept, []

    async def once(self: Any) -> Any:
        tried.append(1)
        if len(tried) == 1:
            raise OSError(24, "Too many open files")
        return await accept(self)

    monkeypatch.setattr(kind, "accept", once)
    async with served(folder), asking(folder) as the:
        assert "ok" in await the.say(b'{"op": "list"}\n')
    assert len(tried) > 1
