"""The cases for subjects that are called from asyncio: the same steps as in `flow_trio`, which explains them."""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

from ztrio_bench.drivers.kit import EXPECTED, Listener, Samples, Tree, announced, judge, now, pss

__all__ = ["Caller", "run_round"]

SETTLE = 0.003  # seconds, as in `flow_trio`


class Caller(Protocol):
    """How a subject is called; see `flow_trio.Caller`."""

    async def call(self, tool: str, arguments: dict[str, Any], *, session: str = "s") -> Any:
        """Call a tool of the workload and wait for its result."""

    async def run_out(self, tool: str, arguments: dict[str, Any], limit: float) -> tuple[int, int]:
        """Call a tool that takes longer than `limit` seconds."""

    async def finish(self, samples: Samples) -> None:
        """The round is over."""


class _Call:
    """A call in flight that is going to be cancelled."""

    def __init__(self, tree: Tree, caller: Caller, tool: str, arguments: dict[str, Any], session: str) -> None:
        self.tree = tree
        self.resumed = 0
        self.alive = 0
        self.failure = ""
        self._told = False
        self._inner = asyncio.create_task(self._run(caller, tool, arguments, session))

    async def _run(self, caller: Caller, tool: str, arguments: dict[str, Any], session: str) -> None:
        try:
            await caller.call(tool, arguments, session=session)
            self.failure = "it ended by itself"
        except asyncio.CancelledError:  # noqa: ASYNC103 - this task is ours and ends here
            pass
        except Exception as error:  # noqa: BLE001 - whatever a peer raises instead of being cancelled
            self.failure = f"{type(error).__name__}: {error}"[:200]
        self.resumed = now()
        self.alive = self.tree.alive()

    def cancel(self) -> None:
        self._inner.cancel()

    @property
    def ended(self) -> bool:
        return self._inner.done()

    async def wait(self, within: float) -> bool:
        if not self.ended:
            await asyncio.wait([self._inner], timeout=within)
        return self.ended


