"""The cases for subjects that are called from an event loop, whichever that is.

In every case that stops a call, the clock runs from the cancel, issued when the tool has said that it is under way,
to the caller's next step. A caller that does not resume within the request's patience is freed by killing the tool's
processes, so that a round always ends; that sample counts as hung and stays in the histogram as what it was: at least
the patience.

A coroutine belongs to no event loop until it waits for one. So the cases wait only through the small interface `Loop`,
which `flow_trio` and `flow_asyncio` implement, and every subject goes through the very same steps.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

from ztrio_bench.drivers.kit import EXPECTED, Listener, Samples, Tree, announced, judge, now, pss
from ztrio_bench.workload import announce

__all__ = ["Caller", "Loop", "Task", "Tasks", "run_round"]

SETTLE = 0.003  # seconds between a tool's announcement and the cancel: it is then inside its sleep or its computation


class Caller(Protocol):
    """How a subject is called."""

    async def call(self, tool: str, arguments: dict[str, Any], *, session: str = "s") -> Any:
        """Call a tool of the workload and wait for its result."""

    async def run_out(self, tool: str, arguments: dict[str, Any], limit: float) -> tuple[int, int]:
        """Call a tool that takes longer than `limit` seconds.

        Returns:
            When the clock of the limit started, and when the caller resumed; nanoseconds.
        """

    async def finish(self, samples: Samples) -> None:
        """The round is over: add what else is known of it."""


class Task(Protocol):
    """A task that can be cancelled alone."""

    @property
    def ended(self) -> bool:
        """Whether it has ended."""

    def cancel(self) -> None:
        """Cancel it."""

    async def wait(self, within: float) -> bool:
        """Wait at most so many seconds for its end; whether it has ended."""


class Tasks(Protocol):
    """A group of tasks; leaving it waits for all."""

    def start(self, function: Callable[..., Awaitable[None]], *args: Any) -> Task:
        """Start a task."""

    def cancel(self) -> None:
        """Cancel all."""


class Loop(Protocol):
    """What the cases need of an event loop."""

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""

    async def arrival(self, listener: Listener, within: float) -> None:
        """Wait at most so many seconds for announcements, and take them in."""

    async def in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call what blocks in a thread: the subject may still have things to do in the loop's own."""

    def tasks(self) -> AbstractAsyncContextManager[Tasks]:
        """A group of tasks."""


class _Call:
    """A call in flight that is going to be cancelled."""

    def __init__(self, token: str, tree: Tree) -> None:
        self.token = token
        self.tree = tree
        # Set as soon as it runs.
        self.task: Task
        self.resumed = 0
        self.alive = 0
        self.failure = ""

    async def run(self, caller: Caller, tool: str, arguments: dict[str, Any], session: str) -> None:
        try:
            await caller.call(tool, arguments, session=session)
            self.failure = "it ended by itself"
        except Exception as error:  # noqa: BLE001 - whatever a peer raises instead of being cancelled
            self.failure = f"{type(error).__name__}: {error}"[:200]
        finally:
            self.resumed = now()
            self.alive = self.tree.alive()


