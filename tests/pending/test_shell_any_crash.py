"""Whatever happens to calls and store, and whenever the process dies: no gate is lost, and the tables become true."""

from typing import Any

import attrs
import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.pending.box import call_id
from tests.pending.test_shell_tracker import SETTINGS, Under, under
from ztrio.activity import FINAL, ActivityRow
from ztrio.pending import ActorKind, Bounds, LateOutcome, Mode, Reason, Transport
from ztrio.testing import FaultyStore
from ztrio.tracking.restoring import take_up
from ztrio.tracking.writing import RESYNC

CALLS = st.integers(1, 12)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("lose"), CALLS),
        st.tuples(st.just("complete"), CALLS),
        st.tuples(st.just("late"), CALLS),
        st.tuples(st.just("release"), CALLS),
        st.tuples(st.just("wait"), st.sampled_from([0, 1, 31])),
        st.tuples(st.just("store"), st.sampled_from(["fails", "stalls", "works"])),
    ),
    max_size=25,
)
SMALL = attrs.evolve(SETTINGS, mode=Mode.WARN, bounds=Bounds(gating=2, blockers=3))


async def play(box: Under, steps: list[tuple[str, Any]]) -> None:
    """Let everything happen."""
    registry, tracker = box.tracker.registry, box.tracker
    begun: set[int] = set()
    for what, detail in steps:
        if what == "wait":
            await trio.sleep(detail)
        elif what == "store":
            names = ("write_pending", "resync_pending")
            box.store.fail = dict.fromkeys(names, OSError("no")) if detail == "fails" else {}
            box.store.stall = set(names) if detail == "stalls" else set()
        elif what in ("lose", "complete"):
            if detail in begun:
                continue
            begun.add(detail)
            call = box.begin(detail, transport=Transport.HTTP, gate_scope=f"s{detail % 4}")
            if what == "lose":
                observable = bool(detail % 3)
                tracker.did(
                    registry.mark_unresolved(
                        call, reason=Reason.DEADLINE_EXCEEDED, observable=observable, **tracker.moment()
                    )
                )
            else:
                tracker.did(registry.complete(call.call_id, succeeded=True, **tracker.moment()))
        elif registry.get(call_id(detail)) is not None:
            if what == "late":
                tracker.did(registry.resolve_late(call_id(detail), outcome=LateOutcome.SUCCESS, **tracker.moment()))
            else:
                tracker.did(registry.release(call_id(detail), actor=ActorKind.OPERATOR, **tracker.moment()))
        await trio.testing.wait_all_tasks_blocked()


async def rows(store: FaultyStore) -> dict[str, ActivityRow]:
    """The activity table."""
    return {row.call_id: row for row in await store.activities(principal=None, limit=1000)}


async def live(steps: list[tuple[str, Any]], after: list[tuple[str, Any]]) -> None:
    """Live, die without a word, and live again."""
    async with under(settings=SMALL) as box:
        await play(box, steps)
        scopes = [f"s{number}" for number in range(4)]
        gated = [scope for scope in scopes if box.tracker.registry.gates("files", "ann", scope)]
    store = box.store
    store.fail, store.stall = {}, set()
    before = await rows(store)
    async with under(store, SMALL, write=False) as again, trio.open_nursery() as nursery:
        await take_up(again.tracker, store, "local:calls")
        nursery.start_soon(again.tracker.records.run)
        registry = again.tracker.registry
        assert gated == [scope for scope in gated if registry.gates("files", "ann", scope)]
        await trio.sleep(RESYNC + 1)
        await play(again, [(what, detail + 20 if what in ("lose", "complete") else detail) for what, detail in after])
        store.fail, store.stall = {}, set()
        await trio.sleep(RESYNC + 12)
        now = await rows(store)
        for name, row in before.items():
            assert row.pending_state not in FINAL or row.pending_state == now[name].pending_state
            assert now[name].revision >= row.revision
        for row in now.values():
            record = registry.get(row.call_id)
            if record is not None:
                assert (str(record.state), record.revision) == (row.pending_state, row.revision)
                assert record.acknowledged == record.revision
            else:
                folded = row.blocker is not None and registry.get(row.blocker) is not None
                assert folded or row.pending_state in (*FINAL, "untracked")
        gating = sorted(record.call.call_id for record in registry.entries() if record.gating)
        assert gating == sorted(entry.call_id for entry in (await store.left_pending()).journal)
        nursery.cancel_scope.cancel()


@pytest.mark.req("P17", "P18", "P57", "P60", "I3", "I6", "I7")
@given(steps=STEPS, after=STEPS)
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
def test_any_crash(steps: list[tuple[str, Any]], after: list[tuple[str, Any]]) -> None:
    """What gated gates again; within one comparison each row says what is true; nothing final ever changes."""
    trio.run(live, steps, after, clock=trio.testing.MockClock(autojump_threshold=0))
