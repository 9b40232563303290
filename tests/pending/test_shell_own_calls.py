"""Our own tools: a call of which nobody knows what became of it is kept by name until it is settled."""

from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

import ztrio
from tests.pending.shell_box import SERVER, behave, lose, pending_of, shell, states
from tests.supervisor.support import ADMIN, ANNA, SETTINGS, settle
from ztrio.pending import Bounds, Mode, PendingSettings
from ztrio.testing import FaultyStore, ScriptedBackend, ScriptedCall

ENFORCE = PendingSettings(mode=Mode.ENFORCE)
UNKNOWN = "pc_aaaaaaaaaaaaaaaa"


@pytest.mark.req("P5", "P11", "P54")
async def test_a_call_that_nobody_knows_the_end_of_has_a_name(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The error of a killed tool with effects elsewhere carries the pending call, and its message the ways out."""
    async with shell(tmp_path) as box:
        error = await lose(box)
        shown = pending_of(error)
        assert {
            "call_id": "pc_" + str(error.job_id).removeprefix("job_"),
            "server": SERVER,
            "tool": "mail",
            "state": "unresolved",
            "reason": "external_effects",
            "transport": "local",
            "gating": True,
            "late_completion_observable": False,
            "upstream_may_still_be_running": False,
            "expires_at": None,
        } == {
            name: shown[name]
            for name in shown
            if name
            not in ("sent_at", "unresolved_at", "scope", "resolve", "actor", "connection_generation", "principal")
        }
        assert ["wait", "reconcile"] == [way["action"] for way in shown["resolve"]]
        assert "CALL_UNRESOLVED" == error.code
        assert "Do not repeat it blindly" in error.message
        assert "mail ran longer than 1 s and was stopped." == error.details["because"]
        assert [("mail", "unresolved")] == states(box)
        assert [("wait_ended", "unresolved")] == box.steps
        [(name, facts)] = box.notices
        assert ("call unresolved", shown["call_id"], "external_effects") == (name, facts["call_id"], facts["reason"])


@pytest.mark.req("P38", "P39")
@pytest.mark.parametrize("look", ["look", "look_apart"])
async def test_only_a_read_that_names_it_settles_it(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, look: str
) -> None:
    """No read settles a call of ours by the way, however quiet it is; one that names it and succeeds does."""
    async with shell(tmp_path, gate="enforce") as box:
        call_id = pending_of(await lose(box))["call_id"]
        await trio.sleep(3600)
        await box.supervisor.call(look)
        with pytest.raises(ztrio.CallGated):
            await box.supervisor.call("count")
        with pytest.raises(ztrio.ToolError):
            await box.supervisor.call("look", {"fail": True}, reconciles=[call_id])
        assert [("mail", "unresolved")] == states(box)
        await box.supervisor.call(look, reconciles=[call_id])
        assert [("mail", "reconciled")] == states(box)
        assert (await box.supervisor.call("count")).warning is None
        assert ("reconcile", "reconciled") == box.steps[-1]


@pytest.mark.req("P39", "P49")
async def test_a_read_that_names_it_settles_it_at_once(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Ids named by a read settle also what is still observed; ids that mean nothing to the caller reveal nothing."""
    async with shell(tmp_path, ScriptedBackend(behave, dies_after=60.0), gate="enforce") as box:
        error = await lose(box)
        assert ("TERMINATION_UNCONFIRMED", True) == (error.code, pending_of(error)["late_completion_observable"])
        call_id = pending_of(error)["call_id"]
        await trio.sleep(31)
        await box.supervisor.call("look")
        await box.supervisor.call("look", reconciles=[UNKNOWN])
        await box.supervisor.call("look", reconciles=[call_id], context=ANNA)
        assert [("mail", "unresolved")] == states(box)
        for wrong in (["job_1"], [call_id] * 17, call_id, 7, [7]):
            with pytest.raises(ztrio.InvalidArguments):
                await box.supervisor.call("look", reconciles=wrong)
        await box.supervisor.call("look", reconciles=[call_id, UNKNOWN])
        assert [("mail", "reconciled")] == states(box)
        await trio.sleep(60)
        assert [("mail", "reconciled")] == states(box)


@pytest.mark.req("P38")
@pytest.mark.parametrize("tool", ["export", "look_apart", "mail"])
async def test_whoever_finds_out_proves_it(tmp_path: Path, autojump_clock: trio.testing.MockClock, tool: str) -> None:
    """A worker that is proven dead at last settles the call: the gate opens unless there are effects elsewhere."""

    async def script(_: ScriptedCall) -> None:
        await trio.sleep_forever()

    async with shell(tmp_path, ScriptedBackend(script, dies_after=60.0)) as box:
        with pytest.raises(ztrio.Unresolved) as caught:
            await box.supervisor.call(tool, {"out": "out"} if tool == "export" else {}, timeout=1.0, session="other")
        assert "termination_unconfirmed" == pending_of(caught.value)["reason"]
        await trio.sleep(70)
        assert {
            "export": [("export", "proven")],
            "look_apart": [("look_apart", "proven")],
            "mail": [("mail", "unresolved")],
        }[tool] == states(box)
        assert not any(call["late_completion_observable"] for call in box.supervisor.pending.calls(ztrio.LOCAL))


@pytest.mark.req("P38")
async def test_a_commit_that_turns_out(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A commit that can be neither confirmed nor aborted is unresolved, and proven when the store can tell."""
    store = FaultyStore(fail={"finish:commit": OSError("no"), "abort": OSError("no")})
    async with shell(tmp_path, store=store) as box:
        with pytest.raises(ztrio.Unresolved) as caught:
            await box.supervisor.call("count")
        assert ("COMMIT_UNCONFIRMED", "commit_unconfirmed") == (caught.value.code, pending_of(caught.value)["reason"])
        assert [("count", "unresolved")] == states(box)
        store.fail.clear()
        await trio.sleep(5)
        assert [("count", "proven")] == states(box)
        assert ("proof", "proven") == box.steps[-1]


@pytest.mark.req("P2", "P38", "P58")
async def test_an_operator_releases_it(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """The operator's word opens the gate and is in the audit with the reason; others are refused, twice is no error."""
    async with shell(tmp_path, gate="enforce") as box:
        desk = box.supervisor.pending
        call_id = pending_of(await lose(box, context=ANNA))["call_id"]
        with pytest.raises(ztrio.PermissionDenied):
            await desk.release(call_id, "because", ANNA)
        for reason in ("", "  ", "x" * 501):
            with pytest.raises(ztrio.InvalidArguments):
                await desk.release(call_id, reason, ADMIN)
        with pytest.raises(ztrio.UnknownCall):
            await desk.release(UNKNOWN, "because", ADMIN)
        shown = await desk.release(call_id, "looked: it was sent", ADMIN)
        assert ("released", False, "operator:release") == (shown["state"], shown["gating"], shown["settled_by"])
        told = box.pending[-1]
        assert ("looked: it was sent", "operator", "release") == (
            told.cause,
            (told.pending or {})["actor"],
            (told.pending or {})["step"],
        )
        assert shown == await desk.release(call_id, "again", ADMIN)
        assert told == box.pending[-1]
        assert (await box.supervisor.call("count", context=ANNA)).warning is None


@pytest.mark.req("P6")
async def test_closing_makes_no_entries(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A call that is cut short by the end of the supervisor is answered as unresolved, and makes no entry."""
    errors: list[ztrio.ZtrioError] = []
    async with shell(tmp_path) as box, trio.open_nursery() as nursery:

        @nursery.start_soon
        async def _() -> None:
            with pytest.raises(ztrio.Unresolved) as caught:
                await box.supervisor.call("mail")
            errors.append(caught.value)

        await settle()
        await box.supervisor.aclose()
    assert [] == box.steps
    assert ["pending_call" in error.details for error in errors] == [False]


@pytest.mark.req("P14", "P15", "P17")
@pytest.mark.leaves("a call that was never settled")
async def test_calls_that_were_folded(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A folded call answers to its id with its blocker, and what settles it counts the blocker down to its end."""
    settings = PendingSettings(mode=Mode.ENFORCE, bounds=Bounds(gating=1))

    async def script(_: ScriptedCall) -> None:
        await trio.sleep_forever()

    async with shell(tmp_path, ScriptedBackend(script, dies_after=60.0), gate=settings) as box:
        errors = []

        async def one(number: int) -> None:
            with pytest.raises(ztrio.Unresolved) as caught:
                await box.supervisor.call("export", {"out": f"out{number}"}, timeout=1.0, session=f"s{number}")
            errors.append(caught.value)

        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(one, number)
        desk = box.supervisor.pending
        assert [("*", "unresolved"), ("export", "unresolved")] == sorted(states(box))
        [blocker] = [call for call in desk.calls(ztrio.LOCAL) if call["tool"] == "*"]
        assert 2 == blocker["count"]
        await settle()
        ids = ["pc_" + str(error.job_id).removeprefix("job_") for error in errors]
        shown = [(await desk.call(call_id, ztrio.LOCAL))["call_id"] for call_id in ids]
        assert 2 == shown.count(blocker["call_id"])
        assert [{"call_id": blocker["call_id"], "state": "unresolved", "cancel_sent": False}] == [
            {name: answer[name] for name in ("call_id", "state", "cancel_sent")}
            for answer in [await desk.cancel(blocker["call_id"], ztrio.LOCAL)]
        ]
        await trio.sleep(70)
        assert {"proven"} == {state for _, state in states(box)}
        assert (await box.supervisor.call("look")).warning is None


@pytest.mark.req("P16", "P17")
@pytest.mark.parametrize("blockers", [1, 2])
async def test_calls_whose_blockers_were_merged(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, blockers: int
) -> None:
    """Also through blockers that became one, whoever finds out about a call counts down what it is in."""
    bounds = Bounds(gating=1, blockers=blockers)

    async def script(_: ScriptedCall) -> None:
        await trio.sleep_forever()

    backend = ScriptedBackend(script, dies_after=60.0)
    async with shell(tmp_path, backend, gate=PendingSettings(mode=Mode.ENFORCE, bounds=bounds)) as box:

        async def one(number: int) -> None:
            context = attrs.evolve(ANNA, gate_scope=f"gs_{number % (blockers + 1)}")
            with pytest.raises(ztrio.Unresolved):
                await box.supervisor.call(
                    "export", {"out": f"{number}"}, timeout=1.0, session=f"{number}", context=context
                )

        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(one, number)
        await settle()
        merged = [event for event in box.pending if (event.pending or {})["step"] == "merge"]
        assert merged
        assert box.supervisor._runtime.tracker.registry.gates(SERVER, "anna", "gs_1")
        await trio.sleep(70)
        assert not box.supervisor._runtime.tracker.registry.gates(SERVER, "anna", "gs_0")
        assert not box.supervisor._runtime.tracker.registry.gates(SERVER, "anna", "gs_1")
        assert {} == box.supervisor._runtime.tracker._followed


@pytest.mark.req("P38")
async def test_a_doubt_that_somebody_looks_into(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A commit that takes too long and then fails leaves a tool with effects elsewhere unresolved, and not observed."""

    async def quick(_: ScriptedCall) -> None:
        await trio.lowlevel.checkpoint()

    settings = attrs.evolve(SETTINGS, commit_bound=2.0)
    store = FaultyStore(fail={"finish:commit": OSError("no"), "abort": OSError("no")})
    async with shell(tmp_path, quick, store=store, settings=settings) as box:
        with pytest.raises(ztrio.Unresolved) as caught:
            await box.supervisor.call("mail")
        assert ("commit_unconfirmed", True) == (
            pending_of(caught.value)["reason"],
            pending_of(caught.value)["late_completion_observable"],
        )
        store.fail.clear()
        await trio.sleep(5)
        [call] = box.supervisor.pending.calls(ztrio.LOCAL)
        assert ("unresolved", False) == (call["state"], call["late_completion_observable"])
        assert "lose_sight" == box.steps[-1][0]
