"""The server's process behind a gateway: its deaths, its restarts, its end, and what they mean for calls."""

import os
import signal
import sys
from pathlib import Path

import pytest
import trio

from tests.gateway.box import FAKE, code_of, gateway, pending_of
from tests.kit.raw_client import raw_process
from ztrio.management import frames
from ztrio.memory_store import MemoryStore


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.req("P4", "P44")
@pytest.mark.case("R26", "R59")
async def test_a_server_that_dies_in_a_call(tmp_path: Path) -> None:
    """Everybody who waits learns within a second how it died and what it said; the next call meets a new process."""
    async with gateway(tmp_path) as box:
        await box.client.call(1, "silent")
        before = trio.current_time()
        found = await box.call("die", {"status": 3, "says": "out of paper\n"})
        other = (await box.client.reply(1))["result"]
        assert trio.current_time() - before < 1.0
        assert ["UPSTREAM_DIED"] * 2 == [code_of(found), code_of(other)]
        assert 3 == found["structuredContent"]["error"]["exit_status"]
        assert "out of paper" in found["structuredContent"]["error"]["stderr"]
        assert "exited with status 3" in found["structuredContent"]["error"]["message"]
        assert "connection_reset" == await box.state(pending_of(found)["call_id"])
        assert "content" in await box.call("look")
        assert 2 == len(box.pids())


@pytest.mark.req("P38")
async def test_a_death_keeps_the_gate_shut_unless_told_otherwise(tmp_path: Path) -> None:
    """After a death in a write the gate holds, or with `on_reset: open` is open."""
    async with gateway(tmp_path, gate="enforce") as box:
        await box.call("die")
        assert "PENDING_CALL_UNRESOLVED" == code_of(await box.call("write"))
    async with gateway(tmp_path, gate="enforce", on_reset="open") as box:
        await box.call("die")
        assert "content" in await box.call("write")


@pytest.mark.req("P43")
@pytest.mark.case("R19")
async def test_an_operator_kills_the_server(tmp_path: Path) -> None:
    """`cancel --kill` proves the tree dead, resets every call of that generation, and the next call works."""
    async with gateway(tmp_path, timeout=0.3) as box:
        call_id = pending_of(await box.call("silent"))["call_id"]
        [pid] = box.pids()
        await box.client.call(9, "progress", {"every": 1, "times": 9})
        answer = (await box.operator(frames.Cancel(call_id, kill=True)))["ok"]
        assert "connection_reset" == answer["state"]
        assert not alive(pid)
        assert "UPSTREAM_DIED" == code_of((await box.client.reply(9))["result"])
        assert "content" in await box.call("look")
        again = await box.operator(frames.Cancel(call_id, kill=True))
        assert "dead already" in again["error"]["message"]


@pytest.mark.case("R20")
async def test_a_busy_server_keeps_its_tools(tmp_path: Path) -> None:
    """While the server can answer nothing, its last good list is answered."""
    async with gateway(tmp_path, timeout=0.2) as box:
        pending_of(await box.call("block", {"seconds": 6.5}))
        with trio.fail_after(10):
            listed = (await box.ask("tools/list"))["result"]["tools"]
        assert {"look", "write", "ztrio_batch"} <= {tool["name"] for tool in listed}


@pytest.mark.case("R20")
async def test_a_server_that_is_down_keeps_its_tools(tmp_path: Path) -> None:
    """Between a death and the next start the last good list is answered, and a client is told when it may differ."""
    async with gateway(tmp_path) as box:
        for _ in range(3):
            await box.call("die")
        listed = (await box.ask("tools/list"))["result"]["tools"]
        assert {"look", "write", "ztrio_batch"} <= {tool["name"] for tool in listed}
        await box.client.take(lambda frame: frame.get("method") == "notifications/tools/list_changed")


