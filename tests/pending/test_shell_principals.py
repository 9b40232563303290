"""Two token principals and an anonymous one through the real supervisor: who sees what, and what others learn."""

from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

import ztrio
from tests.pending.shell_box import SERVER, Shell, lose, pending_of, shell, states
from ztrio import CallContext, Principal, View
from ztrio.pending import anonymous_id, gate_scope_of, principal_id


def caller(principal: str, **view: Any) -> CallContext:
    """A caller over HTTP."""
    scope = gate_scope_of(principal, transport="http")
    return CallContext(Principal(principal), View(**view), "mcp", scope)


ANN = caller(principal_id("ann@example.org", "laptop", "2026-01-01T00:00:00Z"))
BOB = caller(principal_id("bob@example.org", "laptop", "2026-01-01T00:00:00Z"))
GUEST = caller(anonymous_id("docs"), admin=True, confined=True, tiers=frozenset({"read"}), read_only=True)
ADMIN = caller(principal_id("root@example.org", "desk", "2026-01-01T00:00:00Z"), admin=True)
UNKNOWN = "pc_aaaaaaaaaaaaaaaa"


async def answer(question: Any, *args: Any) -> tuple[str, str, dict[str, Any]]:
    """Everything that an error says."""
    with pytest.raises(ztrio.ZtrioError) as caught:
        await question(*args)
    return type(caught.value).__name__, str(caught.value), caught.value.as_dict()


