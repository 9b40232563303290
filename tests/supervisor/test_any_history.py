"""Any mix of calls, cancellations, timeouts, failing stores and dying workers: the promises that always hold."""

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import attrs
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ztrio
from tests.supervisor.support import job_directories, nothing_left, opened, play, state
from ztrio import AuditEvent, Outcome
from ztrio.plain import decode
from ztrio.testing import FaultyStore, ScriptedBackend, ScriptedCall

ENDS = {"commit", "rollback", "completed", "deny", "queue_timeout", "unresolved"}


@attrs.frozen
class Move:
    """One caller: when it comes, what it calls, how the tool behaves, and when the caller leaves."""

    at: int
    tool: str
    session: str
    target: str
    runs: int
    behaviour: str
    leaves: int


moves = st.builds(
    Move,
    at=st.integers(0, 6),
    tool=st.sampled_from(["count", "export", "count", "look", "look_apart", "session_destroy", "mail"]),
    session=st.sampled_from(["s", "t"]),
    target=st.sampled_from(["a", "b"]),
    runs=st.integers(0, 7),
    behaviour=st.sampled_from(["ends", "ends", "ends", "raises", "dies"]),
    leaves=st.sampled_from([1, 2, 3, 5, 99, 99, 99]),
)


@attrs.define
class History:
    """What happened."""

    events: list[AuditEvent] = attrs.field(factory=list)
    outcomes: dict[str, Outcome] = attrs.field(factory=dict)
    # Increments that the caller knows to be committed, by session, since it was last destroyed.
    counted: Counter[str] = attrs.field(factory=Counter)

    def see(self, event: AuditEvent) -> None:
        """Follow the committed state of sessions, in the order of commits."""
        self.events.append(event)
        if event.event == "commit" and event.session is not None:
            if event.tool == "count":
                self.counted[event.session] += 1
            elif event.tool == "session_destroy":
                self.counted[event.session] = 0

    def of_job(self, job_id: str) -> list[str]:
        """The events of one call."""
        return [event.event for event in self.events if event.execution_job_id == job_id]


async def live(workspace: Path, played: list[Move], failing: dict[str, int], workers: int) -> None:
    """Let everything happen, then look."""
    history, behaviour = History(), {move.session + str(index): move for index, move in enumerate(played)}

    async def script(call: ScriptedCall) -> Any:
        move = behaviour[str(decode(call.request.request_id))]
        await trio.sleep(move.runs)
        value = await play(call)
        if move.behaviour == "raises":
            raise LookupError("no")
        if move.behaviour == "dies":
            raise ztrio.WorkerFailed("It died.", code="WORKER_DIED")
        return value

    calls: Counter[str] = Counter()
    faults = dict(failing)

    def before(operation: str) -> None:
        calls[operation] += 1
        store.fail = {name: OSError("gone") for name, nth in faults.items() if calls[name] == nth and name == operation}

    store = FaultyStore(before=before)
    limits = ztrio.Settings(workers=workers)
    async with opened(workspace, ScriptedBackend(script, dies_after=0.25), store=store, settings=limits) as (
        supervisor,
        _,
    ):
        supervisor.audit.add_reducer(history.see)

        async def caller(name: str, move: Move) -> None:
            await trio.sleep(move.at)
            context = attrs.evolve(ztrio.LOCAL, request_id=name)
            arguments = {"out": move.target} if move.tool == "export" else {}
            with trio.move_on_after(move.leaves):
                try:
                    result = await supervisor.call(
                        move.tool, arguments, session=move.session, context=context, timeout=5, queue_timeout=4
                    )
                except ztrio.ZtrioError as error:
                    assert error.job_id is not None
                    assert error.outcome is not None
                    history.outcomes[error.job_id] = error.outcome
                else:
                    history.outcomes[result.job_id] = result.outcome

        async with trio.open_nursery() as nursery:
            for name, move in behaviour.items():
                nursery.start_soon(caller, name, move)
        await trio.sleep(60)  # whatever could not be stored is stored by now
        faults.clear()

        await nothing_left(supervisor, workspace)
        assert [] == job_directories(workspace)
        by_job = Counter(event.execution_job_id for event in history.events if event.pending is None)
        for job_id in by_job:
            names = history.of_job(job_id)
            end = [name for name in names if name in ENDS]
            if "start" not in names:
                end += [name for name in names if name in ("cancel", "error")]
            assert 1 == len(end), names
            assert names[-1] in (*end, "commit_unanswered")
        for job_id, outcome in history.outcomes.items():
            (last,) = [event for event in history.events if event.execution_job_id == job_id][-1:]
            assert outcome == last.outcome
            if "allow" in history.of_job(job_id):
                assert await supervisor.outcome(job_id) in (outcome, None)
        for session in ("s", "t"):
            row = await state(supervisor, session)
            kept = 0 if row is None else decode(row[1]).get("count", 0)
            assert history.counted[session] == kept
        logged = [(event["execution_job_id"], event["event"]) for event in await supervisor.events()]
        assert sorted(logged) == sorted((event.execution_job_id, event.event) for event in history.events)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(
    played=st.lists(moves, min_size=1, max_size=8),
    failing=st.dictionaries(
        st.sampled_from(
            [
                "insert_job",
                "session",
                "advance:preparing",
                "advance:publishing_outputs",
                "finish:commit",
                "finish:rollback",
            ]
        ),
        st.integers(1, 3),
        max_size=2,
    ),
    workers=st.sampled_from([1, 2, 64]),
)
def test_any_history(played: list[Move], failing: dict[str, int], workers: int) -> None:
    """Nothing is left, each call ends once with the outcome its caller was told, and no update is lost."""
    with tempfile.TemporaryDirectory() as place:
        trio.run(live, Path(place), played, failing, workers, clock=trio.testing.MockClock(autojump_threshold=0))
