"""Any history: the durable store does what the memory store does, whatever fails and however often it is reopened."""

import contextlib
import shutil
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.store.faults import Faults
from tests.store.rows import Clock, event, job_row, write
from ztrio.errors import IdempotencyConflict, Outcome, StoreUnavailable
from ztrio.memory_store import MemoryStore
from ztrio.store import KEY_LIFETIME, AlreadyEnded, Claim, JobEnd, Store, StoreConflict
from ztrio_sql import SqlStore, open_store

NUMBERS = st.integers(1, 4)
OUTCOMES = st.sampled_from(
    [Outcome.COMMITTED, Outcome.ROLLED_BACK, Outcome.NOT_STARTED, Outcome.COMPLETED, Outcome.UNRESOLVED]
)
STEPS = st.one_of(
    st.tuples(st.just("insert"), NUMBERS, st.booleans()),
    st.tuples(st.just("claim"), NUMBERS, st.sampled_from(["k1", "k2"]), st.sampled_from(["d1", "d2"])),
    st.tuples(st.just("advance"), NUMBERS, st.booleans()),
    st.tuples(st.just("intent"), NUMBERS),
    # A session's name, whether to destroy it, and by how much the version is off.
    st.tuples(
        st.just("finish"),
        NUMBERS,
        OUTCOMES,
        st.none() | st.tuples(st.sampled_from("ab"), st.booleans(), st.sampled_from([0, 0, 0, 1])),
    ),
    st.tuples(st.just("finish_nowait"), NUMBERS, st.sampled_from([Outcome.ROLLED_BACK, Outcome.UNRESOLVED])),
    st.tuples(st.just("finish_again"), NUMBERS),
    st.tuples(st.just("abort"), NUMBERS),
    st.tuples(st.just("recovered"), NUMBERS, OUTCOMES.filter(lambda outcome: outcome is not Outcome.UNRESOLVED)),
    st.tuples(st.just("need_recovery"), NUMBERS, st.booleans()),
    st.tuples(st.just("record"), NUMBERS),
    st.tuples(st.just("time"), st.sampled_from([1.0, KEY_LIFETIME - 1.0, KEY_LIFETIME])),
    st.tuples(st.just("fail"), st.sampled_from(["before", "after"])),
    st.tuples(st.just("reopen")),
)


