"""The cases for subjects that are called from trio. `flow_asyncio` does the same for those that need asyncio.

In every case that stops a call, the clock runs from the cancel, issued when the tool has said that it is under way,
to the caller's next step. A caller that does not resume within the request's patience is freed by killing the tool's
processes, so that a round always ends; that sample counts as hung and stays in the histogram as what it was: at least
the patience.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

import trio

from ztrio_bench.drivers.kit import EXPECTED, Listener, Samples, Tree, announced, judge, now, pss

__all__ = ["Caller", "run_round"]

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


class _Call:
    """A call in flight that is going to be cancelled."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.scope = trio.CancelScope()
        self.ended = trio.Event()
        self.resumed = 0
        self.alive = 0
        self.failure = ""

    async def run(self, caller: Caller, tool: str, arguments: dict[str, Any], session: str) -> None:
        try:
            with self.scope:
                await caller.call(tool, arguments, session=session)
            self.resumed = now()
            self.alive = self.tree.alive()
            if not self.scope.cancelled_caught:
                self.failure = "it ended by itself"
        except Exception as error:  # noqa: BLE001 - whatever a peer raises instead of being cancelled
            self.resumed = now()
            self.failure = f"{type(error).__name__}: {error}"[:200]
        finally:
            self.ended.set()


