"""The server as a process: signals, the end of input with work in flight, a pure stdout, no asyncio."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.kit.raw_client import RawProcess, raw_process

from .conftest import HERE, Starting

Signals = signal.Signals


async def heavy_call(server: RawProcess, request_id: Any = "heavy", **arguments: Any) -> tuple[int, int]:
    """Start a call that never ends; the pids of its worker and of the worker's child."""
    token = f"token {request_id}"
    await server.client.call(request_id, "heavy", {"out": "x", **arguments}, meta={"progressToken": token})
    told = await server.client.take(lambda frame: frame.get("params", {}).get("progressToken") == token)
    worker, child = map(int, told["params"]["message"].split())
    return worker, child


def dead(pid: int) -> bool:
    """Whether no process runs under this id; a zombie that init has yet to reap is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def assert_dead(*pids: int) -> None:
    """Wait a moment for the kernel to end processes that were killed."""
    with trio.move_on_after(2):
        while not all(map(dead, pids)):
            await trio.sleep(0.01)
    assert [pid for pid in pids if not dead(pid)] == []


@pytest.mark.case("R08")
async def test_end_of_input_with_a_heavy_child(starting: Starting, tmp_path: Path) -> None:
    """Closing stdin ends server, worker and the worker's stubborn child within 5 s, rolled back and answered."""
    async with starting() as server:
        pids = await heavy_call(server)
        await server.client.close_input()
        assert 0 == await server.wait_exit()
        await assert_dead(*pids)
        await server.client.wait_end()
        answer = (await server.client.reply("heavy"))["result"]
        assert "rolled_back" == answer["_meta"]["ztrio/outcome"]
        assert "client_gone" in answer["content"][0]["text"]
        assert not (tmp_path / "x").exists()


@pytest.mark.case("R10")
@pytest.mark.parametrize("signum", [Signals.SIGTERM, Signals.SIGHUP, Signals.SIGINT])
async def test_a_signal_to_the_server_alone(starting: Starting, tmp_path: Path, signum: Signals) -> None:
    """TERM, HUP or INT to the server alone ends its workers too: rolled back, answered, status 128 + signal."""
    async with starting() as server:
        pids = await heavy_call(server)
        server.signal(signum)
        assert 128 + signum == await server.wait_exit()
        await assert_dead(*pids)
        await server.client.wait_end()
        answer = (await server.client.reply("heavy"))["result"]
        assert ("SHUTTING_DOWN", "rolled_back") == (
            answer["structuredContent"]["error"]["code"],
            answer["_meta"]["ztrio/outcome"],
        )
        assert not (tmp_path / "x").exists()


async def test_a_signal_with_nothing_to_do(starting: Starting) -> None:
    """An idle server leaves at once."""
    async with starting() as server:
        server.signal(Signals.SIGTERM)
        assert 143 == await server.wait_exit()


async def test_a_signal_while_the_server_starts(tmp_path: Path) -> None:
    """A signal that comes before anything is served ends the start, with the status of that signal."""
    code = (
        "import contextlib, sys, trio\n"
        "from ztrio.workers.spawn import open_spawn_backend\n"
        "from ztrio_mcp import run_stdio\n"
        "@contextlib.asynccontextmanager\n"
        "async def slow(settings):\n"
        "    print('opening', file=sys.stderr, flush=True)\n"
        "    await trio.sleep(0.5)\n"
        "    async with open_spawn_backend(settings) as backend:\n"
        "        yield backend\n"
        "sys.exit(run_stdio(sys.argv[1], workspace=sys.argv[2], backend=slow))\n"
    )
    async with raw_process([sys.executable, "-c", code, HERE / "mcp_box.py", tmp_path]) as server:
        with trio.fail_after(30):
            while b"opening" not in server.stderr:
                await trio.sleep(0.01)
        server.signal(Signals.SIGTERM)
        assert 143 == await server.wait_exit()
        await server.client.wait_end()
        assert b"" == server.client.raw


