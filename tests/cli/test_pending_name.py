"""`ztrio pending` and `ztrio audit` with gateways: which one is meant, and what only a gateway can be asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.cli.conftest import Command
from ztrio.errors import InvalidArguments, UnknownCall
from ztrio.management.server import serve_operators
from ztrio_cli.instances import Instance, take
from ztrio_sql import open_store

ID = "pc_aaaaaaaaaaaaaaaa"
CALL: dict[str, Any] = {
    "call_id": ID,
    "sent_at": None,
    "unresolved_at": "2026-01-01T00:00:00Z",
    "server": "mail",
    "tool": "send",
    "state": "unresolved",
    "reason": "deadline_exceeded",
    "gating": True,
    "resolve": [],
}
STATUS = {
    "instance": "mail",
    "server": {
        "state": "ready",
        "epoch": 3,
        "last_death": {"how": "exit status 3", "stderr": "Traceback\n  boom\n"},
        "gave_up": False,
        "reason": None,
    },
    "catalogue": {"tools": ["send", "sent"], "age": 1.25, "stale": True},
    "counters": {},
}


@attrs.define
class Subject:
    """A gateway that answers by the book and notes what it is asked."""

    asked: list[Any] = attrs.field(factory=list)
    fails: bool = False

    @property
    def desk(self) -> Any:
        """Its own desk."""
        return self

    def calls(self, _context: Any) -> list[Any]:
        return [CALL]

    async def call(self, call_id: str, _context: Any) -> Any:
        if call_id != ID:
            raise UnknownCall("There is no such call.")
        return CALL

    async def cancel(self, call_id: str, _context: Any) -> Any:
        self.asked.append(("cancel", call_id))
        return {"call_id": call_id, "state": "cancelled", "cancel_sent": True, "note": "It was told."}

    async def tool_schema(self, name: str, *, reads: bool) -> dict[str, Any]:
        self.asked.append(("schema", name, reads))
        return {"properties": {"to": {"type": "string"}, "count": {"type": "integer"}}}

    async def reconcile(self, call_id: str, tool: str, arguments: dict[str, Any], *, session: str) -> dict[str, Any]:
        self.asked.append(("reconcile", call_id, tool, arguments, session))
        return {"pending_call": {**CALL, "gating": False}, "tool": tool, "value": []}

    async def replay(self, call_id: str, arguments: dict[str, Any], *, reconciles: Sequence[str]) -> dict[str, Any]:
        self.asked.append(("replay", call_id, arguments, list(reconciles)))
        return {"call_id": "pc_b", "tool": "send", "is_error": self.fails, "value": "sent"}

    async def kill(self, call_id: str) -> dict[str, Any]:
        self.asked.append(("kill", call_id))
        return {"call_id": call_id, "state": "connection_reset", "note": "mail was killed."}

    async def status(self) -> dict[str, Any]:
        return STATUS

    async def retry(self) -> dict[str, Any]:
        if self.fails:
            raise InvalidArguments("It was not given up.")
        self.asked.append("retry")
        return STATUS

    async def reload(self) -> dict[str, Any]:
        raise AssertionError


Running = Callable[..., AbstractContextManager[Subject]]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory of the test's own, and a directory in which nothing runs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "state" / "ztrio" / "wrap"


@contextmanager
def answering(folder: Path) -> Iterator[Subject]:
    """Answers operators of a folder, in a thread: the command waits for the answer."""
    subject = Subject()
    ready, ended = threading.Event(), trio.Event()
    token: list[trio.lowlevel.TrioToken] = []

    async def serve() -> None:
        token.append(trio.lowlevel.current_trio_token())
        async with serve_operators(subject, folder):
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    assert ready.wait(10)
    try:
        yield subject
    finally:
        trio.from_thread.run_sync(ended.set, trio_token=token[0])
        thread.join(10)


@pytest.fixture
def running(tmp_path: Path) -> Running:
    """Runs an instance of a name."""

    @contextmanager
    def run(name: str) -> Iterator[Subject]:
        with (
            take(name, [f"{name}-server", "--token", "S3CR3T"], tmp_path) as instance,
            answering(instance.folder) as it,
        ):
            yield it

    return run


def test_the_only_gateway_is_meant(cli: Command, running: Running) -> None:
    """Where one gateway runs, and no server here, it needs no name; with one it is the same."""
    with running("mail"):
        for words in ([], ["--name", "mail"]):
            listed = json.loads(cli("pending", "list", *words, "--json").out)
            assert [ID] == [call["call_id"] for call in listed["pending_calls"]]


def test_of_several_one_is_named(cli: Command, running: Running) -> None:
    """Several gateways are listed with what tells them apart, and no secret; the named one is asked."""
    with running("mail"), running("post") as post:
        ran = cli("pending", "retry")
        assert (2, True) == (ran.status, ran.err.startswith("error: GATEWAY_AMBIGUOUS: Say which with --name."))
        assert all(f"{name} ({name}-server, process " in ran.err for name in ("mail", "post"))
        assert "S3CR3T" not in ran.err
        assert 0 == cli("pending", "retry", "--name", "post").status
        assert ["retry"] == post.asked


def test_a_server_here_comes_first(cli: Command, running: Running, tmp_path: Path) -> None:
    """A server of this folder is asked before any gateway; --workspace and --name say another."""
    with running("mail") as mail, answering(tmp_path / "here") as served:
        for words, meant in (([], served), (["--name", "mail"], mail), (["-w", tmp_path / "here"], served)):
            before = len(meant.asked)
            assert 0 == cli("pending", "retry", *words).status
            assert before + 1 == len(meant.asked)
        ran = cli("pending", "retry", "--name", "mail", "--workspace", ".")
        assert (2, True) == (ran.status, "give one of them" in ran.err)


def test_nobody_there(cli: Command, tmp_path: Path) -> None:
    """What is not there is named: no gateway of the name ever, one that has ended, a folder without server, nothing."""
    never = cli("pending", "list", "--name", "mail")
    assert never.err.startswith("error: GATEWAY_NOT_FOUND: No `ztrio wrap` of the name mail ever ran here.")
    nothing = cli("pending", "list")
    assert nothing.err.startswith("error: SERVER_NOT_RUNNING: No `ztrio serve` runs in ")
    assert "and no `ztrio wrap`" in nothing.err
    with take("mail", ["server"], tmp_path):
        pass
    ended = cli("pending", "list", "--name", "mail", "--json")
    assert "SERVER_NOT_RUNNING" == json.loads(ended.out)["error"]["code"]
    assert {1} == {never.status, nothing.status, ended.status}
    assert 2 == cli("pending", "list", "--name", "a/b").status


def test_an_empty_list_of_gateways_is_not_asked_where_a_folder_is_named(cli: Command, running: Running) -> None:
    """Who names a folder means its server, though a gateway runs."""
    with running("mail") as mail:
        ran = cli("pending", "list", "-w", ".")
        assert (1, True) == (ran.status, ran.err.startswith("error: SERVER_NOT_RUNNING: No `ztrio serve` runs in "))
        assert [] == mail.asked


@pytest.mark.req("P56")
def test_every_question_reaches_a_gateway_by_name(cli: Command, running: Running) -> None:
    """List, show, cancel and reconcile take a name, and ask what they ask a server."""
    with running("mail") as mail:
        assert 0 == cli("pending", "show", ID, "--name", "mail").status
        assert "PENDING_CALL_NOT_FOUND" in cli("pending", "show", "pc_x", "--name", "mail").err
        assert 0 == cli("pending", "cancel", ID, "--name", "mail").status
        killed = cli("pending", "cancel", ID, "--kill", "--name", "mail")
        assert (0, f"{ID}: connection_reset\n  mail was killed.\n") == (killed.status, killed.out)
        looked = cli("pending", "reconcile", ID, "--name", "mail", "--", "sent", "to=anna", "count=3")
        assert (0, "sent: []") == (looked.status, looked.out.splitlines()[0])
        arguments = {"to": "anna", "count": 3}
        asked = [
            ("cancel", ID),
            ("kill", ID),
            ("schema", "sent", True),
            ("reconcile", ID, "sent", arguments, "default"),
        ]
        assert asked == mail.asked


def test_status_is_shown(cli: Command, running: Running) -> None:
    """What a gateway says of itself is shown line by line, longer text with a margin; in JSON it is as it is."""
    with running("mail"):
        assert STATUS == json.loads(cli("pending", "status", "--json").out)
        assert [
            "instance: mail",
            "server:",
            "  state: ready",
            "  epoch: 3",
            "  last_death:",
            "    how: exit status 3",
            "    stderr:",
            "      | Traceback",
            "      |   boom",
            "  gave_up: no",
            "  reason: none",
            "catalogue:",
            "  tools: send, sent",
            "  age: 1.2",
            "  stale: yes",
            "counters: none",
        ] == cli("pending", "status").out.splitlines()


def test_retry_says_what_became_of_it(cli: Command, running: Running) -> None:
    """A retry shows the state that it led to, or why there was none."""
    with running("mail") as mail:
        ran = cli("pending", "retry")
        assert (0, "instance: mail") == (ran.status, ran.out.splitlines()[0])
        mail.fails = True
        refused = cli("pending", "retry")
        assert (2, "error: INVALID_ARGUMENTS: It was not given up.\n") == (refused.status, refused.err)


@pytest.mark.req("P51")
def test_a_call_is_repeated_with_arguments_that_are_given_again(cli: Command, running: Running) -> None:
    """Words are read by the tool's schema, an object as it is; nothing is asked first; a tool that fails gives 1."""
    with running("mail") as mail:
        ran = cli("pending", "replay", ID, "--", "to=5", "count=5")
        assert (0, ["send: sent", "  call_id: pc_b"]) == (ran.status, ran.out.splitlines())
        assert [("schema", "send", False), ("replay", ID, {"to": "5", "count": 5}, [])] == mail.asked
        mail.asked.clear()
        mail.fails = True
        ran = cli("pending", "replay", ID, "--arguments", '{"to": "x"}', "--reconciles", "pc_c", "--json")
        assert (1, True) == (ran.status, json.loads(ran.out)["is_error"])
        assert [("replay", ID, {"to": "x"}, ["pc_c"])] == mail.asked
        twice = cli("pending", "replay", ID, "--arguments", '{"to": "x"}', "--", "to=y")
        assert (2, "error: USAGE: to is given in --arguments and as a word.\n") == (twice.status, twice.err)