class _Round:
    def __init__(self, caller: Caller, request: dict[str, Any], listener: Listener, samples: Samples) -> None:
        self.caller = caller
        self.request = request
        self.listener = listener
        self.samples = samples
        self.deadline = trio.current_time() + request["seconds"]

    def goes_on(self, done: int) -> bool:
        """Whether there is to be one more sample: one after warming up, then while neither count nor time ran out."""
        return done <= 0 or (done < self.request["count"] and trio.current_time() < self.deadline)

    async def started(self, tree: Tree, roles: list[str], within: float) -> bool:
        with trio.move_on_after(within):
            while not announced(tree, roles):
                await trio.lowlevel.wait_readable(self.listener)
                self.listener.drain()
        return announced(tree, roles)

    async def call(self) -> None:
        tool = {"trivial": "trivial", "file": "record"}[self.request["variant"]]
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
        async with trio.open_nursery() as nursery:
            for number in range(callers if self.request.get("pool") else 1):
                nursery.start_soon(self._nap, 0.05, number)

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
                if trio.current_time() >= self.deadline:
                    return

        await self.warm(callers)
        self.deadline = trio.current_time() + self.request["seconds"]
        start = now()
        async with trio.open_nursery() as nursery:
            for number in range(callers):
                nursery.start_soon(calling, number)
        self.samples.add("rate", done * 1e9 / (now() - start))

    async def cancel(self) -> None:
        if self.request["load"]:
            await self.burst()
            return
        variant = self.request["variant"]
        done = -1  # one to warm up
        while self.goes_on(done):
            await self._cancel_one(variant, self.samples if done >= 0 else Samples())
            done += 1

    async def _cancel_one(self, variant: str, samples: Samples) -> None:
        token, tree = self.listener.expect()
        call = _Call(tree)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                call.run, self.caller, variant, {"place": self.listener.place, "token": token}, f"s-{token}"
            )
            if not await self.started(tree, EXPECTED[variant], self.request["start_bound"]):
                samples.count("dropped")
                samples.note(f"the tool did not start: {call.failure or 'no announcement'}")
                call.scope.cancel()
                await self._free(call, samples)
            else:
                await trio.sleep(SETTLE)
                cancelled = now()
                call.scope.cancel()
                await self._free(call, samples)
                if call.failure:
                    samples.note(f"instead of being cancelled: {call.failure}")
                await trio.to_thread.run_sync(judge, samples, tree, cancelled, call.resumed, self.request["linger"])
        self.listener.forget(token)

    async def _free(self, call: _Call, samples: Samples) -> None:
        """Wait for the caller to resume; after the patience, end the tool for it."""
        with trio.move_on_after(self.request["patience"]):
            await call.ended.wait()
            return
        samples.count("hung")
        while not call.ended.is_set():
            call.tree.kill()
            with trio.move_on_after(0.2):
                await call.ended.wait()

    async def _free_all(self, calls: list[_Call]) -> None:
        """The same for many: one patience for all."""
        with trio.move_on_after(self.request["patience"]):
            for call in calls:
                await call.ended.wait()
        self.samples.count("hung", sum(not call.ended.is_set() for call in calls))
        while not all(call.ended.is_set() for call in calls):
            self.listener.drain()
            for call in calls:
                call.tree.kill()
            await trio.sleep(0.2)

    async def burst(self) -> None:
        """Cancel many busy calls in one instant; once a round."""
        gate = Path(self.request["folder"]) / "go"
        gate.unlink(missing_ok=True)
        calls: list[_Call] = []
        tokens: list[str] = []
        async with trio.open_nursery() as nursery:
            for number in range(self.request["load"]):
                token, tree = self.listener.expect()
                calls.append(_Call(tree))
                tokens.append(token)
                arguments = {"place": self.listener.place, "token": token, "gate": str(gate)}
                nursery.start_soon(calls[-1].run, self.caller, "cpu", arguments, f"s{number}")
            # Until all are there, or nobody has come for a while: a subject may be unable to run so many.
            running = 0
            while running < len(calls) and await self._one_more(calls, running):
                running = sum(announced(call.tree, ["tool"]) for call in calls)
            gate.touch()
            with trio.move_on_after(10.0):
                for call in calls:
                    if announced(call.tree, ["tool"]):
                        await self.started(call.tree, ["running"], 10.0)
            await trio.sleep(0.3)  # all of them compute now
            self.samples.count("dropped", len(calls) - running)
            if running < len(calls):
                self.samples.note(f"{running} of {len(calls)} calls could be started at once")
            cancelled = now()
            for call in calls:
                call.scope.cancel()
            await self._free_all(calls)
        started = [call for call in calls if announced(call.tree, ["tool"])]
        self.samples.add("resume", *(call.resumed - cancelled for call in started))
        self.samples.count("alive", sum(call.alive for call in started))
        end = trio.current_time() + self.request["linger"]
        left = 0
        for call in started:
            left += await trio.to_thread.run_sync(call.tree.alive, max(0.0, end - trio.current_time()))
        self.samples.count("survivors", left)
        if started and not left:
            last = max(call.resumed for call in started)
            self.samples.add("last", (now() if any(call.alive for call in started) else last) - cancelled)
        for token in tokens:
            self.listener.forget(token)

    async def _one_more(self, calls: list[_Call], before: int) -> bool:
        with trio.move_on_after(self.request["start_bound"]):
            while sum(announced(call.tree, ["tool"]) for call in calls) == before:
                await trio.lowlevel.wait_readable(self.listener)
                self.listener.drain()
            return True
        return False

    async def timeout(self) -> None:
        done = -1
        limit = 0.2
        while self.goes_on(done):
            token, tree = self.listener.expect()
            arguments = {"place": self.listener.place, "token": token}
            start, end = await self.caller.run_out("sleeping", arguments, limit)
            self.listener.drain()
            if done >= 0:
                self.samples.add("overshoot", max(0.0, end - start - limit * 1e9))
                self.samples.count("alive", tree.alive())
                left = await trio.to_thread.run_sync(tree.alive, self.request["linger"])
                self.samples.count("survivors", left)
            self.listener.forget(token)
            done += 1

    async def stall(self) -> None:
        """Start many short calls at once, again and again, and watch how late a timer of the same loop is."""
        callers = int(self.request["variant"])
        await self.warm(callers)

        async def ticking() -> None:
            while True:
                due = now() + 1_000_000
                await trio.sleep(0.001)
                self.samples.add("late", max(0, now() - due))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ticking)
            done = 0
            while self.goes_on(done):
                async with trio.open_nursery() as calls:
                    for number in range(callers):
                        calls.start_soon(self._nap, 0.2, number)
                done += 1
            nursery.cancel_scope.cancel()

    async def memory(self) -> None:
        size = 8 << 20
        tokens = []
        async with trio.open_nursery() as nursery:
            calls = []
            for number in range(int(self.request["variant"])):
                token, tree = self.listener.expect()
                tokens.append(token)
                calls.append(_Call(tree))
                arguments = {"place": self.listener.place, "token": token, "size": size}
                nursery.start_soon(calls[-1].run, self.caller, "holding", arguments, f"s{number}")
            for call in calls:
                if not await self.started(call.tree, ["tool"], self.request["start_bound"]):
                    self.samples.count("dropped")
                    continue
                for pid in call.tree.pids:
                    self.samples.add("beyond", max(0, pss(pid) - size))
            for call in calls:
                call.scope.cancel()
            await self._free_all(calls)
        for token in tokens:
            self.listener.forget(token)


async def run_round(opening: AbstractAsyncContextManager[Caller], request: dict[str, Any]) -> dict[str, Any]:
    """Do one round of a case.

    Args:
        opening: Opens the subject; entered and left outside of what is measured.
        request: The controller's request.

    Returns:
        The samples, for the answer.
    """
    samples = Samples()
    listener = Listener(request["folder"])
    try:
        async with opening as caller:
            case = getattr(_Round(caller, request, listener, samples), request["case"])
            await case()
            await caller.finish(samples)
    finally:
        listener.close()
    return samples.as_dict()
