"""Our own tools at the gate: what changes something while an earlier call is unresolved is warned about or refused."""

from functools import partial
from pathlib import Path
from typing import Any, Literal

import attrs
import pytest
import trio
import trio.testing

import ztrio
from tests.pending.shell_box import SERVER, behave, lose, pending_of, shell, states
from tests.supervisor.support import ANNA, BERT, SETTINGS, settle
from ztrio import CallContext, Outcome, Principal, View
from ztrio.pending import Bounds, Mode, PendingSettings
from ztrio.testing import ScriptedBackend, ScriptedCall

ENFORCE = PendingSettings(mode=Mode.ENFORCE)
UNKNOWN = "pc_aaaaaaaaaaaaaaaa"


@pytest.mark.req("P30", "P32", "P34", "P35")
@pytest.mark.case("R27")
@pytest.mark.parametrize("gate", ["off", "warn", "enforce"])
async def test_a_blind_repeat(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, gate: Literal["off", "warn", "enforce"]
) -> None:
    """It is let through, warned about, or refused before anything of it runs, as the gate is set; reads go ahead."""
    async with shell(tmp_path, gate=gate) as box:
        lost = pending_of(await lose(box))["call_id"]
        if gate == "enforce":
            with pytest.raises(ztrio.CallGated) as caught:
                await box.supervisor.call("count")
            error = caught.value
            assert ("PENDING_CALL_UNRESOLVED", Outcome.NOT_STARTED) == (error.code, error.outcome)
            assert (lost, lost) == (error.details["pending"][0]["call_id"], pending_of(error)["call_id"])
            assert "look with leave or leave_thread or look" in error.message
            assert ["deny"] == box.names(error.job_id)
            assert "call refused" == box.notices[-1][0]
            assert 1 == box.supervisor.statistics().pending.refused
        else:
            result = await box.supervisor.call("count")
            assert Outcome.COMMITTED == result.outcome
            if gate == "warn":
                assert [lost] == [each["call_id"] for each in result.warning["pending"]]
                assert "call sent although another is unresolved" == box.notices[-1][0]
            else:
                assert result.warning is None
        assert (await box.supervisor.call("look")).warning is None


