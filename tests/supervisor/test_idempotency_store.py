"""Idempotency keys and the store: slow, failing, and opened by the next process."""

from pathlib import Path
from typing import Any

import attrs
import trio
import trio.testing

import ztrio
from tests.supervisor.repeating import OUT, Runs, calling, refused, stood
from tests.supervisor.support import nothing_left, opened, settle, sleep_forever
from ztrio import CallResult, Outcome
from ztrio.testing import FaultyStore, ScriptedBackend
from ztrio_sql import open_store


class SlowStore(FaultyStore):
    """A store whose claims take three seconds."""

    async def claim(self, row: Any) -> Any:
        """Wait, then claim."""
        await trio.sleep(3)
        return await super().claim(row)


async def test_calls_keep_their_order(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A call with a key keeps its place before later calls of its session, however long the store takes."""
    async with calling(tmp_path, store=SlowStore()) as (caller, _):
        await caller.begin("first", "count", arguments={})
        await caller.begin("second", "count", arguments={}, idempotency_key=None)
        await trio.sleep(5)
        first, second = caller.answers["first"], caller.answers["second"]
        assert isinstance(first, CallResult)
        assert isinstance(second, CallResult)
        assert (1, 2) == (first.value, second.value)


async def test_a_call_that_is_stopped_while_the_store_is_asked(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The caller leaves before the store has answered: the claim ends as a call that never ran."""
    async with calling(tmp_path, store=SlowStore()) as (caller, log):
        scope = await caller.begin("first")
        scope.cancel()
        await trio.sleep(5)
        assert ["allow", "cancel"] == log.names()
        assert Outcome.NOT_STARTED == await caller.supervisor.outcome_by_key("export", "k")


async def test_a_repetition_whose_caller_leaves_says_nothing(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The caller of a repetition leaves while the store is asked: nothing is said about a call that never was."""
    async with calling(tmp_path, store=SlowStore()) as (caller, log):
        await caller.supervisor.call("export", OUT, idempotency_key="k")
        events = list(log.events)
        scope = await caller.begin("second")
        scope.cancel()
        await trio.sleep(5)
        assert events == log.events


async def test_a_store_that_fails(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Without the store no mutating call with a key runs; a read does, and so does the call when the store is back."""
    store = FaultyStore(fail={"claim": OSError("disk on fire")})
    async with opened(tmp_path, store=store) as (supervisor, log):
        error = await refused(supervisor, "export", OUT, idempotency_key="k")
        assert ("STORE_UNAVAILABLE", Outcome.NOT_STARTED) == (error.code, error.outcome)
        assert ["deny"] == log.names(error.job_id)
        assert Outcome.COMPLETED == (await supervisor.call("look", idempotency_key="k")).outcome
        (tmp_path / "site").mkdir()
        assert "OUTPUT_EXISTS" == (await refused(supervisor, "found", {"site": "site"}, idempotency_key="k")).code
        store.fail.clear()
        assert Outcome.COMMITTED == (await supervisor.call("export", OUT, idempotency_key="k")).outcome
        await nothing_left(supervisor, tmp_path)


async def test_a_store_that_does_not_answer(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A claim has a bound; then the call is refused, and the key is free when the store works again."""
    store = FaultyStore(stall=("claim",))
    async with opened(tmp_path, store=store) as (supervisor, _):
        error = await refused(supervisor, "export", OUT, idempotency_key="k")
        assert ("STORE_UNAVAILABLE", Outcome.NOT_STARTED, 10.0) == (error.code, error.outcome, trio.current_time())
        store.stall.clear()
        await trio.sleep(1)
        assert Outcome.COMMITTED == (await supervisor.call("export", OUT, idempotency_key="k")).outcome
        await nothing_left(supervisor, tmp_path)


async def test_closing_while_the_store_does_not_answer(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Closing has its bound while a claim hangs; the call never ran and is told so."""
    async with calling(tmp_path, store=FaultyStore(stall=("claim",))) as (caller, _):
        await caller.begin("first", queue_timeout=100.0)
        began = trio.current_time()
        await caller.supervisor.aclose()
        await settle()
        first = caller.answers["first"]
        assert isinstance(first, ztrio.ShuttingDown)
        assert (Outcome.NOT_STARTED, True) == (first.outcome, trio.current_time() - began <= 4.0)


async def test_a_call_that_the_store_lost_sight_of(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A key whose call has no end in the store, and is not at work here, is not answered by guessing."""
    store = FaultyStore()
    async with opened(tmp_path, store=store) as (supervisor, _):
        first = await supervisor.call("export", OUT, idempotency_key="k")
        row = await store.job(first.job_id)
        assert row is not None
    lost = FaultyStore()
    async with opened(tmp_path, store=lost) as (supervisor, _):
        await lost.claim(attrs.evolve(row, outcome=None, phase="queued"))
        error = await refused(supervisor, "export", OUT, idempotency_key="k")
        assert ("STORE_UNAVAILABLE", Outcome.NOT_STARTED) == (error.code, error.outcome)


# ---- after a restart


async def test_a_key_outlives_the_process(tmp_path: Path) -> None:
    """With a durable store the next process answers a repetition of a committed call, and runs one of a failed call."""
    workspace = tmp_path / "ws"
    workspace.mkdir()
    runs = Runs(failures=1)
    runs.go.set()
    async with open_store(tmp_path / "db") as store, opened(workspace, runs, store=store) as (supervisor, _):
        failed = await refused(supervisor, "export", OUT, idempotency_key="k")
        first = await supervisor.call("found", {"site": "site"}, idempotency_key="k")
    async with open_store(tmp_path / "db") as store, opened(workspace, runs, store=store) as (supervisor, log):
        assert first == await supervisor.call("found", {"site": "site"}, idempotency_key="k")
        assert Outcome.COMMITTED == await supervisor.outcome(first.job_id)
        assert Outcome.COMMITTED == await supervisor.outcome_by_key("found", "k")
        assert Outcome.ROLLED_BACK == await supervisor.outcome_by_key("export", "k")
        error = await refused(supervisor, "found", {"site": "b"}, idempotency_key="k")
        assert "IDEMPOTENCY_CONFLICT" == error.code
        second = await supervisor.call("export", OUT, idempotency_key="k")
        job = await supervisor.job(second.job_id)
        assert job is not None
        assert failed.job_id == job["repeats"]
        assert [second.job_id, error.job_id] == sorted(
            {event.execution_job_id for event in log.events}, key=[second.job_id, error.job_id].index
        )


async def test_an_unresolved_call_outlives_the_process(tmp_path: Path) -> None:
    """The next process gives the repetition of an unresolved call the same answer, with its reason."""
    workspace = tmp_path / "ws"
    workspace.mkdir()
    script = ScriptedBackend(sleep_forever)
    async with open_store(tmp_path / "db") as store, opened(workspace, script, store=store) as (supervisor, _):
        first = await refused(supervisor, "mail", {}, timeout=0.05, idempotency_key="k")
    async with open_store(tmp_path / "db") as store, opened(workspace, store=store) as (supervisor, _):
        again = await refused(supervisor, "mail", {}, timeout=0.05, idempotency_key="k")
        assert stood(first) == stood(again)
        assert isinstance(again, ztrio.Unresolved)
        assert "external_effects" == again.reason
        assert Outcome.UNRESOLVED == await supervisor.outcome_by_key("mail", "k")


async def test_duplicates_at_once_on_a_durable_store(tmp_path: Path) -> None:
    """Of many calls at once with few keys one of each key runs, also where claims wait for the disk."""
    workspace = tmp_path / "ws"
    workspace.mkdir()
    runs = Runs()
    runs.go.set()
    answers: dict[str, set[str]] = {}
    async with open_store(tmp_path / "db") as store, opened(workspace, runs, store=store) as (supervisor, _):

        async def call(key: str) -> None:
            result = await supervisor.call("export", {"out": key}, session=key, idempotency_key=key)
            answers.setdefault(key, set()).add(result.job_id)

        async with trio.open_nursery() as nursery:
            for number in range(60):
                nursery.start_soon(call, f"k{number % 6}")
    assert (6, [1] * 6) == (runs.count, [len(jobs) for jobs in answers.values()])


async def test_an_unresolved_call_that_cannot_be_looked_up(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Where the store cannot say why a call is unresolved, the repetition is told that the store fails."""

    class Forgetful(FaultyStore):
        async def job_events(self, job_id: str) -> Any:
            await trio.lowlevel.checkpoint()
            raise OSError("disk on fire")

    async with opened(tmp_path, ScriptedBackend(sleep_forever), store=Forgetful()) as (supervisor, _):
        await refused(supervisor, "mail", {}, timeout=1.0, idempotency_key="k")
        error = await refused(supervisor, "mail", {}, timeout=1.0, idempotency_key="k")
        assert ("STORE_UNAVAILABLE", Outcome.NOT_STARTED) == (error.code, error.outcome)
