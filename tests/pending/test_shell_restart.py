"""After a restart: what nobody knew is still unknown and gates, what was settled is not, and recovery's word counts."""

from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

import ztrio
from tests.pending.shell_box import SERVER, behave, conforms, lose, pending_of, shell, states
from tests.supervisor.support import ANNA, BERT
from ztrio import Outcome, StoreUnavailable
from ztrio.activity import JournalRow, PendingWrite
from ztrio.pending import Bounds, Mode, PendingSettings
from ztrio.store import JobEnd, JobRow, Store
from ztrio.testing import FaultyStore, ScriptedBackend
from ztrio_sql import open_store

JOB = "job_bbbbbbbbbbbbbbbb"
CALL = "pc_bbbbbbbbbbbbbbbb"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A workspace, with a place for a store beside it."""
    (tmp_path / "ws").mkdir()
    return tmp_path


def job_row(**facts: Any) -> JobRow:
    """A call that was running when its process was killed."""
    known: dict[str, Any] = {
        "job_id": JOB,
        "principal": "local",
        "tool": "mail",
        "session": "default",
        "capability": "destructive",
        "phase": "worker_running",
        "outcome": None,
        "targets": {},
        "created_at": "2026-01-01T00:00:00+00:00",
    }
    return JobRow(**{**known, **facts})


def journal_row(**facts: Any) -> JournalRow:
    """The note that was made of it before it ran."""
    row = JournalRow(
        call_id=CALL,
        seq=7,
        server=SERVER,
        transport="local",
        epoch=0,
        principal="local",
        gate_scope="local",
        tool="mail",
        gate_tier="destructive",
        admission_tier="destructive",
        wire_ids=(),
        sent_at=1_700_000_000.0,
        expires_at=None,
    )
    return attrs.evolve(row, **facts)


@pytest.mark.req("P57", "P60", "I7")
@pytest.mark.parametrize("settle", ["no", "release", "reconcile"])
async def test_entries_come_back(place: Path, settle: str) -> None:
    """An unresolved call gates its own caller after a restart, unless it was settled before."""
    async with open_store(place / "state.db") as store, shell(place / "ws", store=store, gate="enforce") as box:
        shown = pending_of(await lose(box, timeout=0.05))
        if settle == "release":
            await box.supervisor.pending.release(shown["call_id"], "looked", ztrio.LOCAL)
        elif settle == "reconcile":
            await box.supervisor.call("look", reconciles=[shown["call_id"]])
    async with open_store(place / "state.db") as store, shell(place / "ws", store=store, gate="enforce") as box:
        assert [] == box.pending
        lines = [("calls of an earlier run are unresolved", {"entries": 1, "newest": shown["call_id"]})]
        assert (lines if settle == "no" else []) == box.notices
        if settle != "no":
            assert [] == states(box)
            assert (await box.supervisor.call("count")).warning is None
            found = await box.supervisor.pending.call(shown["call_id"], ztrio.LOCAL)
            conforms(found)
            assert {"release": "released", "reconcile": "reconciled"}[settle] == found["state"]
            return
        [back] = box.supervisor.pending.calls(ztrio.LOCAL)
        same = (
            "call_id",
            "server",
            "tool",
            "state",
            "reason",
            "sent_at",
            "unresolved_at",
            "expires_at",
            "scope",
            "gating",
        )
        assert {key: shown[key] for key in same} == {key: back[key] for key in same}
        with pytest.raises(ztrio.CallGated):
            await box.supervisor.call("count")
        assert (await box.supervisor.call("count", context=BERT)).warning is None
        await box.supervisor.call("look", reconciles=[shown["call_id"]])
        assert [("mail", "reconciled")] == states(box)
        assert (await box.supervisor.call("count")).warning is None
    async with open_store(place / "state.db") as store, shell(place / "ws", store=store) as box:
        assert [] == states(box)


@pytest.mark.req("P60")
async def test_a_server_killed_in_the_middle(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A call with effects elsewhere that was running gates its own scope, and the audit says so; once."""
    store = FaultyStore()
    await left(store, None, principal="anna", gate_scope="gs_1")
    event = ztrio.AuditEvent(event="unresolved", execution_job_id=JOB)
    await store.finish(JobEnd(job_id=JOB, outcome=Outcome.UNRESOLVED, event=event))
    for told in (1, 1):
        async with shell(tmp_path, store=store, gate="enforce") as box:
            [back] = box.supervisor.pending.calls(ANNA)
            assert ("mail", "unresolved", "external_effects") == (back["tool"], back["state"], back["reason"])
            assert (await box.supervisor.call("count", context=ANNA)).warning is None
            with pytest.raises(ztrio.CallGated):
                await box.supervisor.call("count", context=attrs.evolve(ANNA, gate_scope="gs_1"))
            events = [event["event"] for event in await box.supervisor.events(context=ANNA)]
            assert told == events.count("pending_call")
            await trio.sleep(1)