async def test_a_new_process_is_told_what_the_last_one_was(tmp_path: Path) -> None:
    """Log level and subscriptions hold across a restart, and one that was taken back does not come back."""
    async with gateway(tmp_path) as box:
        await box.ask("logging/setLevel", {"level": "error"})
        for uri in ("a:1", "a:2"):
            await box.ask("resources/subscribe", {"uri": uri})
        await box.ask("resources/unsubscribe", {"uri": "a:2"})
        await box.call("die")
        await box.call("look")
        assert 2 == len(box.received("logging/setLevel"))
        assert ["a:1", "a:2", "a:1"] == [each["params"]["uri"] for each in box.received("resources/subscribe")]


@pytest.mark.case("R26")
async def test_a_request_that_is_no_call_when_its_server_dies(tmp_path: Path) -> None:
    """One that the dead process had is answered with an error that says so; one that comes then waits for the next."""
    async with gateway(tmp_path, timeout=0.2) as box:
        call_id = pending_of(await box.call("block", {"seconds": 60}))["call_id"]
        await box.client.request(8, "resources/read", {"uri": "a:b"})
        await box.until(lambda: _written(box, 3))
        await box.operator(frames.Cancel(call_id, kill=True))
        assert "UPSTREAM_DIED" == (await box.client.reply(8))["error"]["data"]["code"]
        await box.call("die")
        assert "r" == (await box.ask("resources/read", {"uri": "a:b"}))["result"]["contents"][0]["text"]


async def _written(box: object, frames_: int) -> bool:
    status = await box.operator(frames.Status())  # type: ignore[attr-defined]
    return bool(status["ok"]["wire"]["written"] > frames_)


@pytest.mark.req("P6", "P60")
@pytest.mark.case("R29")
async def test_calls_under_way_survive_the_gateway(tmp_path: Path) -> None:
    """A gateway that ends with a write under way makes no entry for its caller; the next one has it, gate and all."""
    store = MemoryStore()
    async with gateway(tmp_path, store=store) as box:
        await box.client.call(5, "silent")
        await box.until(lambda: _sent(box))
    async with gateway(tmp_path, store=store, gate="enforce") as box:
        [call] = await box.pending()
        assert ("connection_reset", True, "silent") == (call["state"], call["gating"], call["tool"])
        assert "PENDING_CALL_UNRESOLVED" == code_of(await box.call("write"))


async def _sent(box: object) -> bool:
    await trio.lowlevel.checkpoint()
    return any(each["params"]["name"] == "silent" for each in box.received("tools/call"))  # type: ignore[attr-defined]


@pytest.mark.req("P51")
async def test_an_operator_settles_and_repeats(tmp_path: Path) -> None:
    """Reconcile, replay and release work on a real call, in the scope of that call."""
    async with gateway(tmp_path, timeout=0.3, gate="enforce") as box:
        first = pending_of(await box.call("silent"))["call_id"]
        found = (await box.operator(frames.Reconcile(first, "look", {"a": 1}, "default")))["ok"]
        assert "reconciled" == found["pending_call"]["state"]
        refused = await box.operator(frames.Reconcile(first, "write", {}, "default"))
        assert "does not only read" in refused["error"]["message"]
        assert "INVALID_ARGUMENTS" == (await box.operator(frames.Reconcile(first, "look", {}, "s")))["error"]["code"]
        second = pending_of(await box.call("silent"))["call_id"]
        assert "PENDING_CALL_UNRESOLVED" == (await box.operator(frames.Replay(second, {}, [])))["error"]["code"]
        await box.operator(frames.Release(second, "looked"))
        third = await box.operator(frames.Replay(second, {}, []))
        assert "CALL_UNRESOLVED" == third["error"]["code"]
        assert "type" in (await box.operator(frames.Tool("look", True)))["ok"]["input_schema"]
        assert "no toolbox" in (await box.operator(frames.Reload()))["error"]["message"]
        assert "wrap" == (await box.operator(frames.Retry()))["ok"]["kind"]


