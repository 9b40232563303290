"""Calls with an idempotency key: what a repetition gets when the first one is over."""

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import ztrio
from tests.supervisor.repeating import OUT, Runs, refused, stood
from tests.supervisor.support import ANNA, BERT, nothing_left, opened, play, sleep_forever
from ztrio import Outcome
from ztrio.store import MAX_KEPT_RESULT
from ztrio.testing import ScriptedBackend, ScriptedCall


async def test_a_committed_call_is_answered_again(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """The repetition of a committed call gets its value, job id and targets; nothing runs and nothing is recorded."""
    async with opened(tmp_path) as (supervisor, log):
        first = await supervisor.call("count", idempotency_key="k")
        events = list(log.events)
        assert first == await supervisor.call("count", idempotency_key="k")
        assert (1, Outcome.COMMITTED) == (first.value, first.outcome)
        await nothing_left(supervisor, tmp_path)
        assert events == log.events
        assert 2 == (await supervisor.call("count", idempotency_key="other")).value
        assert 3 == (await supervisor.call("count")).value


async def test_targets_are_in_the_kept_answer(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """The repetition tells what was published, and publishes nothing."""
    async with opened(tmp_path) as (supervisor, _):
        first = await supervisor.call("export", OUT, idempotency_key="k")
        (tmp_path / "out").write_text("edited since")
        assert first == await supervisor.call("export", OUT, idempotency_key="k")
        assert {"out": str(tmp_path / "out")} == first.targets
        assert "edited since" == (tmp_path / "out").read_text()


async def test_what_the_first_call_made_does_not_refuse_the_second(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """An output that must not exist yet is there after the first call; its repetition is answered all the same."""
    async with opened(tmp_path) as (supervisor, log):
        first = await supervisor.call("found", {"site": "site"}, idempotency_key="k")
        assert first == await supervisor.call("found", {"site": "site"}, idempotency_key="k")
        error = await refused(supervisor, "found", {"site": "site"}, idempotency_key="another")
        assert ("OUTPUT_EXISTS", Outcome.NOT_STARTED) == (error.code, error.outcome)
        assert error.job_id is not None
        assert ["deny"] == log.names(error.job_id)
        assert Outcome.NOT_STARTED == await supervisor.outcome(error.job_id)
        await nothing_left(supervisor, tmp_path)


async def test_what_changed_nothing_runs_again(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """After a call that was rolled back its repetition runs, as a call of its own that is linked to it."""
    runs = Runs(failures=1)
    runs.go.set()
    async with opened(tmp_path, runs) as (supervisor, log):
        error = await refused(supervisor, "export", OUT, idempotency_key="k")
        assert ("TOOL_ERROR", Outcome.ROLLED_BACK) == (error.code, error.outcome)
        second = await supervisor.call("export", OUT, idempotency_key="k")
        assert {"run": 2} == second.value
        assert second == await supervisor.call("export", OUT, idempotency_key="k")
        job = await supervisor.job(second.job_id)
        assert job is not None
        assert (error.job_id, "k") == (job["repeats"], job["idempotency_key"])
        assert ["allow", "start", "commit"] == log.names(second.job_id)
        await nothing_left(supervisor, tmp_path)


async def test_an_unresolved_call_stays_so(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """The repetition of an unresolved call gets the same answer about the same call, and nothing runs."""
    backend = ScriptedBackend(sleep_forever)
    async with opened(tmp_path, backend) as (supervisor, _):
        first = await refused(supervisor, "mail", {}, timeout=1.0, idempotency_key="k")
        again = await refused(supervisor, "mail", {}, timeout=1.0, idempotency_key="k")
        assert ("CALL_UNRESOLVED", Outcome.UNRESOLVED) == (first.code, first.outcome)
        assert stood(first) == stood(again)
        assert isinstance(again, ztrio.Unresolved)
        assert "external_effects" == again.reason
        assert 1 == backend.handed_over
        await nothing_left(supervisor, tmp_path)


async def test_a_call_that_is_settled_late(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """While its worker is not proven dead, the repetition is as unresolved; once it is, the repetition runs."""
    backend = ScriptedBackend(sleep_forever, dies_after=20.0)
    async with opened(tmp_path, backend) as (supervisor, _):
        first = await refused(supervisor, "export", OUT, timeout=1.0, idempotency_key="k")
        again = await refused(supervisor, "export", OUT, timeout=1.0, idempotency_key="k")
        assert ("TERMINATION_UNCONFIRMED", Outcome.UNRESOLVED) == (first.code, first.outcome)
        assert (stood(first), first.message) == (stood(again), again.message)
        assert first is not again
        await trio.sleep(30)
        backend.script, backend.dies_after = play, 0.0
        second = await supervisor.call("export", OUT, idempotency_key="k")
        assert first.job_id != second.job_id
        await nothing_left(supervisor, tmp_path)


async def test_a_key_stands_for_one_call(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """With other arguments or another session the key is refused; their order does not matter."""
    async with opened(tmp_path) as (supervisor, log):
        given = {"out": "out", "text": "new"}
        first = await supervisor.call("export", given, idempotency_key="k")
        assert first == await supervisor.call("export", {"text": "new", "out": "out"}, idempotency_key="k")
        for arguments, session in (({"out": "out", "text": "x"}, "default"), (OUT, "default"), (given, "s")):
            error = await refused(supervisor, "export", arguments, session=session, idempotency_key="k")
            assert ("IDEMPOTENCY_CONFLICT", Outcome.NOT_STARTED) == (error.code, error.outcome)
            assert first.job_id == error.details["earlier_job_id"]
            assert ["deny"] == log.names(error.job_id)
        await nothing_left(supervisor, tmp_path)


async def test_a_key_is_its_principals_and_its_tools(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """The same key of somebody else, or of another tool, is another key; a look by key shows one's own only."""
    async with opened(tmp_path) as (supervisor, _):
        anna = await supervisor.call("count", idempotency_key="k", context=ANNA)
        bert = await supervisor.call("count", idempotency_key="k", context=BERT)
        made = await supervisor.call("export", OUT, idempotency_key="k", context=ANNA)
        assert 3 == len({anna.job_id, bert.job_id, made.job_id})
        for result, tool, context in ((anna, "count", ANNA), (bert, "count", BERT), (made, "export", ANNA)):
            assert Outcome.COMMITTED == await supervisor.outcome_by_key(tool, "k", context=context)
            job = await supervisor.job_by_key(tool, "k", context=context)
            assert job is not None
            assert result.job_id == job["job_id"]
        assert await supervisor.outcome_by_key("export", "k", context=BERT) is None
        assert await supervisor.outcome_by_key("count", "other", context=ANNA) is None
        assert await supervisor.outcome_by_key("\ud800", "k", context=ANNA) is None
        assert await supervisor.outcome("\ud800") is None
        assert await supervisor.outcome(anna.job_id, context=BERT) is None


@pytest.mark.parametrize("key", ["", "x" * 257, "line\nbreak", "\ud800", "nul\0", 7])
async def test_what_is_no_key(tmp_path: Path, autojump_clock: trio.testing.MockClock, key: Any) -> None:
    """A key that is empty, too long, no text or not printable is a wrong argument; nothing ran."""
    async with opened(tmp_path) as (supervisor, log):
        error = await refused(supervisor, "count", {}, idempotency_key=key)
        assert ("INVALID_ARGUMENTS", Outcome.NOT_STARTED) == (error.code, error.outcome)
        assert ["deny"] == log.names()
        with pytest.raises(ztrio.InvalidArguments):
            await supervisor.outcome_by_key("count", key)
        assert Outcome.COMMITTED == (await supervisor.call("count", idempotency_key="x" * 256)).outcome


async def test_an_answer_that_is_too_large(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A large answer is not kept: the repetition is told that the call has committed, without its value."""

    async def much(_: ScriptedCall) -> str:
        await trio.lowlevel.checkpoint()
        return "x" * MAX_KEPT_RESULT

    async with opened(tmp_path, much) as (supervisor, _):
        first = await supervisor.call("count", idempotency_key="k")
        error = await refused(supervisor, "count", {}, idempotency_key="k")
        assert ("ANSWER_NOT_KEPT", first.job_id, Outcome.COMMITTED) == stood(error)


async def test_session_tools_have_keys_too(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A repeated `session_open` opens one session, a repeated `session_destroy` is no error."""
    async with opened(tmp_path) as (supervisor, _):
        handle = (await supervisor.call("session_open", idempotency_key="k")).value
        assert handle == (await supervisor.call("session_open", idempotency_key="k")).value
        await supervisor.call("count", session=handle["session"])
        gone = await supervisor.call("session_destroy", session=handle["session"], idempotency_key="k")
        assert gone == await supervisor.call("session_destroy", session=handle["session"], idempotency_key="k")
        listed = await supervisor.call("session_list", idempotency_key="k")
        assert ({"sessions": []}, Outcome.COMPLETED) == (listed.value, listed.outcome)
        assert listed.job_id != (await supervisor.call("session_list", idempotency_key="k")).job_id