@pytest.mark.leaves("a forced exit has no time to tidy up")
async def test_a_second_signal_forces(tmp_path: Path) -> None:
    """While the first signal waits for a tool's long grace, a second one ends everything at once, with its status."""
    code = (
        "import sys, ztrio\n"
        "from ztrio_mcp import run_stdio\n"
        "patient = ztrio.Settings(shutdown_grace=30, shutdown_bound=60)\n"
        "sys.exit(run_stdio(sys.argv[1], workspace=sys.argv[2], settings=patient))\n"
    )
    async with raw_process([sys.executable, "-c", code, HERE / "mcp_box.py", tmp_path]) as server:
        await server.client.initialize()
        await server.client.call("g", "graceful", {}, meta={"progressToken": "g"})
        told = await server.client.take(lambda frame: frame.get("method") == "notifications/progress")
        worker = int(told["params"]["message"])
        server.signal(Signals.SIGTERM)
        with trio.fail_after(30):
            while True:  # until the server says that it is closing
                await server.client.call("c", "keep", {"value": 1, "session": "other"})
                answer = (await server.client.reply("c"))["result"]["structuredContent"]
                if answer.get("error", {}).get("code") == "SHUTTING_DOWN":
                    break
        server.signal(Signals.SIGHUP)
        assert 129 == await server.wait_exit()
        await assert_dead(worker)


async def test_a_read_that_blocks_a_thread_does_not_keep_the_server(starting: Starting) -> None:
    """A synchronous read that cannot be stopped is answered as stopped, and the process ends without it."""
    async with starting() as server:
        await server.client.call(1, "stuck")
        await server.client.ask(2, "ping")
        await server.client.close_input()
        assert 0 == await server.wait_exit()
        await server.client.wait_end()
        assert "SHUTTING_DOWN" == (await server.client.reply(1))["result"]["structuredContent"]["error"]["code"]


@pytest.mark.case("R31")
async def test_stray_output_never_reaches_the_wire(starting: Starting) -> None:
    """Whatever a tool prints, at import or when called, goes to stderr: every line on stdout is a message."""
    async with starting() as server:
        for number, tool in enumerate(["noisy", "noisy", "put"]):
            arguments = {"text": "stray words", **({"out": "a.txt"} if tool == "put" else {})}
            await server.client.call(number, tool, arguments)
            assert "error" not in (await server.client.reply(number))["result"]["structuredContent"]
        await server.client.close_input()
        assert 0 == await server.wait_exit()
        await server.client.wait_end()
        assert [{"2.0"}] == [{frame["jsonrpc"] for frame in server.client.frames}]
        assert b"printed at import" in server.stderr
        assert server.stderr.count(b"stray words") >= 4


async def test_what_is_loaded_is_not_collected_again(starting: Starting) -> None:
    """Full collections do not stop a server to look at its modules."""
    async with starting() as server:
        await server.client.call("count", "put_away")
        answer = (await server.client.reply("count"))["result"]
        assert answer["structuredContent"]["result"] > 10_000


