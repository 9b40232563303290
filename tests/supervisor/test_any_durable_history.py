"""Any mix of calls, cancellations, timeouts and dying workers on a disk that fails: what always holds on it too."""

import tempfile
from pathlib import Path
from typing import Any, Final, Literal

import attrs
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ztrio
from tests.store.faults import Faults, until
from tests.supervisor.support import SETTINGS, job_directories, play, state
from tests.supervisor.test_any_history import ENDS, History, Move, moves
from tests.supervisor.tools_for_calls import toolbox
from ztrio import Outcome
from ztrio.plain import decode
from ztrio.testing import ScriptedBackend, ScriptedCall
from ztrio_sql import open_store

UNIT: Final = 0.02  # seconds that stand for one of the histories'


class Doubtful(History):
    """What happened, where a commit may be told late."""

    def see(self, event: ztrio.AuditEvent) -> None:
        """Take for a commit what is settled as one."""
        late = event.event == "settled" and event.outcome is Outcome.COMMITTED
        super().see(event.evolved(event="commit") if late else event)
        self.events[-1] = event


async def live(place: Path, played: list[Move], commits: list[Literal["before", "after", "works"]]) -> None:
    """Let everything happen, look, and look again after a restart."""
    workspace = place / "workspace"
    workspace.mkdir()
    history, behaviour, faults = (
        Doubtful(),
        {move.session + str(index): move for index, move in enumerate(played)},
        Faults(),
    )

    async def script(call: ScriptedCall) -> Any:
        move = behaviour[str(decode(call.request.request_id))]
        await trio.sleep(move.runs * UNIT)
        value = await play(call)
        if move.behaviour == "raises":
            raise LookupError("no")
        if move.behaviour == "dies":
            raise ztrio.WorkerFailed("It died.", code="WORKER_DIED")
        return value

    def supervised(store: Any) -> Any:
        backend = ScriptedBackend(script).open
        return ztrio.open_supervisor(
            toolbox, workspace=workspace, store=store, backend=backend, sandbox="off", settings=SETTINGS
        )

    async with (
        open_store(place / "state.db", connection_factory=faults.factory) as store,
        supervised(store) as supervisor,
    ):
        supervisor.audit.add_reducer(history.see)
        faults.commit = list(commits)

        async def caller(name: str, move: Move) -> None:
            await trio.sleep(move.at * UNIT)
            context = attrs.evolve(ztrio.LOCAL, request_id=name)
            arguments = {"out": move.target} if move.tool == "export" else {}
            with trio.move_on_after(move.leaves * UNIT):
                try:
                    await supervisor.call(
                        move.tool, arguments, session=move.session, context=context, timeout=0.1, queue_timeout=0.08
                    )
                except ztrio.ZtrioError:
                    pass

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for name, move in behaviour.items():
                    nursery.start_soon(caller, name, move)
        faults.commit = []
        await until(lambda: supervisor.audit.unavailable is None and supervisor.statistics().calls == 0)
        await until(lambda: store.statistics().waiting == 0 and not job_directories(workspace))
        assert (0, {}) == (supervisor.statistics().slots_in_use, supervisor.statistics().tickets.keys)
        outcomes = {}
        for job_id in {event.execution_job_id for event in history.events if event.pending is None}:
            names = history.of_job(job_id)
            end = [name for name in names if name in ENDS]
            if "start" not in names:
                end += [name for name in names if name in ("cancel", "error")]
            assert 1 == len(end), names
            assert names[-1] in (*end, "settled", "commit_unanswered")
            last = [event for event in history.events if event.execution_job_id == job_id and event.outcome is not None]
            outcomes[job_id] = last[-1].outcome
            if "allow" in names:
                assert outcomes[job_id] == await supervisor.outcome(job_id)
        await same(supervisor, history)
        assert (await store.verify()).bad is None
    async with open_store(place / "state.db") as store, supervised(store) as supervisor:
        for job_id, outcome in outcomes.items():
            if "allow" in history.of_job(job_id):
                assert outcome == await supervisor.outcome(job_id)
        await same(supervisor, history)


async def same(supervisor: ztrio.Supervisor, history: History) -> None:
    """Assert that the store has what was committed, and each call's events as everybody saw them."""
    for session in ("s", "t"):
        row = await state(supervisor, session)
        assert history.counted[session] == (0 if row is None else decode(row[1]).get("count", 0))
    logged = [event["seq"] for event in await supervisor.events()]
    assert sorted(logged) == sorted(event.seq for event in history.events)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(
    played=st.lists(moves, min_size=2, max_size=8),
    commits=st.lists(st.sampled_from(["works", "works", "works", "works", "before", "after"]), max_size=40),
)
def test_any_durable_history(played: list[Move], commits: list[Literal["before", "after", "works"]]) -> None:
    """Nothing is left, each call ends once, no update is lost, and a restart knows all of it."""
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr("ztrio_sql.writer._RETRY", 0.02)
        patch.setattr("ztrio.ending._RETRY", 0.02)
        trio.run(live, Path(place), played, commits)
