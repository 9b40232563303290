"""`ztrio pending` and `ztrio reload` on a running `ztrio serve`, as an operator meets them: real processes."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.cli.conftest import HERE, Command, Started
from tests.cli.test_serve import INITIALIZE, frame
from ztrio.pending import PENDING_CALL_SCHEMA

UNKNOWN = "pc_aaaaaaaaaaaaaaaa"


class Client:
    """A client of a server process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._ids = 0
        self.ask("initialize", **INITIALIZE)
        self.send("notifications/initialized")

    def send(self, method: str, number: int | None = None, **params: Any) -> None:
        """Send a message."""
        assert self.process.stdin is not None
        self.process.stdin.write(frame(method, number, **params))
        self.process.stdin.flush()

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request; its result."""
        self._ids += 1
        self.send(method, self._ids, **params)
        assert self.process.stdout is not None
        result: dict[str, Any] = json.loads(self.process.stdout.readline())["result"]
        return result

    def call(self, tool: str, arguments: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
        """Call a tool; its result."""
        return self.ask("tools/call", name=tool, arguments=arguments or {}, _meta=meta)

    def lose(self) -> str:
        """A call that is stopped in the middle; its id."""
        result = self.call("send", {"seconds": 50}, **{"ztrio/timeout": 0.2})
        call_id = result["structuredContent"]["pending_call"]["call_id"]
        assert isinstance(call_id, str)
        return call_id


Serving = Callable[..., AbstractContextManager[Client]]


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A tools file of the test's own."""
    file = tmp_path / "mail_tools.py"
    file.write_text((HERE / "pending_tools.py").read_text())
    return file


@pytest.fixture
def serving(started: Started, tools: Path, workspace: Path) -> Serving:
    """Runs `ztrio serve` with a client."""

    @contextmanager
    def serve(*words: str) -> Iterator[Client]:
        with started("serve", tools, "-w", workspace, "--json", *words, stdin=subprocess.PIPE) as process:
            yield Client(process)
            process.communicate(timeout=30)

    return serve


@pytest.mark.req("P54", "P56")
def test_an_operator_settles_calls(serving: Serving, cli: Command, workspace: Path) -> None:
    """Listed, shown, not to be cancelled, reconciled by a read, released on a word: the same object everywhere."""
    with serving("--gate", "enforce") as client:
        one = client.lose()
        listed = json.loads(cli("pending", "list", "-w", workspace, "--json").out)["pending_calls"]
        assert [one] == [call["call_id"] for call in listed]
        jsonschema.validate(listed[0], dict(PENDING_CALL_SCHEMA))
        over_mcp = client.call("ztrio_pending_calls")["structuredContent"]["pending_calls"]
        assert listed == over_mcp
        assert listed[0] == json.loads(cli("pending", "show", one, "-w", workspace, "--json").out)["pending_call"]
        text = cli("pending", "list", "-w", workspace)
        assert (0, True, True) == (text.status, one in text.out, "gate shut" in text.out)
        assert [
            "  > wait until it is settled",
            f"  > look with sent, then `ztrio pending reconcile {one} -- TOOL …`",
            f"  > look yourself, then `ztrio pending release {one} --reason …`",
        ] == cli("pending", "show", one, "-w", workspace).out.splitlines()[-3:]
        told = cli("pending", "cancel", one, "-w", workspace, "--json")
        cancelled = json.loads(told.out)
        assert (1, "unresolved", "unsupported_transport") == (
            told.status,
            cancelled["state"],
            cancelled["cancel_error"],
        )
        assert "nobody to be told" in cli("pending", "cancel", one, "-w", workspace).out

        looked = cli("pending", "reconcile", one, "-w", workspace, "--", "sent", "number=7")
        assert (0, "sent: [7]") == (looked.status, looked.out.splitlines()[0])
        assert "settled_by: operator:reconcile" in looked.out
        two = client.lose()
        again = json.loads(cli("pending", "reconcile", two, "-w", workspace, "--json", "--", "sent").out)
        assert ([0], "reconciled") == (again["value"], again["pending_call"]["state"])

        three = client.lose()
        refused = client.call("send")
        assert "PENDING_CALL_UNRESOLVED" == refused["structuredContent"]["error"]["code"]
        released = cli("pending", "release", three, "--reason", "looked: it was sent", "-w", workspace)
        assert (0, True) == (released.status, "settled_by: operator:release" in released.out)
        assert not client.call("send")["isError"]
    audit = cli("audit", "-w", workspace, "--event", "pending_call", "--json").out.splitlines()
    shown = cli("audit", "-w", workspace, "--event", "pending_call").out.splitlines()
    assert any(one in line and "unresolved" in line and "gate shut" not in line for line in shown)
    assert any(three in line and "released, operator:release" in line for line in shown)
    [word] = [event for event in map(json.loads, audit) if event["pending"]["step"] == "release"]
    assert ("looked: it was sent", "operator") == (word["cause"], word["pending"]["actor"])


