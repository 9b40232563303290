"""Calls with an idempotency key: what a duplicate gets while the first one runs."""

from pathlib import Path

import attrs
import trio
import trio.testing

import ztrio
from tests.supervisor.repeating import OUT, Runs, calling, refused, stood
from tests.supervisor.support import SETTINGS, settle
from ztrio import CallResult, Outcome
from ztrio.testing import FaultyStore


async def test_of_duplicates_at_once_one_runs(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Of many calls at once with one key one runs; all get its answer, each a value of its own."""
    runs = Runs()
    async with calling(tmp_path, runs) as (caller, log):
        for number in range(20):
            await caller.begin(str(number))
        assert 1 == caller.supervisor.statistics().calls
        runs.go.set()
        await settle()
        answers = [answer for answer in caller.answers.values() if isinstance(answer, CallResult)]
        assert (20, 1, 1) == (len(answers), len({answer.job_id for answer in answers}), runs.count)
        assert 20 == len({id(answer.value) for answer in answers})
        assert ["allow", "start", "commit"] == log.names()


async def test_duplicates_without_a_pause_between_them(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """The key is taken where the call takes its place: a duplicate that is made before the store was asked waits."""
    runs = Runs()
    runs.go.set()
    async with calling(tmp_path, runs, store=FaultyStore()) as (caller, _):
        results = []

        async def call() -> None:
            results.append(await caller.supervisor.call("export", OUT, idempotency_key="k"))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(call)
        assert (1, 1) == (runs.count, len({result.job_id for result in results}))


async def test_a_duplicate_waits_within_its_own_timeout(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A duplicate that has waited its timeout is told which call runs; that one goes on and commits."""
    runs = Runs()
    async with calling(tmp_path, runs) as (caller, _):
        await caller.begin("first", timeout=60.0)
        began = trio.current_time()
        error = await refused(caller.supervisor, "export", OUT, timeout=3.0, idempotency_key="k")
        assert began + 3.0 == trio.current_time()
        [running] = caller.supervisor._admission.jobs
        assert ("QUEUE_TIMEOUT", running, Outcome.RUNNING) == stood(error)
        assert Outcome.RUNNING == await caller.supervisor.outcome_by_key("export", "k")
        runs.go.set()
        await settle()
        first = caller.answers["first"]
        assert isinstance(first, CallResult)
        assert (running, 1) == (first.job_id, runs.count)


async def test_a_duplicate_that_leaves_cancels_nothing(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """The caller of a duplicate leaves; the original does not notice."""
    runs = Runs()
    async with calling(tmp_path, runs) as (caller, log):
        await caller.begin("first")
        (await caller.begin("second")).cancel()
        await settle()
        runs.go.set()
        await settle()
        assert isinstance(caller.answers["first"], CallResult)
        assert ["allow", "start", "commit"] == log.names()


async def test_when_the_original_is_cancelled_a_duplicate_takes_over(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The first caller leaves and its call is rolled back; then one of the duplicates runs and answers all of them."""
    runs = Runs()
    async with calling(tmp_path, runs) as (caller, _):
        first = await caller.begin("first")
        [original] = caller.supervisor._admission.jobs
        await caller.begin("second")
        await caller.begin("third")
        first.cancel()
        await settle()
        runs.go.set()
        await settle()
        second, third = caller.answers["second"], caller.answers["third"]
        assert isinstance(second, CallResult)
        assert isinstance(third, CallResult)
        assert ({"run": 2}, {"run": 2}, second.job_id) == (second.value, third.value, third.job_id)
        job = await caller.supervisor.job(second.job_id)
        assert job is not None
        assert original == job["repeats"]


async def test_a_running_key_stands_for_one_call(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Other arguments under the key of a call that runs are refused at once; that one goes on."""
    runs = Runs()
    async with calling(tmp_path, runs) as (caller, _):
        await caller.begin("first")
        error = await refused(caller.supervisor, "export", {"out": "b"}, idempotency_key="k")
        assert ("IDEMPOTENCY_CONFLICT", Outcome.NOT_STARTED) == (error.code, error.outcome)
        runs.go.set()
        await settle()
        assert isinstance(caller.answers["first"], CallResult)


async def test_duplicates_are_bounded(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """As many duplicates wait as calls are admitted; one more is refused."""
    runs = Runs()
    async with calling(tmp_path, runs, settings=attrs.evolve(SETTINGS, admitted=2)) as (caller, _):
        for name in ("first", "second", "third", "fourth"):
            await caller.begin(name)
        assert isinstance(caller.answers["fourth"], ztrio.QueueFull)
        runs.go.set()
        await settle()
        assert isinstance(caller.answers["third"], CallResult)


async def test_a_read_is_shared_while_it_runs(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A duplicate of a running read gets its answer; afterwards the read runs again, for it changed nothing."""
    async with calling(tmp_path) as (caller, _):
        await caller.begin("first", "look", arguments={"seconds": 1.0})
        second = await caller.supervisor.call("look", {"seconds": 1.0}, idempotency_key="k")
        await settle()
        first = caller.answers["first"]
        assert isinstance(first, CallResult)
        assert first == second
        assert first.job_id != (await caller.supervisor.call("look", {"seconds": 1.0}, idempotency_key="k")).job_id


async def test_closing_answers_duplicates(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """When the supervisor closes, the original is rolled back and the duplicate refused."""
    async with calling(tmp_path, Runs()) as (caller, _):
        await caller.begin("first")
        await caller.begin("second")
        await caller.supervisor.aclose()
        await settle()
        first, second = caller.answers["first"], caller.answers["second"]
        assert isinstance(first, ztrio.ShuttingDown)
        assert isinstance(second, ztrio.ShuttingDown)
        assert (Outcome.ROLLED_BACK, Outcome.NOT_STARTED) == (first.outcome, second.outcome)
