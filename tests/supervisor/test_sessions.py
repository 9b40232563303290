"""Sessions: whose they are, what destruction reaches, and what anybody may learn about others."""

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import ztrio
from tests.supervisor.support import ADMIN, ANNA, BERT, nothing_left, opened, play, settle, state
from ztrio import Outcome
from ztrio.plain import decode
from ztrio.testing import FaultyStore, ScriptedCall


async def slow(call: ScriptedCall) -> Any:
    """Play a tool that takes a second."""
    await trio.sleep(1)
    return await play(call)


async def test_destroyed_while_calls_wait(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Calls allowed before a destruction can neither commit nor recreate the session; those after it start anew."""
    async with opened(tmp_path, slow) as (supervisor, _):
        await supervisor.call("count", session="s")
        answers: dict[str, Any] = {}

        async def call(name: str, tool: str) -> None:
            try:
                answers[name] = (await supervisor.call(tool, session="s")).value
            except ztrio.ZtrioError as error:
                answers[name] = error.code

        async with trio.open_nursery() as nursery:
            for name, tool in [
                ("running", "count"),
                ("destroy", "session_destroy"),
                ("waiting", "count"),
                ("apart", "count"),
                ("again", "session_destroy"),
            ]:
                nursery.start_soon(call, name, tool)
                await settle()
        assert {
            "running": 2,
            "destroy": {"destroyed": "s"},
            "waiting": "SESSION_DESTROYED",
            "apart": "SESSION_DESTROYED",
            "again": "SESSION_NOT_FOUND",
        } == answers
        assert await state(supervisor, "s") is None
        await call("after", "count")
        assert 1 == answers["after"]
        await nothing_left(supervisor, tmp_path)


async def test_incarnations(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A plain name that was destroyed is another session when it is used again: new incarnation, version 1, empty."""
    async with opened(tmp_path) as (supervisor, _):
        await supervisor.call("count")
        await supervisor.call("count")
        first = await supervisor._runtime.store.session("local", "default")
        await supervisor.call("session_destroy")
        assert await supervisor._runtime.store.session("local", "default") is None
        assert 1 == (await supervisor.call("count")).value
        second = await supervisor._runtime.store.session("local", "default")
        assert first is not None
        assert second is not None
        assert (2, 1) == (first.version, second.version)
        assert first.incarnation != second.incarnation


async def test_handle_is_burnt(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A minted handle opens by session_open only, and once destroyed never again, by any tool."""
    async with opened(tmp_path) as (supervisor, _):
        handle = (await supervisor.call("session_open")).value["session"]
        assert 1 == (await supervisor.call("count", session=handle)).value
        await supervisor.call("session_destroy", session=handle)
        for tool in ("count", "look", "look_apart"):
            with pytest.raises(ztrio.SessionDestroyedError) as caught:
                await supervisor.call(tool, session=handle)
            assert caught.value.outcome in (Outcome.NOT_STARTED, Outcome.COMPLETED)
        with pytest.raises(ztrio.SessionNotFound):
            await supervisor.call("session_destroy", session=handle)
        assert [] == (await supervisor.call("session_list")).value["sessions"]
        await nothing_left(supervisor, tmp_path)


async def test_foreign_and_unknown_look_alike(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Somebody else's session gets the very answer of one that does not exist, from every tool."""
    async with opened(tmp_path) as (supervisor, _):
        handle = (await supervisor.call("session_open", context=ANNA)).value["session"]
        await supervisor.call("count", session="plain", context=ANNA)

        async def answer(tool: str, session: str) -> str:
            with pytest.raises(ztrio.ZtrioError) as caught:
                await supervisor.call(tool, session=session, context=BERT)
            error = caught.value.as_dict()
            del error["job_id"]
            return repr(error).replace(session, "NAME")

        for tool in ("count", "look", "session_destroy"):
            unknown = "zs_" + handle[3:-1] + ("a" if handle[-1] != "a" else "b")
            assert await answer(tool, handle) == await answer(tool, unknown)
            assert await answer(tool, handle) == await answer(tool, handle.upper().replace("ZS_", "zs_"))
        assert await answer("session_destroy", "plain") == await answer("session_destroy", "never")
        # A plain name is the caller's own.
        assert 1 == (await supervisor.call("count", session="plain", context=BERT)).value
        assert 2 == (await supervisor.call("count", session="plain", context=ANNA)).value


async def test_list_shows_own_sessions(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """session_list names the caller's sessions and nobody else's."""
    async with opened(tmp_path) as (supervisor, _):
        for context, name in [(ANNA, "b"), (ANNA, "a"), (BERT, "c")]:
            await supervisor.call("count", session=name, context=context)
        listed = (await supervisor.call("session_list", context=ANNA)).value["sessions"]
        assert [("a", 1), ("b", 1)] == [(row["name"], row["version"]) for row in listed]
        assert [] == (await supervisor.call("session_list", context=ADMIN)).value["sessions"]


async def test_failed_call_leaves_the_session(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A call that fails neither opens a session nor changes its state or version."""

    async def script(call: ScriptedCall) -> Any:
        value = await play(call)
        if value == 2:
            raise ValueError("no")
        return value

    async with opened(tmp_path, script) as (supervisor, _):
        await supervisor.call("count")
        before = await state(supervisor)
        with pytest.raises(ztrio.ToolError):
            await supervisor.call("count")
        assert before == await state(supervisor)


async def test_read_cannot_write_the_session(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """What an isolated read leaves in its session is thrown away."""

    async def script(call: ScriptedCall) -> None:
        call.session["count"] = 99

    async with opened(tmp_path, script) as (supervisor, _):
        await supervisor.call("look_apart")
        assert await state(supervisor) is None


async def test_read_of_a_session_destroyed_meanwhile(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A read allowed before a destruction does not show the next life of the name."""
    store = FaultyStore()
    async with opened(tmp_path, store=store) as (supervisor, _), trio.open_nursery() as nursery:
        await supervisor.call("count")
        go_on = trio.Event()
        original = store._step

        async def step(operation: str, detail: str | None = None) -> None:
            if operation == "session":
                await go_on.wait()
            await original(operation, detail)

        store.__dict__["_step"] = step

        @nursery.start_soon
        async def _() -> None:
            with pytest.raises(ztrio.SessionDestroyedError):
                await supervisor.call("look")

        await settle()
        del store.__dict__["_step"]
        await supervisor.call("session_destroy")
        await supervisor.call("count")
        go_on.set()


async def test_other_principals_calls_are_unknown(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A call, its outcome and its events show to who made it and to an admin; to others there is no such call."""
    async with opened(tmp_path) as (supervisor, _):
        job_id = (await supervisor.call("count", context=ANNA)).job_id
        assert Outcome.COMMITTED == await supervisor.outcome(job_id, context=ANNA)
        assert Outcome.COMMITTED == await supervisor.outcome(job_id, context=ADMIN)
        assert await supervisor.outcome(job_id, context=BERT) is None
        assert await supervisor.job(job_id, context=BERT) is None
        assert await supervisor.job("job_never", context=BERT) is None
        await supervisor.call("look", context=BERT)
        expected = ["allow", "start", "commit"]
        assert expected == [event["event"] for event in await supervisor.events(context=ANNA)]
        assert ["allow", "completed"] == [event["event"] for event in await supervisor.events(context=BERT)]
        assert [*expected, "allow", "completed"] == [event["event"] for event in await supervisor.events(context=ADMIN)]
        assert ["commit"] == [event["event"] for event in await supervisor.events(context=ANNA, after=2, limit=5)]


async def test_live_events_of_own_calls(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A subscriber with a context receives its own events only."""
    async with opened(tmp_path) as (supervisor, _), supervisor.audit.subscribe(context=ANNA) as events:
        await supervisor.call("count", context=BERT)
        await supervisor.call("look", context=ANNA)
        assert ["allow", "completed"] == [(await events.receive()).event for _ in range(2)]
        with pytest.raises(trio.WouldBlock):
            events.receive_nowait()


async def test_job_tells_how_far_it_is(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """While a call runs its outcome is `running`, and its phase and worker are known."""
    async with opened(tmp_path, slow) as (supervisor, log), trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.call, "export", {"out": "out"})
        await settle()
        job_id = log.events[0].execution_job_id
        described = await supervisor.job(job_id)
        assert described is not None
        assert ("running", "worker_running", {"out": str(tmp_path / "out")}) == (
            described["outcome"],
            described["phase"],
            described["targets"],
        )
        assert log.one("start").pid == described["worker_pid"]


async def test_policy(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """The policy decides by principal and tool; its reason is in the answer and in the audit, and nothing ran."""

    def policy(context: ztrio.CallContext, tool: Any) -> str | None:
        if context.principal.id == "bert" and tool.capability is not ztrio.Capability.READ:
            return "bert only reads"
        return None

    async with opened(tmp_path, policy=policy) as (supervisor, log):
        await supervisor.call("count", context=ANNA)
        await supervisor.call("look", context=BERT)
        for tool in ("count", "mail", "session_open", "session_destroy"):
            with pytest.raises(ztrio.PermissionDenied) as caught:
                await supervisor.call(tool, context=BERT)
            assert "bert only reads" in caught.value.message
            assert ["deny"] == log.names(caught.value.job_id)


@pytest.mark.parametrize(
    ("granted", "expected"),
    [
        (("read",), {"look": True, "count": False, "mail": False}),
        (("read", "write"), {"look": True, "count": True, "mail": False}),
        (("destructive",), {"look": False, "count": False, "mail": True}),
        ((), {"look": False, "count": False, "mail": False}),
    ],
)
async def test_allow(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, granted: tuple[str, ...], expected: dict[str, bool]
) -> None:
    """`allow` grants the capabilities that are named and nothing else."""
    async with opened(tmp_path, policy=ztrio.allow(*granted)) as (supervisor, _):
        found = {}
        for tool in expected:
            try:
                await supervisor.call(tool)
            except ztrio.PermissionDenied:
                found[tool] = False
            else:
                found[tool] = True
        assert expected == found


def test_allow_knows_its_words() -> None:
    """A capability that does not exist is refused when the policy is made."""
    with pytest.raises(ztrio.InvalidArguments, match="everything"):
        ztrio.allow("everything")


async def test_state_round_trip(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """State comes back exactly: big numbers, bytes, nested containers."""
    value = {"n": 10**30, "b": b"\xff", "l": [1, [2.5, None, True]]}

    async def script(call: ScriptedCall) -> Any:
        call.session.update(value)

    async with opened(tmp_path, script) as (supervisor, _):
        await supervisor.call("count")
        found = await state(supervisor)
        assert found is not None
        assert value == decode(found[1])
