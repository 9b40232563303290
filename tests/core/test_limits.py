"""The ticket table against a model that is too simple to be wrong."""

from typing import Any

import attrs
import pytest
import trio
import trio.testing
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from ztrio.limits import Key, KeyedLimiter, Ticket

names = st.sampled_from(["a", "b"])
keys = st.lists(names, min_size=1, max_size=3).map(tuple)


def conflict(left: frozenset[Key], right: frozenset[Key]) -> bool:
    """Whether some key of one is the beginning of some key of the other."""
    return any(a[: len(b)] == b or b[: len(a)] == a for a in left for b in right)


@attrs.define(eq=False)
class Entry:
    """What the model knows of a ticket: its keys. Whether it is granted follows from those before it."""

    number: int
    keys: frozenset[Key]
    ticket: Ticket


class TicketTable(RuleBasedStateMachine):
    """Enter and leave in any order; after each step the table and the model say the same."""

    tickets = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.table = KeyedLimiter()
        # Tickets in the table in the order of entering.
        self.line: list[Entry] = []
        # Tickets ever granted, which must stay granted.
        self.granted: set[int] = set()
        self.count = 0

    def should_be_granted(self) -> list[Entry]:
        """Those that conflict with no earlier ticket that is still there."""
        return [
            entry
            for index, entry in enumerate(self.line)
            if not any(conflict(entry.keys, earlier.keys) for earlier in self.line[:index])
        ]

    @rule(target=tickets, keys=st.lists(keys, max_size=3))
    def enter(self, keys: list[Key]) -> Entry:
        """A call comes."""
        self.count += 1
        entry = Entry(self.count, frozenset(keys), self.table.enter(self.count, keys))
        self.line.append(entry)
        return entry

    @rule(entry=consumes(tickets))
    def leave(self, entry: Entry) -> None:
        """A call goes, whether it ran or still waited; saying so twice changes nothing."""
        entry.ticket.leave()
        entry.ticket.leave()
        self.line.remove(entry)

    @invariant()
    def grants_are_those_of_the_model(self) -> None:
        """A ticket holds its keys exactly when nothing earlier conflicts: FIFO, exclusive, and nobody waits in vain."""
        expected = self.should_be_granted()
        assert [entry.number for entry in expected] == [entry.number for entry in self.line if entry.ticket.granted]
        running = [entry.number for entry in expected]
        assert self.granted & {entry.number for entry in self.line} <= set(running)
        self.granted |= set(running)

    @invariant()
    def no_two_conflicting_tickets_are_granted(self) -> None:
        """Said once more without the model."""
        granted = [entry.keys for entry in self.line if entry.ticket.granted]
        assert not any(conflict(a, b) for index, a in enumerate(granted) for b in granted[:index])

    @invariant()
    def statistics_are_those_of_the_model(self) -> None:
        """Counts, held keys and their borrowers; keys that nobody holds are gone."""
        statistics = self.table.statistics()
        granted = self.should_be_granted()
        assert (len(granted), len(self.line) - len(granted)) == (statistics.granted, statistics.waiting)
        held = {key: entry.ticket for entry in granted for key in entry.keys}
        assert held == {key: limiter.borrowers[0] for key, limiter in statistics.keys.items()}
        assert all((1, 1, 0) == (s.borrowed_tokens, s.total_tokens, s.tasks_waiting) for s in statistics.keys.values())

    @invariant()
    def nothing_grows(self) -> None:
        """An empty table remembers nothing."""
        if not self.line:
            assert ({}, {}, {}) == (self.table._at, self.table._below, self.table._limiters)


TicketTable.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


TestTicketTable = TicketTable.TestCase


async def test_calls_of_one_key_run_in_order() -> None:
    """Waiting tasks are served in the order of entering, not in that of waiting."""
    table = KeyedLimiter()
    order: list[int] = []
    tickets = [table.enter(number, [("s", "1")]) for number in range(5)]

    async def call(number: int) -> None:
        await tickets[number].wait()
        order.append(number)
        await trio.testing.wait_all_tasks_blocked()
        tickets[number].leave()

    async with trio.open_nursery() as nursery:
        for number in reversed(range(5)):
            nursery.start_soon(call, number)
    assert [0, 1, 2, 3, 4] == order


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [
        (["a"], ["a"], True),
        (["a"], ["b"], False),
        (["a"], ["a/b"], True),
        (["a/b"], ["a"], True),
        (["a/b"], ["a/c"], False),
        (["a"], ["ab"], False),
        (["a/b/c"], ["a"], True),
        (["x", "a"], ["y", "a/b"], True),
        ([], ["a"], False),
    ],
)
async def test_equal_and_nested_keys_conflict(first: list[str], second: list[str], waits: bool) -> None:
    """Equal keys, and a directory with what is below it, exclude each other; siblings and like names do not."""
    table = KeyedLimiter()
    earlier = table.enter("first", [tuple(key.split("/")) for key in first])
    later = table.enter("second", [tuple(key.split("/")) for key in second])
    assert (True, not waits) == (earlier.granted, later.granted)
    earlier.leave()
    assert later.granted


async def test_nested_keys_of_one_call_do_not_block_it() -> None:
    """A call never waits for itself."""
    table = KeyedLimiter()
    ticket = table.enter("one", [("a",), ("a", "b"), ("a",)])
    assert ticket.granted
    assert {("a",), ("a", "b")} == set(table.statistics().keys)


async def test_a_cancelled_wait_keeps_its_place_until_it_leaves() -> None:
    """Cancelling the wait gives nothing up; leaving does, and who waited behind only for it goes on."""
    table = KeyedLimiter()
    running = table.enter(1, [("a",)])
    waiting = table.enter(2, [("a",), ("b",)])
    behind = table.enter(3, [("b",)])
    with trio.move_on_after(0) as scope:
        await waiting.wait()
    assert scope.cancelled_caught
    assert (False, False) == (waiting.granted, behind.granted)
    waiting.leave()
    assert behind.granted
    running.leave()
    assert not waiting.granted
    behind.leave()
    assert 0 == table.statistics().waiting


async def test_another_task_may_leave() -> None:
    """Keys belong to the ticket, not to the task that entered."""
    table = KeyedLimiter()
    ticket = table.enter("job", [("a",)])
    other = table.enter("next", [("a",)])

    async def leave() -> None:
        await trio.lowlevel.checkpoint()
        ticket.leave()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(leave)
        await other.wait()
    assert other.granted


async def test_entering_has_no_checkpoint_and_waiting_has_one() -> None:
    """A place is taken in one step; a wait is a checkpoint even when the keys are there."""
    table = KeyedLimiter()
    with trio.testing.assert_no_checkpoints():
        ticket: Any = table.enter("job", [("a",)])
    with trio.testing.assert_checkpoints():
        await ticket.wait()
    with trio.testing.assert_no_checkpoints():
        ticket.leave()