@pytest.mark.req("P60")
async def test_what_runs_elsewhere_is_noted_before_it_runs(place: Path) -> None:
    """The journal has a row of a call with effects elsewhere while it runs, none of another, and none afterwards."""
    seen: dict[str, list[str]] = {}
    started = trio.Event()

    async def script(call: Any) -> Any:
        seen[call.request.function] = [row.tool for row in (await opened.left_pending()).journal]
        started.set()
        return None

    async with open_store(place / "state.db") as opened, shell(place / "ws", script, store=opened) as box:
        await box.supervisor.call("mail")
        await box.supervisor.call("count")
        assert {"mail": ["mail"], "count": []} == seen
        with trio.fail_after(5):
            while (await opened.left_pending()).journal:
                await trio.sleep(0.01)
        assert [] == await opened.activities(principal=None, limit=9)


@pytest.mark.req("P38", "P60")
@pytest.mark.parametrize("outcome", [Outcome.COMMITTED, Outcome.ROLLED_BACK, Outcome.NOT_STARTED])
async def test_what_recovery_has_settled_is_proven(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, outcome: Outcome
) -> None:
    """A call whose job has an outcome by now does not gate, whatever its journal row thought."""
    store = FaultyStore()
    await left(store, outcome)
    async with shell(tmp_path, store=store, gate="enforce") as box:
        assert [("mail", "proven")] == states(box)
        assert (await box.supervisor.call("count")).warning is None
        await trio.sleep(1)
        assert [] == (await store.left_pending()).journal


async def left(store: Store, outcome: Outcome | None, principal: str = "local", gate_scope: str = "local") -> None:
    """A call with effects elsewhere, as a process leaves it."""
    await store.insert_job(job_row(principal=principal))
    store.append_pending_nowait(journal_row(principal=principal, gate_scope=gate_scope))
    if outcome is not None:
        event = ztrio.AuditEvent(event="recovered", execution_job_id=JOB, outcome=outcome)
        await store.recovered(JOB, outcome, event)