@attrs.define
class Histories:
    """The same history of a durable store and of the model."""

    path: Path
    clock: Clock = attrs.field(factory=Clock)
    faults: Faults = attrs.field(factory=Faults)
    serial: int = 0
    # The last end that each call was given.
    ends: dict[int, JobEnd] = attrs.field(factory=dict)
    model: MemoryStore = attrs.field(init=False)
    store: SqlStore = attrs.field(init=False)

    async def play(self, steps: list[tuple[Any, ...]]) -> None:
        """Play the steps to both, and compare after each."""
        self.model = MemoryStore(now=self.clock)
        lives = AsyncExitStack()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(lambda: lives.aclose())  # noqa: PLW0108 - whichever it is then
            self.store = await lives.enter_async_context(self._open())
            for step in steps:
                if step[0] == "reopen":
                    await lives.aclose()
                    lives = AsyncExitStack()
                    self.store = await lives.enter_async_context(self._open())
                else:
                    await self._step(*step)
                await self._compare()
            self.faults.commit = []
            assert (await self.store.verify()).bad is None

    def _open(self) -> Any:
        return open_store(self.path, now=self.clock, connection_factory=self.faults.factory)

    async def _step(self, kind: str, *facts: Any) -> None:
        self.serial += 1
        if kind == "time":
            self.clock.time += facts[0]
        elif kind == "fail":
            self.faults.commit = [facts[0]]
        elif kind == "record":
            self.model.record(event("allow", self.serial))
            with contextlib.suppress(StoreUnavailable):  # it is kept, shortly after a failure
                self.store.record(event("allow", self.serial))
        else:
            fault, self.faults.commit = self.faults.commit, []
            expected = "fails"
            waits = not (kind in ("insert", "advance") and facts[1]) and kind != "finish_nowait"
            if waits:
                await self._flush()
            self.faults.commit = list(fault)
            got = await self._attempt(self.store, kind, *facts)
            if fault == ["before"] and not self.faults.commit and waits:
                assert got in (expected, StoreConflict, AlreadyEnded, IdempotencyConflict) or kind == "abort"
                if got == expected:
                    return  # it has not happened, so the model does not hear of it
            assert got == await self._attempt(self.model, kind, *facts)

    async def _attempt(self, store: Store, kind: str, *facts: Any) -> Any:
        try:
            result = await getattr(self, f"_{kind}")(store, *facts)
        except StoreUnavailable:
            return "fails"
        except (StoreConflict, IdempotencyConflict) as error:
            return type(error)
        return result

    async def _flush(self) -> None:
        await self.store.session("nobody", "none")

    # ---- steps

    async def _insert(self, store: Store, number: int, nowait: bool) -> None:
        if nowait:
            if await store.job(f"job_{number}") is None:  # else nobody hears of the refusal
                store.insert_job_nowait(job_row(number))
        else:
            await store.insert_job(job_row(number))

    async def _claim(self, store: Store, number: int, key: str, digest: str) -> Claim:
        return await store.claim(job_row(number, idempotency_key=key, idempotency_digest=digest))

    async def _advance(self, store: Store, number: int, nowait: bool) -> None:
        facts: dict[str, Any] = {"worker_pid": self.serial, "session_version": number}
        if not nowait:
            await store.advance(f"job_{number}", "worker_running", **facts)
        elif f"job_{number}" in [row.job_id for row in await store.unfinished()]:
            store.advance_nowait(f"job_{number}", "worker_running", **facts)

    async def _intent(self, store: Store, number: int) -> None:
        await trio.to_thread.run_sync(store.write_intent, f"job_{number}", b"journal %d" % self.serial)

    async def _finish(self, store: Store, number: int, outcome: Outcome, session: Any) -> None:
        row = await store.job(f"job_{number}")
        if row is not None and row.phase == "ended" and row.outcome is not Outcome.UNRESOLVED:
            session = None
        change = None
        if session is not None:
            name, destroy, off = session
            found = await store.session("ann", name)
            version, life = (0, None) if found is None else (found.version, found.incarnation)
            state = None if destroy else {"n": self.serial}
            change = write(state, name=name, version=version + off, incarnation=life)
        result = b"answer %d" % self.serial
        terminal = event("end", self.serial, outcome=outcome)
        terminal = terminal.evolved(execution_job_id=f"job_{number}")
        end = JobEnd(job_id=f"job_{number}", outcome=outcome, event=terminal, session=change, result=result)
        self.ends[number] = end
        await store.finish(end)

    async def _finish_nowait(self, store: Store, number: int, outcome: Outcome) -> None:
        if f"job_{number}" not in [row.job_id for row in await store.unfinished()]:
            return
        terminal = event("end", self.serial, outcome=outcome).evolved(execution_job_id=f"job_{number}")
        end = JobEnd(job_id=f"job_{number}", outcome=outcome, event=terminal)
        self.ends[number] = end
        store.finish_nowait(end)

    async def _finish_again(self, store: Store, number: int) -> None:
        if number in self.ends:
            await store.finish(self.ends[number])

    async def _abort(self, store: Store, number: int) -> None:
        await store.abort(f"job_{number}")

    async def _recovered(self, store: Store, number: int, outcome: Outcome) -> bool:
        terminal = event("recovered", self.serial).evolved(execution_job_id=f"job_{number}")
        return await store.recovered(f"job_{number}", outcome, terminal)

    async def _need_recovery(self, store: Store, number: int, told: bool) -> bool:
        terminal = event("unresolved", self.serial).evolved(execution_job_id=f"job_{number}")
        return await store.need_recovery(f"job_{number}", f"because {self.serial}", terminal if told else None)

    # ---- what there is

    async def _compare(self) -> None:
        fault, self.faults.commit = self.faults.commit, []
        assert await _seen(self.model) == await _seen(self.store)
        self.faults.commit = fault


async def _seen(store: Store) -> Any:
    sessions = [attrs.evolve(row, incarnation="") for row in await store.sessions("ann")]
    for name in "ab":  # what the store remembers is what it has
        assert await store.session("ann", name) == await trio.to_thread.run_sync(store.read_session, "ann", name)
    return (
        [await store.job(f"job_{number}") for number in range(1, 5)],
        await store.unfinished(),
        [await store.job_by_key("ann", "export", key) for key in ("k1", "k2")],
        sessions,
        [found for _, found in await store.events(principal=None, after=0, limit=1000)],
    )


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with nothing in it."""
    path = tmp_path_factory.mktemp("template") / "state.db"

    async def make() -> None:
        async with open_store(path):
            pass

    trio.run(make)
    return path


@given(steps=st.lists(STEPS, max_size=25))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_history(template: Path, tmp_path: Path, steps: list[tuple[Any, ...]]) -> None:
    """Every question has the same answer after every step, every refusal is the same, and the chain holds."""
    path = tmp_path / "state.db"
    for name in tmp_path.iterdir():
        name.unlink()
    shutil.copy(template, path)
    trio.run(Histories(path).play, steps)