@pytest.mark.case("R64")
async def test_pings_are_answered_while_tools_burn(starting: Starting) -> None:
    """While as many tools burn as there are processors, and one more, pings and reads come back soon."""
    busy = (os.cpu_count() or 1) + 1
    async with starting() as server:
        for number in range(busy):
            await server.client.call(f"b{number}", "burn", {"seconds": 30, "session": f"s{number}"})
        waits = []
        for number in range(30):
            started = trio.current_time()
            assert {} == (await server.client.ask(number, "ping"))["result"]
            waits.append(trio.current_time() - started)
            await trio.sleep(0.02)
        await server.client.call("e", "echo", {"value": 1})
        await server.client.reply("e")
        assert sorted(waits)[len(waits) // 2] < 1.0
        assert not [frame for frame in server.client.frames if str(frame.get("id")).startswith("b")]
        await server.client.close_input()
        assert 0 == await server.wait_exit()


@pytest.mark.case("R61")
async def test_no_asyncio_loop_ever_runs(tmp_path: Path) -> None:
    """The server works, calls and all, in a process in which starting an asyncio event loop is an error."""
    script = (
        "import asyncio, asyncio.events, sys\n"
        "def refuse(*_): raise AssertionError('an asyncio loop')\n"
        "asyncio.run = asyncio.new_event_loop = asyncio.events.new_event_loop = refuse\n"
        "asyncio.BaseEventLoop.__init__ = asyncio.BaseEventLoop.run_forever = refuse\n"
        "from ztrio_mcp import run_stdio\n"
        "sys.exit(run_stdio(sys.argv[1], workspace=sys.argv[2]))\n"
    )
    async with raw_process([sys.executable, "-c", script, HERE / "mcp_box.py", tmp_path]) as server:
        await server.client.initialize()
        await server.client.call(1, "put", {"text": "x", "out": "a.txt"})
        assert "committed" == (await server.client.reply(1))["result"]["_meta"]["ztrio/outcome"]
        await server.client.close_input()
        assert 0 == await server.wait_exit()


@pytest.mark.parametrize(
    ("script", "status", "told"),
    [
        ("run_stdio('nowhere.py', workspace='.')", 1, b"nowhere.py: there is no such file"),
        ("run_stdio(sys.argv[1], workspace='nowhere')", 1, b"nowhere"),
        ("run_stdio(sys.argv[1], workspace='.', backend=broken)", 1, b"LookupError: broken backend"),
    ],
)
async def test_what_cannot_start_says_why(tmp_path: Path, script: str, status: int, told: bytes) -> None:
    """A missing toolbox or workspace is one error of ours; anything else is a failure of the server: status 1."""
    code = (
        "import sys\n"
        "from ztrio_mcp import run_stdio\n"
        "def broken(_): raise LookupError('broken backend')\n"
        f"sys.exit({script})\n"
    )
    async with raw_process([sys.executable, "-c", code, HERE / "mcp_box.py"], cwd=tmp_path) as server:
        assert status == await server.wait_exit(within=10)
        with trio.fail_after(20):
            while told not in server.stderr:
                await trio.sleep(0.01)
        await server.client.wait_end()
        assert b"" == server.client.raw


@pytest.mark.leaves("a forced exit has no time to tidy up")
async def test_the_exit_is_bounded_whatever_hangs(tmp_path: Path) -> None:
    """A server whose event loop is stuck still exits in time, with the status of its end, and its workers with it."""
    code = (
        "import sys, time\n"
        "import ztrio\n"
        "from ztrio_mcp import life, run_stdio\n"
        "async def stuck(self, cause='shutdown'):\n"
        "    while True: time.sleep(0.1)\n"
        "ztrio.Supervisor.aclose = stuck\n"
        "life.EXIT_BOUND = 0.5\n"
        "sys.exit(run_stdio(sys.argv[1], workspace=sys.argv[2]))\n"
    )
    async with raw_process([sys.executable, "-c", code, HERE / "mcp_box.py", tmp_path]) as server:
        await server.client.initialize()
        pids = await heavy_call(server)
        server.signal(Signals.SIGTERM)
        assert 143 == await server.wait_exit()
        await assert_dead(pids[0])


class _Host:
    """A host loop in the main thread that trio runs in as a guest."""

    def __init__(self) -> None:
        import queue

        self.queue: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()

    def run(self, main: Callable[[], Any]) -> Any:
        """Run `main` as trio's guest until it is done."""
        results: list[Any] = []
        trio.lowlevel.start_guest_run(
            main,
            run_sync_soon_threadsafe=self.queue.put,
            done_callback=results.append,
            host_uses_signal_set_wakeup_fd=False,
        )
        while not results:
            self.queue.get()()
        return results[0].unwrap()


@pytest.mark.case("R61")
def test_serving_works_in_guest_mode(box: Any, tmp_path: Path) -> None:
    """The same server works when trio is a guest in another program's loop."""
    import ztrio
    from tests.kit.raw_client import raw_client
    from ztrio_mcp import serve_stdio

    async def main() -> Any:
        server_in, client_out = os.pipe()
        client_in, server_out = os.pipe()
        async with (
            ztrio.open_supervisor(box, workspace=tmp_path) as supervisor,
            raw_client(trio.lowlevel.FdStream(client_out), trio.lowlevel.FdStream(client_in)) as client,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(lambda: serve_stdio(supervisor, fds=(server_in, server_out)))
            await client.initialize()
            await client.call(1, "keep", {"value": 1})
            answer = await client.reply(1)
            await client.close_input()
        return answer["result"]["structuredContent"]

    assert {"result": 1} == _Host().run(main)