@pytest.mark.req("P57", "P60")
async def test_calls_whose_note_was_lost(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A call that recovery could not settle gates without a journal row too; one that somebody settled does not."""
    store = FaultyStore()
    await store.insert_job(job_row(tool="export", capability="write"))
    await store.insert_job(job_row(job_id="job_cccccccccccccccc", tool="look_apart", capability="read"))
    for job_id in (JOB, "job_cccccccccccccccc"):
        event = ztrio.AuditEvent(event="unresolved", execution_job_id=job_id)
        await store.finish(JobEnd(job_id=job_id, outcome=Outcome.UNRESOLVED, event=event))
    async with shell(tmp_path, store=store, gate="enforce") as box:
        [back] = box.supervisor.pending.calls(ztrio.LOCAL)
        assert ("export", "unresolved", "commit_unconfirmed") == (back["tool"], back["state"], back["reason"])
        with pytest.raises(ztrio.CallGated):
            await box.supervisor.call("count")
        await box.supervisor.pending.release(CALL, "looked", ztrio.LOCAL)
    async with shell(tmp_path, store=store, gate="enforce") as box:
        assert [] == states(box)
        assert (await box.supervisor.call("count")).warning is None


@pytest.mark.req("P14", "P17", "P60")
async def test_folded_calls_come_back_as_one(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A blocker keeps its count and its gate over a restart, and a folded call answers to its id with it."""
    store = FaultyStore()
    settings = PendingSettings(mode=Mode.WARN, bounds=Bounds(gating=1))
    async with shell(tmp_path, store=store, gate=settings) as box:
        ids = [pending_of(await lose(box))["call_id"] for _ in range(3)]
        before = {
            call["call_id"]: call["count"] for call in box.supervisor.pending.calls(ztrio.LOCAL) if "count" in call
        }
    assert [2] == list(before.values())
    async with shell(tmp_path, store=store, gate=attrs.evolve(settings, mode=Mode.ENFORCE)) as box:
        desk = box.supervisor.pending
        after = {call["call_id"]: call["count"] for call in desk.calls(ztrio.LOCAL) if "count" in call}
        assert before == after
        [blocker] = before
        assert [blocker, blocker, ids[2]] == [(await desk.call(call_id, ztrio.LOCAL))["call_id"] for call_id in ids]
        with pytest.raises(ztrio.CallGated):
            await box.supervisor.call("count")
        await desk.release(ids[0], "looked", ztrio.LOCAL)
        await desk.release(ids[2], "looked", ztrio.LOCAL)
        assert (await box.supervisor.call("count")).warning is None


@pytest.mark.req("P17", "P18", "P57")
async def test_what_nobody_knows_any_more_is_untracked(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A read that was unresolved when its process ended gates nothing and is shown as untracked, to its owner."""
    store = FaultyStore()
    async with shell(tmp_path, ScriptedBackend(behave, dies_after=1e9), store=store) as box:
        await lose(box, context=ANNA)
        await store.write_pending([])
        [row] = await store.activities(principal="anna", limit=9)
        read = attrs.evolve(row, call_id="pc_dddddddddddddddd", tool="look_apart", revision=1)
        await store.write_pending([PendingWrite(row=read)])
    async with shell(tmp_path, store=store) as box:
        await trio.sleep(1)
        shown = await box.supervisor.pending.call("pc_dddddddddddddddd", ANNA)
        conforms(shown)
        assert ("untracked", []) == (shown["state"], shown["resolve"])
        with pytest.raises(ztrio.UnknownCall):
            await box.supervisor.pending.call("pc_dddddddddddddddd", BERT)
        assert "untracked" == (await box.supervisor.pending.release(shown["call_id"], "old", ztrio.LOCAL))["state"]


@pytest.mark.req("P60")
async def test_nobody_starts_without_knowing(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Where it cannot be read which gates are shut, nothing is started."""
    for failure in (OSError(5, "Input/output error"), StoreUnavailable("It cannot be read.")):
        with pytest.raises(StoreUnavailable):
            async with shell(tmp_path, store=FaultyStore(fail={"left_pending": failure})):
                pass


@pytest.mark.req("P7")
async def test_sequence_numbers_go_on(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Revisions after a restart are above every earlier one, so that updates are never taken for old ones."""
    store = FaultyStore()
    async with shell(tmp_path, store=store) as box:
        first = pending_of(await lose(box))["call_id"]
    before = await store.activity(first)
    async with shell(tmp_path, store=store) as box:
        await box.supervisor.pending.release(first, "looked", ztrio.LOCAL)
        await trio.sleep(1)
        after = await store.activity(first)
        assert before is not None
        assert after is not None
        assert ("unresolved", "released") == (before.pending_state, after.pending_state)
        assert after.revision > before.revision


@pytest.mark.req("P39", "P56")
async def test_whose_a_settled_call_was(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A call that is over and forgotten can still be asked about, and is nobody else's."""
    store = FaultyStore()
    async with shell(tmp_path, store=store) as box:
        call_id = pending_of(await lose(box, context=ANNA))["call_id"]
        await box.supervisor.call("look", context=ANNA, reconciles=[call_id])
    async with shell(tmp_path, store=store) as box:
        assert (call_id, "anna", "anna") == await box.supervisor.pending.owner(call_id, ANNA)
        cancelled = await answer_of(box.supervisor.pending.cancel, call_id, ANNA)
        assert "PENDING_CALL_NOT_FOUND" == cancelled
        store.stall = {"activity"}
        assert "PENDING_CALL_NOT_FOUND" == await answer_of(box.supervisor.pending.call, call_id, ANNA)
        store.stall, store.fail = set(), {"activity": OSError("no")}
        assert "PENDING_CALL_NOT_FOUND" == await answer_of(box.supervisor.pending.call, call_id, ANNA)


async def answer_of(question: Any, *args: Any) -> str:
    """The code of a refusal."""
    with pytest.raises(ztrio.ZtrioError) as caught:
        await question(*args)
    return caught.value.code