@pytest.mark.req("P35", "P58")
async def test_a_storm_of_repeats_is_a_few_lines(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """What is said to the log about one caller and server is said once in a while, with how much was held back."""
    async with shell(tmp_path) as box:
        await lose(box)
        for _ in range(5):
            assert (await box.supervisor.call("count")).warning is not None
        await trio.sleep(11)
        await box.supervisor.call("count")
        warned = [facts for name, facts in box.notices if name == "call sent although another is unresolved"]
        assert [None, 4] == [facts.get("held_back") for facts in warned]


@pytest.mark.req("P36")
async def test_a_write_that_waited_meets_the_gate_as_it_is_then(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Admitted while the gate was open, and queued behind a call that became unresolved, it is refused."""
    ran: list[str] = []

    async def script(call: ScriptedCall) -> Any:
        ran.append(call.request.function)
        return await behave(call)

    async with shell(tmp_path, script, gate="enforce") as box, trio.open_nursery() as nursery:
        nursery.start_soon(lose, box)
        await settle()
        with pytest.raises(ztrio.CallGated) as caught:
            await box.supervisor.call("count")
        assert Outcome.NOT_STARTED == caught.value.outcome
        assert ["allow", "deny"] == box.names(caught.value.job_id)
        assert ["mail"] == ran
        assert 1 == box.supervisor.statistics().pending.registry.refused


@pytest.mark.req("P20", "P30")
async def test_the_gate_is_changed_while_it_runs(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """`off` opens every gate with the next check and forgets nothing; back on, it is shut as before."""
    async with shell(tmp_path, gate="enforce") as box:
        tracker = box.supervisor._runtime.tracker
        await lose(box)
        tracker.callers.configure(attrs.evolve(tracker.callers.settings, mode=Mode.OFF))
        assert (await box.supervisor.call("count")).warning is None
        assert [("mail", "unresolved")] == states(box)
        tracker.callers.configure(attrs.evolve(tracker.callers.settings, mode=Mode.ENFORCE))
        with pytest.raises(ztrio.CallGated):
            await box.supervisor.call("count")


@pytest.mark.req("P13", "P50", "I5", "I10")
async def test_nobody_is_gated_by_others(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Another principal's calls, and another session's of the same one, go ahead; the gate is its own scope's."""
    session = attrs.evolve(ANNA, gate_scope="anna's second session")
    async with shell(tmp_path, gate="enforce") as box:
        before = box.supervisor.pending.calls(BERT)
        await lose(box, context=ANNA)
        for context in (BERT, session, ztrio.LOCAL):
            assert (await box.supervisor.call("count", context=context)).warning is None
        assert before == box.supervisor.pending.calls(BERT)
        assert [("mail", "unresolved")] == states(box, session)  # seeing is the principal's, the gate the scope's
        with pytest.raises(ztrio.CallGated):
            await box.supervisor.call("count", context=ANNA)


@pytest.mark.req("P48")
@pytest.mark.parametrize(
    ("view", "allowed"),
    [
        (View(read_only=True), {"look"}),
        (View(tiers=frozenset({"read", "destructive"})), {"look", "mail"}),
        (View(tiers=frozenset({"write"})), {"count"}),
        (View(tiers=frozenset()), set()),
        (View(admin=True, confined=True), {"look", "count", "mail"}),
    ],
)
async def test_a_view_is_asked_at_each_call(tmp_path: Path, view: View, allowed: set[str]) -> None:
    """What a caller's view does not allow now is denied, whatever it did before; permissions are exact."""
    before = CallContext(Principal("anna"))
    now = attrs.evolve(before, view=view)

    async def quick(_: ScriptedCall) -> None:
        await trio.lowlevel.checkpoint()

    async with shell(tmp_path, quick) as box:
        did = set()
        for tool in ("look", "count", "mail"):
            await box.supervisor.call(tool, context=before)
            try:
                await box.supervisor.call(tool, context=now)
            except ztrio.PermissionDenied as error:
                assert Outcome.NOT_STARTED is error.outcome
            else:
                did.add(tool)
        assert allowed == did


@pytest.mark.req("P20")
@pytest.mark.parametrize("mode", list(Mode))
async def test_a_caller_whose_books_are_full(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, mode: Mode
) -> None:
    """Only `enforce` refuses what does not fit on the caller's books; else it goes out, counted, without an entry."""
    settings = PendingSettings(mode=mode, bounds=Bounds(in_flight=1))
    async with shell(tmp_path, gate=settings) as box, trio.open_nursery() as nursery:
        nursery.start_soon(lose, box)
        await settle()
        if mode is Mode.ENFORCE:
            with pytest.raises(ztrio.RegistryFull) as full:
                await box.supervisor.call("count", session="other")
            assert ("PENDING_REGISTRY_FULL", 1.0) == (full.value.code, full.value.details["retry_after"])
            assert (await box.supervisor.call("count", session="other", context=ANNA)).outcome is Outcome.COMMITTED
        else:
            with pytest.raises(ztrio.Unresolved) as lost:
                await box.supervisor.call("mail", session="other", timeout=0.5)
            assert (False, False) == (lost.value.details["tracked"], "pending_call" in lost.value.details)
            assert "on no list of pending calls" in lost.value.message
            assert "call not tracked" in [name for name, _ in box.notices]
            counted = box.supervisor.statistics().pending.registry
            assert 1 == counted.untracked
            assert not box.supervisor._runtime.tracker.registry.busy(SERVER).untracked


@pytest.mark.req("P33", "P34")
def test_refusal_names_only_reads_that_the_caller_may_make() -> None:
    """The ways out of a refusal are those of the caller's policy and view."""

    async def main(folder: Path) -> None:
        def policy(context: CallContext, tool: Any) -> str | None:
            return "not for bert" if context.principal.id == "bert" and tool.name.startswith("l") else None

        async with shell(folder, gate="enforce", policy=policy) as box:
            await lose(box, context=BERT)
            with pytest.raises(ztrio.CallGated) as caught:
                await box.supervisor.call("count", context=BERT)
            assert [["wait"], ["ask_operator"]] == [list(way.values())[:1] for way in caught.value.details["resolve"]]
            await lose(box, context=ANNA)
            with pytest.raises(ztrio.CallGated) as caught:
                await box.supervisor.call("count", context=ANNA)
            [_, reconcile] = caught.value.details["resolve"]
            assert ("reconcile", 3) == (reconcile["action"], len(reconcile["tools"]))

    import tempfile

    with tempfile.TemporaryDirectory() as place:
        trio.run(main, Path(place), clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.req("P3", "P20")
@pytest.mark.parametrize("step", ["acquire", "send_request"])
async def test_a_call_that_was_not_sent(tmp_path: Path, autojump_clock: trio.testing.MockClock, step: str) -> None:
    """A call that ended before a worker had it, or that a worker never took, leaves nothing on the books."""
    settings = attrs.evolve(SETTINGS, start_bound=5.0)
    async with shell(tmp_path, ScriptedBackend(behave, stall=[step]), settings=settings) as box:
        with trio.move_on_after(2) as leaving:
            await box.supervisor.call("count")
        assert leaving.cancelled_caught
        assert ([], 0) == (states(box), box.supervisor.statistics().pending.registry.records)


@pytest.mark.req("P20")
async def test_a_read_is_never_refused(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A read of a caller whose books are full goes ahead; it settles nothing then."""
    settings = PendingSettings(mode=Mode.ENFORCE, bounds=Bounds(in_flight=1))
    async with shell(tmp_path, gate=settings) as box, trio.open_nursery() as nursery:
        call_id = pending_of(await lose(box))["call_id"]
        nursery.start_soon(partial(box.supervisor.call, "look", {"seconds": 2.0}, reconciles=["pc_aaaaaaaaaaaaaaaa"]))
        await settle()
        assert (await box.supervisor.call("look", reconciles=[call_id])).outcome is Outcome.COMPLETED
        assert [("mail", "unresolved")] == states(box)