@pytest.mark.req("P46", "P59")
@pytest.mark.case("R48")
async def test_a_silent_server_is_restarted_only_when_it_has_nothing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed ping marks a busy server degraded; an idle one is started anew. A timeout is counted once."""
    monkeypatch.setattr("ztrio_mcp.gateway.health._PATIENCE", 0.2)
    async with gateway(tmp_path, timeout=0.3, health_interval=0.1) as box:
        pending_of(await box.call("block", {"seconds": 60}))
        await trio.sleep(1.0)
        status = (await box.operator(frames.Status()))["ok"]
        assert status["health"]["degraded"]
        assert (0, 1) == (status["health"]["restarts"], status["health"]["timeouts"])
        [call] = await box.pending()
        await box.operator(frames.Release(call["call_id"], "looked"))
        await box.until(lambda: _restarted(box))
        assert "content" in await box.call("look")


async def _restarted(box: object) -> bool:
    status = await box.operator(frames.Status())  # type: ignore[attr-defined]
    return bool(status["ok"]["health"]["restarts"] == 1)


@pytest.mark.case("R38")
async def test_a_server_that_does_not_read(tmp_path: Path) -> None:
    """A frame that the pipe does not take whole is unresolved, one behind it was not sent, and the end is bounded."""
    async with gateway(tmp_path, timeout=1.0) as box:
        await box.client.call(1, "block", {"seconds": 60})
        await box.until(lambda: _written(box, 4))
        await box.client.call(2, "write", {"line": "x" * 2**20})
        await box.until(lambda: _stuck(box))
        await box.client.call(3, "write")
        found = [(await box.client.reply(number))["result"] for number in (1, 2, 3)]
        assert ["CALL_UNRESOLVED", "CALL_UNRESOLVED", "NOT_SENT"] == [code_of(each) for each in found]
        assert "write" == found[2]["structuredContent"]["error"]["phase"]
        before = trio.current_time()
    assert trio.current_time() - before < 4.8


@pytest.mark.req("P45")
async def test_a_server_that_keeps_books_proves_what_became_of_a_call(tmp_path: Path) -> None:
    """After a death the next process is asked about each call that gates; what it proves settles the call."""
    async with gateway(tmp_path, "books") as box:
        assert pending_of(await box.call("die"))["gating"]
        await box.until(lambda: _proven(box))


@pytest.mark.req("P45")
async def test_not_started_is_believed_only_when_ids_arrive(tmp_path: Path) -> None:
    """A server that never brought an id back may not get any: its "not started" proves nothing until it does."""
    async with gateway(tmp_path, "books", "forgetful") as box:
        await box.call("die")
        await box.call("write")
        await box.until(lambda: _asked(box))
        await trio.sleep(0.1)
        assert not await _proven(box)
        await box.call("write", {"ids": True})
        await box.until(lambda: _proven(box))


async def _proven(box: object) -> bool:
    [call] = await box.pending()  # type: ignore[attr-defined]
    assert "connection_reset" == call["state"], "settling what is held keeps its state"
    return bool(not call["gating"] and call["settled_by"] == "upstream:proof")


async def _asked(box: object) -> bool:
    await trio.lowlevel.checkpoint()
    return bool(box.received("resources/read"))  # type: ignore[attr-defined]


async def _stuck(box: object) -> bool:
    status = await box.operator(frames.Status())  # type: ignore[attr-defined]
    return bool(status["ok"]["wire"]["queued"])


def wrap(tmp_path: Path, *options: str, server: tuple[str, ...] = ()) -> list[str]:
    """The command line of a gateway in a process of its own."""
    record, ledger = tmp_path / "record", tmp_path / "ledger"
    fake = [sys.executable, "-I", str(FAKE), str(record), str(ledger), *server]
    return [sys.executable, "-m", "ztrio_cli", "wrap", *options, "--", *fake]


async def server_of(tmp_path: Path) -> int:
    """The process of the server, once it runs."""
    with trio.fail_after(10):
        while True:
            await trio.sleep(0.01)
            lines = (tmp_path / "record").read_text().splitlines() if (tmp_path / "record").exists() else []
            pids = [line for line in lines if '"pid"' in line]
            if pids:
                return int(pids[-1].partition('"pid": ')[2].rstrip("}"))


@pytest.mark.case("R10", "R08")
@pytest.mark.parametrize(
    ("how", "status"), [(None, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
async def test_a_gateway_ends_and_takes_its_server_along(
    tmp_path: Path, how: signal.Signals | None, status: int
) -> None:
    """End of input and each signal end the gateway with the documented status, and nothing of the server is left."""
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    async with raw_process(wrap(tmp_path), env=environment) as running:
        await running.client.initialize()
        await running.client.call(1, "silent")
        pid = await server_of(tmp_path)
        if how is None:
            await running.client.close_input()
        else:
            running.signal(how)
        assert status == (await running.wait_exit()) % 256
        assert not alive(pid)


@pytest.mark.case("R11", "R02")
@pytest.mark.parametrize("server", [(), ("wrapper",), ("stubborn",)])
async def test_nothing_outlives_a_gateway_that_is_killed(tmp_path: Path, server: tuple[str, ...]) -> None:
    """SIGKILL of the gateway ends the server, also one whose starter has gone and one that ignores everything."""
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    command = wrap(tmp_path, "--name", "one", server=server)
    async with raw_process(command, env=environment) as running:
        await running.client.initialize()
        pid = await server_of(tmp_path)
        assert alive(pid)
        running.signal(signal.SIGKILL)
        await running.wait_exit()
        with trio.fail_after(2):
            while alive(pid):
                await trio.sleep(0.01)
    async with raw_process(command, env=environment) as next_one:  # which sweeps what a socket left
        await next_one.client.initialize()
        await next_one.client.close_input()
        assert 0 == await next_one.wait_exit()


@pytest.mark.case("R04", "R02")
@pytest.mark.parametrize("server", ["stubborn", "wrapper"])
async def test_a_stubborn_server_is_ended_in_bounds(tmp_path: Path, server: str) -> None:
    """A server that ignores the end of its input and SIGTERM, or whose starter has exited, is gone within the bound."""
    async with gateway(tmp_path, server) as box:
        assert "content" in await box.call("look")
        pid = box.pids()[-1]
        before = trio.current_time()
    assert trio.current_time() - before < 4.8
    assert not alive(pid)


@pytest.mark.case("R06", "R57")
async def test_several_are_stopped_at_once(tmp_path: Path) -> None:
    """Five stubborn servers take the time of one, and their operators are answered meanwhile."""
    folders = [tmp_path / str(number) for number in range(5)]
    for folder in folders:
        folder.mkdir()
    before: list[float] = []

    async def one(folder: Path, ready: list[str]) -> None:
        async with gateway(folder, "stubborn") as box:
            await box.call("look")
            ready.append("")
            while len(ready) < len(folders):
                await trio.sleep(0.01)
            before.append(trio.current_time())
            box.ending.request("shutdown", 0)
            await trio.sleep(0.3)
            assert "wrap" == (await box.operator(frames.Status()))["ok"]["kind"]

    ready: list[str] = []
    async with trio.open_nursery() as nursery:
        for folder in folders:
            nursery.start_soon(one, folder, ready)
    assert trio.current_time() - before[0] < 6.0


@pytest.mark.case("R07")
async def test_many_calls_leave_nothing(tmp_path: Path) -> None:
    """Three rounds of fifty calls, half of them cancelled: one server process, no zombie, nothing in flight."""
    async with gateway(tmp_path, timeout=5) as box:
        for round_ in range(3):
            for number in range(50):
                await box.client.call(1000 * round_ + number, "silent" if number % 2 else "look")
            for number in range(1, 50, 2):
                await box.client.notify("notifications/cancelled", {"requestId": 1000 * round_ + number})
            for number in range(0, 50, 2):
                await box.client.reply(1000 * round_ + number)
        assert 1 == len(box.pids())
        assert 0 == (await box.operator(frames.Status()))["ok"]["client"]["in_flight"]