class _Round:
    def __init__(
        self, loop: Loop, caller: Caller, request: dict[str, Any], listener: Listener, samples: Samples
    ) -> None:
        self.loop = loop
        self.caller = caller
        self.request = request
        self.listener = listener
        self.samples = samples
        self.deadline = time.monotonic() + request["seconds"]

    def goes_on(self, done: int) -> bool:
        """Whether there is to be one more sample: one after warming up, then while neither count nor time ran out."""
        return done <= 0 or (done < self.request["count"] and time.monotonic() < self.deadline)

    async def started(self, tree: Tree, roles: Sequence[str], within: float) -> bool:
        end = time.monotonic() + within
        while not announced(tree, roles) and (left := end - time.monotonic()) > 0:
            await self.loop.arrival(self.listener, left)
        return announced(tree, roles)

    def begin(self, tasks: Tasks, tool: str, session: str = "", **arguments: Any) -> _Call:
        """Start a call of a tool that announces itself."""
        token, tree = self.listener.expect()
        call = _Call(token, tree)
        arguments |= {"place": self.listener.place, "token": token}
        call.task = tasks.start(call.run, self.caller, tool, arguments, session or f"s-{token}")
        return call

    async def call(self) -> None:
        tool = {"trivial": "trivial", "file": "record", "durable": "record"}[self.request["variant"]]
        done = -2  # two to warm up
        while self.goes_on(done):
            arguments: dict[str, Any] = {"value": done}
            if tool == "record":
                arguments["out"] = "record.txt"
            start = now()
            await self.caller.call(tool, arguments)
            if done >= 0:
                self.samples.add("latency", now() - start)
            done += 1

    async def warm(self, callers: int) -> None:
        """One call; for a pool, which keeps its workers, as many at once as there will be."""
        async with self.loop.tasks() as tasks:
            for number in range(callers if self.request.get("pool") else 1):
                tasks.start(self._nap, 0.05, number)

    async def _nap(self, seconds: float, number: int) -> None:
        await self.caller.call("nap", {"seconds": seconds}, session=f"s{number}")

    async def throughput(self) -> None:
        callers = int(self.request["variant"])
        done = 0

        async def calling(number: int) -> None:
            nonlocal done
            while True:
                start = now()
                await self.caller.call("trivial", {"value": number}, session=f"s{number}")
                self.samples.add("latency", now() - start)
                done += 1
                if time.monotonic() >= self.deadline:
                    return

        await self.warm(callers)
        self.deadline = time.monotonic() + self.request["seconds"]
        start = now()
        async with self.loop.tasks() as tasks:
            for number in range(callers):
                tasks.start(calling, number)
        self.samples.add("rate", done * 1e9 / (now() - start))

    async def cancel(self) -> None:
        if self.request["load"]:
            await self.burst()
            return
        done = -1  # one to warm up
        while self.goes_on(done):
            await self._cancel_one(self.request["variant"], self.samples if done >= 0 else Samples())
            done += 1

    async def _cancel_one(self, variant: str, samples: Samples) -> None:
        async with self.loop.tasks() as tasks:
            call = self.begin(tasks, variant)
            if not await self.started(call.tree, EXPECTED[variant], self.request["start_bound"]):
                samples.count("dropped")
                samples.note(f"the tool did not start: {call.failure or 'no announcement'}")
                call.task.cancel()
                await self._free([call])
            else:
                await self.loop.sleep(SETTLE)
                cancelled = now()
                call.task.cancel()
                if await self._free([call]):
                    samples.count("hung")
                if call.failure:
                    samples.note(f"instead of being cancelled: {call.failure}")
                await self.loop.in_thread(judge, samples, call.tree, cancelled, call.resumed, self.request["linger"])
        self.listener.forget(call.token)

    async def _free(self, calls: Sequence[_Call]) -> int:
        """Wait for cancelled callers to resume; after one patience for all, end the tools of those that hang.

        Returns:
            How many those were.
        """
        end = time.monotonic() + self.request["patience"]
        for call in calls:
            await call.task.wait(max(0.0, end - time.monotonic()))
        hanging = [call for call in calls if not call.task.ended]
        hung = len(hanging)
        while hanging:
            self.listener.drain()
            for call in calls:
                call.tree.kill()
            await hanging[0].task.wait(0.2)
            hanging = [call for call in hanging if not call.task.ended]
        return hung

    async def burst(self) -> None:
        """Cancel many busy calls in one instant; once a round."""
        gate = Path(self.request["folder"]) / "go"
        gate.unlink(missing_ok=True)
        async with self.loop.tasks() as tasks:
            calls = [self.begin(tasks, "cpu", f"s{number}", gate=str(gate)) for number in range(self.request["load"])]
            # Until all are there, or nobody has come for a while: a subject may be unable to run so many.
            running = 0
            while running < len(calls) and await self._one_more(calls, running):
                running = sum(announced(call.tree, ["tool"]) for call in calls)
            gate.touch()
            started = [call for call in calls if announced(call.tree, ["tool"])]
            end = time.monotonic() + 10.0
            for call in started:
                await self.started(call.tree, ["running"], end - time.monotonic())
            await self.loop.sleep(0.3)  # all of them compute now
            self.samples.count("dropped", len(calls) - running)
            if running < len(calls):
                self.samples.note(f"{running} of {len(calls)} calls could be started at once")
            cancelled = now()
            for call in calls:
                call.task.cancel()
            self.samples.count("hung", await self._free(calls))
        started = [call for call in calls if announced(call.tree, ["tool"])]
        self.samples.add("resume", *(call.resumed - cancelled for call in started))
        self.samples.count("alive", sum(call.alive for call in started))
        end = time.monotonic() + self.request["linger"]
        left = 0
        for call in started:
            left += await self.loop.in_thread(call.tree.alive, max(0.0, end - time.monotonic()))
        self.samples.count("survivors", left)
        if started and not left:
            last = max(call.resumed for call in started)
            self.samples.add("last", (now() if any(call.alive for call in started) else last) - cancelled)
        for call in calls:
            self.listener.forget(call.token)

    async def _one_more(self, calls: Sequence[_Call], before: int) -> bool:
        end = time.monotonic() + self.request["start_bound"]
        while (left := end - time.monotonic()) > 0:
            if sum(announced(call.tree, ["tool"]) for call in calls) > before:
                return True
            await self.loop.arrival(self.listener, left)
        return False

    async def timeout(self) -> None:
        done = -1
        limit = self.request.get("limit", 0.2)
        while self.goes_on(done):
            token, tree = self.listener.expect()
            arguments = {"place": self.listener.place, "token": token}
            start, end = await self.caller.run_out("sleeping", arguments, limit)
            self.listener.drain()
            if done >= 0:
                if not tree.roles:
                    self.samples.count("dropped")
                    self.samples.note("the limit ran out before the tool had begun")
                self.samples.add("overshoot", max(0.0, end - start - limit * 1e9))
                self.samples.count("alive", tree.alive())
                self.samples.count("survivors", await self.loop.in_thread(tree.alive, self.request["linger"]))
            self.listener.forget(token)
            done += 1

    async def stall(self) -> None:
        """Start many short calls at once, again and again, and watch how late a timer of the same loop is."""
        callers = int(self.request["variant"])
        await self.warm(callers)

        async def ticking() -> None:
            while True:
                due = now() + 1_000_000
                await self.loop.sleep(0.001)
                self.samples.add("late", max(0, now() - due))

        async with self.loop.tasks() as ticker:
            ticker.start(ticking)
            done = 0
            while self.goes_on(done):
                async with self.loop.tasks() as tasks:
                    for number in range(callers):
                        tasks.start(self._nap, 0.2, number)
                done += 1
            ticker.cancel()

    async def memory(self) -> None:
        size = 8 << 20
        async with self.loop.tasks() as tasks:
            workers = range(int(self.request["variant"]))
            calls = [self.begin(tasks, "holding", f"s{number}", size=size) for number in workers]
            for call in calls:
                if not await self.started(call.tree, ["tool"], self.request["start_bound"]):
                    self.samples.count("dropped")
                    continue
                for pid in call.tree.pids:
                    self.samples.add("beyond", max(0, pss(pid) - size))
            for call in calls:
                call.task.cancel()
            self.samples.count("hung", await self._free(calls))
        for call in calls:
            self.listener.forget(call.token)

    async def host(self) -> None:
        """Have calls of every kind under way until this process is killed; the rest of the case is `orphans`."""
        await self.warm(len(self.request["held"]) + self.request["short"])
        await self.caller.finish(self.samples)
        Path(self.request["folder"], "facts.json").write_text(json.dumps(self.samples.facts))
        async with self.loop.tasks() as tasks:
            for number, tool in enumerate(self.request["held"]):
                arguments = {"place": self.request["place"], "token": self.request["token"]}
                # The call may fail when what was killed is not this process; then there is nothing to do about it.
                tasks.start(_Call("", Tree()).run, self.caller, tool, arguments, f"held{number}")
            if self.request["grace"]:
                call = self.begin(tasks, "lingering")
                if await self.started(call.tree, ["tool"], self.request["start_bound"]):
                    call.task.cancel()
                    announce(self.request["place"], self.request["token"], "grace")
            for number in range(self.request["short"]):
                tasks.start(self._again_and_again, f"short{number}")

    async def _again_and_again(self, session: str) -> None:
        while True:
            try:
                await self.caller.call("trivial", {}, session=session)
            except Exception:  # noqa: BLE001 - as above
                await self.loop.sleep(0.01)


async def run_round(
    loop: Loop, opening: AbstractAsyncContextManager[Caller], request: dict[str, Any]
) -> dict[str, Any]:
    """Do one round of a case.

    Args:
        loop: The event loop that this runs on.
        opening: Opens the subject; entered and left outside of what is measured.
        request: The controller's request.

    Returns:
        The samples, for the answer.
    """
    samples = Samples()
    listener = Listener(request["folder"])
    try:
        async with opening as caller:
            case = getattr(_Round(loop, caller, request, listener, samples), request["case"])
            await case()
            await caller.finish(samples)
    finally:
        listener.close()
    return samples.as_dict()
