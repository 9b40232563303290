"""Who waits for whom, in which order and for how long; and that no update is lost."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

import ztrio
from tests.supervisor.support import ANNA, BERT, nothing_left, opened, play, settle, state
from ztrio.plain import decode
from ztrio.testing import ScriptedBackend, ScriptedCall

Call = tuple[str, dict[str, Any], dict[str, Any]]


@attrs.define
class Gate:
    """A script that notes when calls begin and end, and lets each run for one second."""

    running: int = 0
    most: int = 0
    order: list[Any] = attrs.field(factory=list)

    async def __call__(self, call: ScriptedCall) -> Any:
        self.running += 1
        self.most = max(self.most, self.running)
        self.order.append(call.request.session_name)
        await trio.sleep(1)
        value = await play(call)
        self.running -= 1
        return value


async def test_no_lost_update(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """N concurrent increments of one session's counter give N."""
    async with opened(tmp_path) as (supervisor, _):
        results: list[int] = []

        async def increment() -> None:
            results.append((await supervisor.call("count", session="s")).value)

        async with trio.open_nursery() as nursery:
            for _number in range(50):
                nursery.start_soon(increment)
        assert list(range(1, 51)) == sorted(results)
        found = await state(supervisor, "s")
        assert found is not None
        assert (50, {"count": 50}) == (found[0], decode(found[1]))
        await nothing_left(supervisor, tmp_path)


CASES: dict[str, tuple[Call, Call, int]] = {
    "one session": (("count", {}, {"session": "s"}), ("count", {}, {"session": "s"}), 1),
    "two sessions": (("count", {}, {"session": "s"}), ("count", {}, {"session": "t"}), 2),
    "two principals": (("count", {}, {"context": ANNA}), ("count", {}, {"context": BERT}), 2),
    "equal targets": (
        ("export", {"out": "a"}, {"session": "s"}),
        ("export", {"out": "./b/../a"}, {"session": "t"}),
        1,
    ),
    "equal targets of two principals": (
        ("export", {"out": "a"}, {"context": ANNA}),
        ("export", {"out": "a"}, {"context": BERT}),
        1,
    ),
    "nested targets": (("build", {"site": "b"}, {"session": "s"}), ("export", {"out": "b/a"}, {"session": "t"}), 1),
    "the inner first": (("export", {"out": "b/a"}, {"session": "s"}), ("build", {"site": "b"}, {"session": "t"}), 1),
    "siblings": (("export", {"out": "b/a"}, {"session": "s"}), ("export", {"out": "b/c"}, {"session": "t"}), 2),
    "a longer name": (("build", {"site": "b"}, {"session": "s"}), ("build", {"site": "bb"}, {"session": "t"}), 2),
    "an isolated read": (("count", {}, {"session": "s"}), ("look_apart", {}, {"session": "s"}), 2),
}


@pytest.mark.parametrize("case", CASES)
async def test_serialised(tmp_path: Path, autojump_clock: trio.testing.MockClock, case: str) -> None:
    """Calls of one session, and of equal or nested targets across sessions, exclude each other; no others do."""
    first, second, expected = CASES[case]
    (tmp_path / "b").mkdir()
    gate = Gate()
    async with opened(tmp_path, gate) as (supervisor, _):
        async with trio.open_nursery() as nursery:
            for tool, arguments, options in (first, second):
                nursery.start_soon(_ignore, supervisor, tool, arguments, options)
                await settle()
        assert expected == gate.most
        await nothing_left(supervisor, tmp_path)


async def _ignore(supervisor: ztrio.Supervisor, tool: str, arguments: dict[str, Any], options: dict[str, Any]) -> None:
    try:
        await supervisor.call(tool, arguments, **options)
    except ztrio.OutputConflict:
        pass  # the target's directory was replaced by the call before


async def queue(supervisor: ztrio.Supervisor, nursery: trio.Nursery, calls: list[Callable[[], Any]]) -> None:
    """Make calls one after the other, each in its place before the next."""
    for call in calls:
        nursery.start_soon(call)
        await settle()