@pytest.mark.req("P49", "P56")
def test_errors_are_one_line_with_a_code(serving: Serving, cli: Command, workspace: Path) -> None:
    """No server, an unknown id, a tool that does not read, a word that is none: each says so and what to do."""
    for words in (["list"], ["show", UNKNOWN], ["cancel", UNKNOWN], ["release", UNKNOWN, "--reason", "x"]):
        ran = cli("pending", *words, "-w", workspace)
        assert (1, "") == (ran.status, ran.out)
        assert ran.err.startswith("error: SERVER_NOT_RUNNING: ")
    assert "SERVER_NOT_RUNNING" == json.loads(cli("reload", "-w", workspace, "--json").out)["error"]["code"]
    with serving() as client:
        assert "No call is pending." in cli("pending", "list", "-w", workspace).out
        one = client.lose()
        for words, code, status in (
            (["show", UNKNOWN], "PENDING_CALL_NOT_FOUND", 1),
            (["cancel", UNKNOWN], "PENDING_CALL_NOT_FOUND", 1),
            (["release", UNKNOWN, "--reason", "x"], "PENDING_CALL_NOT_FOUND", 1),
            (["reconcile", UNKNOWN, "--", "sent"], "PENDING_CALL_NOT_FOUND", 1),
            (["reconcile", one, "--", "send"], "INVALID_ARGUMENTS", 2),
            (["reconcile", one, "--", "nothing"], "INVALID_ARGUMENTS", 2),
            (["reconcile", one, "--", "sent", "number=x"], "USAGE", 2),
            (["reconcile", one, "--", "sent", "session=x"], "USAGE", 2),
            (["reconcile", one, "--", "sent", "other=x"], "INVALID_ARGUMENTS", 2),
            (["release", one, "--reason", ""], "INVALID_ARGUMENTS", 2),
            (["release", one], "USAGE", 2),
            (["frobnicate"], "USAGE", 2),
            ([], "USAGE", 2),
        ):
            place = ["-w", str(workspace)] if len(words) > 1 else []
            ran = cli("pending", *words[:1], *place, *words[1:])
            assert (status, "", 1) == (ran.status, ran.out, len(ran.err.splitlines())), words
            assert ran.err.startswith(f"error: {code}: "), (words, ran.err)


@pytest.mark.parametrize("command", ["list", "show", "cancel", "release", "reconcile"])
def test_help_teaches(cli: Command, command: str) -> None:
    """Each command shows an example of itself."""
    assert f"ztrio pending {command}" in cli("pending", command, "--help").out
    assert f"ztrio pending {command}" in cli("pending", "--help").out or command == "cancel"


def test_reload(serving: Serving, cli: Command, workspace: Path, tools: Path) -> None:
    """New code is served without a restart; code that cannot be loaded is named by line, and changes nothing."""
    text = tools.read_text()
    with serving() as client:
        tools.write_text(text.replace('return "sent"', 'return "posted"'))
        assert (0, "mail: send, sent\n") == (cli("reload", "-w", workspace).status, cli("reload", "-w", workspace).out)
        assert {"result": "posted"} == client.call("send")["structuredContent"]
        tools.write_text(text + "\nnonsense\n")
        broken = cli("reload", "-w", workspace, "--json")
        error = json.loads(broken.out)["error"]
        assert (1, "TOOLBOX_INVALID") == (broken.status, error["code"])
        assert f"{tools}:{text.count(chr(10)) + 2}" in error["message"]
        assert {"result": "posted"} == client.call("send")["structuredContent"]
        assert ["send", "sent"] == [
            tool["name"] for tool in client.ask("tools/list")["tools"] if "_" not in tool["name"]
        ]