@pytest.fixture
def recorded(tmp_path: Path) -> Instance:
    """An instance that has ended and left a store."""
    with take("mail", ["server"], tmp_path) as instance:

        async def make() -> None:
            async with open_store(instance.store):
                pass

        trio.run(make)
    return instance


def test_the_audit_of_a_gateway(cli: Command, recorded: Instance) -> None:
    """The audit of a gateway is shown and verified by its name, whether it runs or not."""
    shown = cli("audit", "--name", "mail")
    assert (0, "") == (shown.status, shown.err)
    verified = json.loads(cli("audit", "verify", "--name", "mail", "--json").out)
    assert (True, str(recorded.store)) == (verified["ok"], verified["store"])


def test_an_audit_that_is_not_there(cli: Command, tmp_path: Path) -> None:
    """A gateway that never was or recorded nothing is named; a name goes with no other place."""
    assert cli("audit", "--name", "mail").err.startswith("error: GATEWAY_NOT_FOUND: ")
    with take("mail", ["server"], tmp_path):
        assert cli("audit", "verify", "--name", "mail").err.startswith("error: AUDIT_NOT_FOUND: ")
    for option, value in (("--workspace", tmp_path), ("--state", "x.db"), ("--file", "x.jsonl")):
        ran = cli("audit", "--name", "mail", option, value)
        assert (2, f"error: USAGE: {option} does not go with --name.\n") == (ran.status, ran.err)