async def test_first_come_first_served(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Conflicting calls run in the order in which they were made, through any chain of keys."""
    gate = Gate()
    async with opened(tmp_path, gate) as (supervisor, _):
        async with trio.open_nursery() as nursery:
            await queue(
                supervisor,
                nursery,
                [
                    partial(supervisor.call, "export", {"out": out}, session=name)
                    for name, out in [("1", "x"), ("2", "x"), ("2", "y"), ("3", "y"), ("4", "z"), ("1", "y")]
                ],
            )
        assert ["1", "4", "2", "2", "3", "1"] == gate.order
        assert 5.0 == trio.current_time()


async def test_worker_slots(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """No more calls run than there are slots, they are given in order, and each is held until the proof of death."""
    gate = Gate()
    backend = ScriptedBackend(gate, dies_after=0.5)
    async with opened(tmp_path, backend, settings=ztrio.Settings(workers=2)) as (supervisor, _):
        async with trio.open_nursery() as nursery:
            names = [str(number) for number in range(6)]
            await queue(supervisor, nursery, [partial(supervisor.call, "count", session=name) for name in names])
            assert (2, 2) == (supervisor.statistics().slots_in_use, supervisor.statistics().slots)
            await trio.sleep(1.2)
            assert (2, 0) == (supervisor.statistics().slots_in_use, gate.running)
        # Two are let in at the same instant, and then it is trio that decides who is first.
        pairs = [gate.order[number : number + 2] for number in (0, 2, 4)]
        assert (2, [names[:2], names[2:4], names[4:]]) == (gate.most, [sorted(pair) for pair in pairs])
        assert 4.5 == trio.current_time()
        await nothing_left(supervisor, tmp_path)


async def test_queue_timeout_never_eats_timeout(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A call that waited for long still has its whole timeout, and its queue_timeout does not end it while it runs."""

    async def script(call: ScriptedCall) -> None:
        await trio.sleep(4)

    async with opened(tmp_path, script) as (supervisor, log):
        async with trio.open_nursery() as nursery:
            await queue(
                supervisor,
                nursery,
                [lambda: supervisor.call("count", timeout=4.5, queue_timeout=4.1)] * 2,
            )
        assert [4.0, 8.0] == [event.duration for event in log.events if event.event == "commit"]


async def test_timeout_starts_with_the_worker(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Neither the queue nor making the worker counts: the clock starts when the worker has the request."""

    class SlowToStart(ScriptedBackend):
        async def acquire(self) -> Any:
            await trio.sleep(20)
            return await super().acquire()

        async def step(self, name: str) -> None:
            await trio.sleep(7 if name == "send_request" else 0)

    async def script(call: ScriptedCall) -> None:
        await trio.sleep(4.9)

    async with opened(tmp_path, SlowToStart(script)) as (supervisor, log):
        await supervisor.call("count", timeout=5.0)
        assert [31.9] == [round(event.duration or 0, 6) for event in log.events if event.event == "commit"]


async def test_waiting_in_the_slot_line_counts(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """queue_timeout covers the whole wait, for tickets and for a slot, and gives the place up."""
    async with opened(tmp_path, Gate(), settings=ztrio.Settings(workers=1)) as (supervisor, _):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: supervisor.call("count", session="a"))
            await settle()
            with pytest.raises(ztrio.QueueTimeout):
                await supervisor.call("count", session="b", queue_timeout=0.5)
            nursery.start_soon(lambda: supervisor.call("count", session="b"))
        assert 2.0 == trio.current_time()
        await nothing_left(supervisor, tmp_path)


async def test_queue_full(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Beyond the calls that are admitted the next is refused at once, and again admitted when one has ended."""
    async with opened(tmp_path, Gate(), settings=ztrio.Settings(admitted=2)) as (supervisor, log):
        async with trio.open_nursery() as nursery:
            await queue(supervisor, nursery, [lambda: supervisor.call("count")] * 2)
            with pytest.raises(ztrio.QueueFull) as caught:
                await supervisor.call("count")
            assert (["deny"], "QUEUE_FULL") == (log.names(caught.value.job_id), log.events[-1].code)
        await settle()
        await supervisor.call("count")


async def test_reads_do_not_wait(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Reads of a session run while a mutating call of it runs and others wait."""
    async with opened(tmp_path, Gate()) as (supervisor, _), trio.open_nursery() as nursery:
        await queue(supervisor, nursery, [lambda: supervisor.call("count")] * 2)
        assert {} == (await supervisor.call("look")).value
        assert 0.0 == trio.current_time()


async def test_progress(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Progress reaches the caller while the call runs and never after it was stopped."""
    seen: list[Any] = []

    async def script(call: ScriptedCall) -> None:
        call.progress(1, 3, "one")
        try:
            await trio.sleep(9)
        finally:
            call.progress(2, 3, "two")

    async with opened(tmp_path, script) as (supervisor, _):
        with pytest.raises(ztrio.ToolTimeout):
            await supervisor.call("count", on_progress=lambda *report: seen.append(report))
        assert [(1, 3, "one")] == seen[:1]
        assert 2 >= len(seen)