@pytest.mark.req("P49", "P53")
@pytest.mark.case("R43")
async def test_a_foreign_id_is_an_unknown_one(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Whoever may not see a call gets, for each question, the very answer for an id that never was."""
    async with shell(tmp_path) as box:
        call_id = pending_of(await lose(box, context=ANN))["call_id"]
        desk = box.supervisor.pending
        for context in (BOB, GUEST):
            assert [] == desk.calls(context)
            for question in (desk.call, desk.cancel, desk.owner):
                assert await answer(question, UNKNOWN, context) == await answer(question, call_id, context)
            assert (await answer(desk.release, UNKNOWN, "x", context)) == await answer(
                desk.release, call_id, "x", context
            )
        blind = attrs.evolve(ANN, view=View(servers=frozenset({"other"})))
        assert ([], await answer(desk.call, UNKNOWN, ANN)) == (
            desk.calls(blind),
            await answer(desk.call, call_id, blind),
        )
        assert [("mail", "unresolved")] == states(box, ANN)


@pytest.mark.req("P48", "P49")
@pytest.mark.parametrize(
    ("view", "may"),
    [
        (View(), True),
        (View(tiers=frozenset({"destructive"})), True),
        (View(tiers=frozenset({"read", "write"})), False),
        (View(read_only=True), False),
        (View(servers=frozenset({SERVER})), True),
        (View(servers=frozenset()), False),
    ],
)
async def test_cancel_goes_by_the_view_as_it_is_now(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, view: View, may: bool
) -> None:
    """The exact permission under which the call was let in, a visible server, no read-only mode; else an unknown id."""
    async with shell(tmp_path) as box:
        call_id = pending_of(await lose(box, context=ANN))["call_id"]
        now = attrs.evolve(ANN, view=view)
        desk = box.supervisor.pending
        if may:
            assert "unsupported_transport" == (await desk.cancel(call_id, now))["cancel_error"]
        else:
            assert await answer(desk.cancel, UNKNOWN, now) == await answer(desk.cancel, call_id, now)


@pytest.mark.req("P48", "P53")
async def test_principals_are_shown_to_admins_only(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """An admin sees everybody's calls and whose they are; a confined caller is no admin, whatever it says."""
    async with shell(tmp_path) as box:
        await lose(box, context=ANN)
        desk = box.supervisor.pending
        assert [ANN.principal.id] == [call["principal"] for call in desk.calls(ADMIN)]
        assert ["principal" in call for call in desk.calls(ANN)] == [False]
        assert [] == desk.calls(GUEST)
        assert ANN.principal.id not in str(desk.calls(ANN))


@pytest.mark.req("P50", "P51")
async def test_seeing_is_the_principals_and_the_gate_the_scopes(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Two sessions of one human see and cancel each other's calls, and do not gate each other."""
    async with shell(tmp_path, gate="enforce") as box:
        one, two = (attrs.evolve(ztrio.LOCAL, gate_scope=f"gs_{number}") for number in (1, 2))
        call_id = pending_of(await lose(box, context=one))["call_id"]
        desk = box.supervisor.pending
        assert call_id == (await desk.call(call_id, two))["call_id"]
        assert "unresolved" == (await desk.cancel(call_id, two))["state"]
        assert (await box.supervisor.call("count", context=two)).warning is None
        await box.supervisor.call("look", context=two, reconciles=[call_id])
        assert [("mail", "unresolved")] == states(box, one)
        with pytest.raises(ztrio.CallGated):
            await box.supervisor.call("count", context=one)
        await box.supervisor.call("look", context=one, reconciles=[call_id])
        assert [("mail", "reconciled")] == states(box, one)


async def seen_by_bob(folder: Path, *, with_ann: bool) -> list[Any]:
    """Everything that Bob sees while Ann has calls that nobody knows the end of, or has none."""
    seen: list[Any] = []
    live: list[Any] = []

    async def listen(box: Shell, task_status: trio.TaskStatus[None]) -> None:
        async with box.supervisor.audit.subscribe(context=BOB) as events:
            task_status.started()
            async for event in events:
                facts = event.pending or {}
                live.append((event.event, event.tool, event.code, facts.get("state"), facts.get("step")))

    async with shell(folder, gate="enforce") as box, trio.open_nursery() as nursery:
        await nursery.start(listen, box)
        for context in (ANN, ADMIN) if with_ann else ():
            await lose(box, context=context)
        desk = box.supervisor.pending
        result = await box.supervisor.call("count", context=BOB)
        seen.append((result.outcome, result.value, result.warning))
        seen.append(desk.calls(BOB))
        seen.append(await answer(desk.cancel, UNKNOWN, BOB))
        own = await lose(box, context=BOB)
        seen.append([way["action"] for way in pending_of(own)["resolve"]])
        shown = ("tool", "state", "gating", "server", "reason")
        seen.extend({key: call[key] for key in shown} for call in desk.calls(BOB))
        with pytest.raises(ztrio.CallGated) as gated:
            await box.supervisor.call("count", context=BOB)
        seen.append(gated.value.details["count"])
        events = await box.supervisor.events(context=BOB)
        seen.append([(event["event"], event.get("tool")) for event in events])
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    return [*seen, live]


@pytest.mark.req("P52", "I5", "I10")
async def test_what_one_sees_is_the_same_whatever_others_have(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Results, lists, errors, live events and the log of one principal do not depend on another's pending calls."""
    for name in ("alone", "beside"):
        (tmp_path / name).mkdir()
    alone = await seen_by_bob(tmp_path / "alone", with_ann=False)
    assert alone == await seen_by_bob(tmp_path / "beside", with_ann=True)


@pytest.mark.req("P53", "P58")
async def test_the_audit_goes_by_the_view(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """What happened to a pending call is in its owner's audit and an admin's, and in nobody else's."""
    async with shell(tmp_path) as box:
        error = await lose(box, context=ANN)
        for context, expected in ((ANN, True), (ADMIN, True), (BOB, False), (GUEST, False)):
            events = await box.supervisor.events(context=context)
            assert expected == ("pending_call" in [event["event"] for event in events])
            assert expected == (await box.supervisor.job(error.job_id, context=context) is not None)


@pytest.mark.req("P47")
async def test_a_rotated_secret_keeps_the_gate(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """The principal, and so what is gated, is that of owner, name and time of creation; made anew it is another."""
    async with shell(tmp_path, gate="enforce") as box:
        await lose(box, context=ANN)
        again = caller(principal_id("ann@example.org", "laptop", "2026-01-01T00:00:00Z"))
        with pytest.raises(ztrio.CallGated):
            await box.supervisor.call("count", context=again)
        anew = caller(principal_id("ann@example.org", "laptop", "2026-02-02T00:00:00Z"))
        assert (await box.supervisor.call("count", context=anew)).warning is None