class _Round:
    def __init__(self, caller: Caller, request: dict[str, Any], listener: Listener, samples: Samples) -> None:
        self.caller = caller
        self.request = request
        self.listener = listener
        self.samples = samples
        self.deadline = time.monotonic() + request["seconds"]
        # Set whenever the listener has announcements that were not looked at.
        self.arrived = asyncio.Event()
        asyncio.get_running_loop().add_reader(listener.fileno(), self._drain)

    def _drain(self) -> None:
        self.listener.drain()
        self.arrived.set()

    def goes_on(self, done: int) -> bool:
        return done <= 0 or (done < self.request["count"] and time.monotonic() < self.deadline)

    async def started(self, tree: Tree, roles: list[str], within: float) -> bool:
        end = time.monotonic() + within
        while not announced(tree, roles) and time.monotonic() < end:
            self.arrived.clear()
            await self._arrival(end)
        return announced(tree, roles)

    async def _arrival(self, end: float) -> None:
        try:
            await asyncio.wait_for(self.arrived.wait(), max(0.001, end - time.monotonic()))
        except TimeoutError:
            pass  # the caller looks at the clock

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
        number = callers if self.request.get("pool") else 1
        await asyncio.gather(*(self._nap(0.05, number) for number in range(number)))

    async def _nap(self, seconds: float, number: int) -> None:
        await self.caller.call("nap", {"seconds": seconds}, session=f"s{number}")

    async def throughput(self) -> None:
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

        await self.warm(int(self.request["variant"]))
        self.deadline = time.monotonic() + self.request["seconds"]
        start = now()
        await asyncio.gather(*(calling(number) for number in range(int(self.request["variant"]))))
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
        arguments = {"place": self.listener.place, "token": token}
        call = _Call(tree, self.caller, variant, arguments, f"s-{token}")
        if not await self.started(tree, EXPECTED[variant], self.request["start_bound"]):
            samples.count("dropped")
            samples.note(f"the tool did not start: {call.failure or 'no announcement'}")
            call.cancel()
            await self._free(call, samples)
        else:
            await asyncio.sleep(SETTLE)
            cancelled = now()
            call.cancel()
            await self._free(call, samples)
            if call.failure:
                samples.note(f"instead of being cancelled: {call.failure}")
            await self._blocking(judge, samples, tree, cancelled, call.resumed, self.request["linger"])
        self.listener.forget(token)

    async def _blocking(self, function: Any, *args: Any) -> Any:
        # Not in the loop's own thread: the peer may still have to do things there.
        return await asyncio.get_running_loop().run_in_executor(None, function, *args)

    async def _free(self, call: _Call, samples: Samples) -> None:
        if await call.wait(self.request["patience"]):
            return
        samples.count("hung")
        while not await call.wait(0.2):
            call.tree.kill()

    async def _free_all(self, calls: list[_Call]) -> None:
        end = time.monotonic() + self.request["patience"]
        for call in calls:
            await call.wait(max(0.001, end - time.monotonic()))
        self.samples.count("hung", sum(not call.ended for call in calls))
        while not all(call.ended for call in calls):
            for call in calls:
                call.tree.kill()
            await asyncio.sleep(0.2)

    async def burst(self) -> None:
        gate = Path(self.request["folder"]) / "go"
        gate.unlink(missing_ok=True)
        calls: list[_Call] = []
        tokens: list[str] = []
        for number in range(self.request["load"]):
            token, tree = self.listener.expect()
            tokens.append(token)
            arguments = {"place": self.listener.place, "token": token, "gate": str(gate)}
            calls.append(_Call(tree, self.caller, "cpu", arguments, f"s{number}"))
        running = 0
        while running < len(calls) and await self._one_more(calls, running):
            running = sum(announced(call.tree, ["tool"]) for call in calls)
        gate.touch()
        end = time.monotonic() + 10.0
        for call in calls:
            if announced(call.tree, ["tool"]):
                await self.started(call.tree, ["running"], end - time.monotonic())
        await asyncio.sleep(0.3)
        self.samples.count("dropped", len(calls) - running)
        if running < len(calls):
            self.samples.note(f"{running} of {len(calls)} calls could be started at once")
        started = [call for call in calls if announced(call.tree, ["tool"])]
        cancelled = now()
        for call in calls:
            call.cancel()
        await self._free_all(calls)
        self.samples.add("resume", *(call.resumed - cancelled for call in started))
        self.samples.count("alive", sum(call.alive for call in started))
        end = time.monotonic() + self.request["linger"]
        left = 0
        for call in started:
            left += await self._blocking(call.tree.alive, max(0.0, end - time.monotonic()))
        self.samples.count("survivors", left)
        if started and not left:
            last = max(call.resumed for call in started)
            self.samples.add("last", (now() if any(call.alive for call in started) else last) - cancelled)
        for token in tokens:
            self.listener.forget(token)

    async def _one_more(self, calls: list[_Call], before: int) -> bool:
        end = time.monotonic() + self.request["start_bound"]
        while time.monotonic() < end:
            if sum(announced(call.tree, ["tool"]) for call in calls) > before:
                return True
            self.arrived.clear()
            await self._arrival(end)
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
                if not tree.pids:
                    self.samples.count("dropped")
                    self.samples.note("the limit ran out before the tool had begun")
                self.samples.add("overshoot", max(0.0, end - start - limit * 1e9))
                self.samples.count("alive", tree.alive())
                self.samples.count("survivors", await self._blocking(tree.alive, self.request["linger"]))
            self.listener.forget(token)
            done += 1

    async def stall(self) -> None:
        callers = int(self.request["variant"])
        await self.warm(callers)

        async def ticking() -> None:
            while True:
                due = now() + 1_000_000
                await asyncio.sleep(0.001)
                self.samples.add("late", max(0, now() - due))

        ticker = asyncio.create_task(ticking())
        done = 0
        while self.goes_on(done):
            await asyncio.gather(*(self._nap(0.2, number) for number in range(callers)))
            done += 1
        ticker.cancel()
        await asyncio.wait([ticker])

    async def memory(self) -> None:
        size = 8 << 20
        calls = []
        tokens = []
        for number in range(int(self.request["variant"])):
            token, tree = self.listener.expect()
            tokens.append(token)
            arguments = {"place": self.listener.place, "token": token, "size": size}
            calls.append(_Call(tree, self.caller, "holding", arguments, f"s{number}"))
        for call in calls:
            if not await self.started(call.tree, ["tool"], self.request["start_bound"]):
                self.samples.count("dropped")
                continue
            for pid in call.tree.pids:
                self.samples.add("beyond", max(0, pss(pid) - size))
        for call in calls:
            call.cancel()
        await self._free_all(calls)
        for token in tokens:
            self.listener.forget(token)


async def run_round(opening: AbstractAsyncContextManager[Caller], request: dict[str, Any]) -> dict[str, Any]:
    """Do one round of a case; see `flow_trio.run_round`."""
    samples = Samples()
    listener = Listener(request["folder"])
    try:
        async with opening as caller:
            case = getattr(_Round(caller, request, listener, samples), request["case"])
            await case()
            await caller.finish(samples)
    finally:
        asyncio.get_running_loop().remove_reader(listener.fileno())
        listener.close()
    return samples.as_dict()