@pytest.mark.req("P60")
def test_a_killed_server(started: Started, serving: Serving, cli: Command, workspace: Path, tools: Path) -> None:
    """What a server that was killed in the middle of a call did elsewhere is asked of nobody: its entry gates again."""
    socket = workspace / ".ztrio" / "serve.sock"
    with started("serve", tools, "-w", workspace, stdin=subprocess.PIPE) as process:
        client = Client(process)
        assert (0o600, True) == (stat.S_IMODE(socket.stat().st_mode), stat.S_ISSOCK(socket.stat().st_mode))
        client.send("tools/call", 99, name="send", arguments={"seconds": 50}, _meta={"progressToken": 1})
        assert process.stdout is not None
        assert "notifications/progress" == json.loads(process.stdout.readline())["method"]
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    assert socket.exists()
    assert cli("pending", "list", "-w", workspace).err.startswith("error: SERVER_NOT_RUNNING: ")
    with serving("--gate", "enforce") as client:
        [back] = json.loads(cli("pending", "list", "-w", workspace, "--json").out)["pending_calls"]
        assert ("send", "unresolved", "external_effects") == (back["tool"], back["state"], back["reason"])
        assert "PENDING_CALL_UNRESOLVED" == client.call("send")["structuredContent"]["error"]["code"]
        assert 0 == cli("pending", "release", back["call_id"], "--reason", "looked", "-w", workspace).status
        assert not client.call("send")["isError"]
    with serving("--gate", "enforce") as client:
        assert "No call is pending." in cli("pending", "list", "-w", workspace).out
        assert not client.call("send")["isError"]


@pytest.mark.req("P35")
def test_single_calls_meet_the_gate(cli: Command, workspace: Path, tools: Path) -> None:
    """`ztrio call` knows what an earlier call left: it warns, or with --gate enforce refuses."""
    lost = cli("call", tools, "send", "seconds=50", "--timeout", "0.2", "-w", workspace, "--json")
    shown = json.loads(lost.out)["error"]["pending_call"]
    warned = cli("call", tools, "send", "-w", workspace)
    assert (0, True) == (warned.status, f"({shown['call_id']})" in warned.err)
    as_json = json.loads(cli("call", tools, "send", "-w", workspace, "--json").out)
    assert shown["call_id"] == as_json["pending_call_warning"]["pending"][0]["call_id"]
    refused = cli("call", tools, "send", "-w", workspace, "--gate", "enforce")
    assert (1, True) == (refused.status, "error: PENDING_CALL_UNRESOLVED: " in refused.err)
    assert 0 == cli("call", tools, "send", "-w", workspace, "--gate", "off").status
    assert 0 == cli("call", tools, "sent", "-w", workspace, "--gate", "enforce").status


def test_another_answers(cli: Command, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever answers there and is no server, or another user's, is not believed."""
    import socket
    import threading

    from ztrio.management import place

    bound, path = place.bind(workspace)
    answers = [b"", b"hello\n", b'{"neither": 1}\n', b"[]\n", b'{"ok": 1}\n']

    def serve() -> None:
        for answer in answers:
            connection, _ = bound.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)

    with bound:
        bound.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        for _ in answers:
            ran = cli("pending", "list", "-w", workspace)
            assert (1, True) == (ran.status, ran.err.startswith("error: SERVER_GONE: "))
        thread.join()
        real = os.geteuid()
        monkeypatch.setattr("ztrio.management.place.os.geteuid", lambda: real + 1)
        assert cli("pending", "list", "-w", workspace).err.startswith("error: SERVER_NOT_YOURS: ")
        monkeypatch.undo()
        monkeypatch.setattr("ztrio_cli.operator._PATIENCE", 0.1)
        assert cli("pending", "list", "-w", workspace).err.startswith("error: SERVER_SILENT: ")

    def refuse(_: Path) -> socket.socket:
        raise OSError(24, "Too many open files")

    place.remove(path)
    monkeypatch.setattr(place, "connect", refuse)
    assert cli("pending", "list", "-w", workspace).err.startswith("error: SERVER_UNREACHABLE: ")
