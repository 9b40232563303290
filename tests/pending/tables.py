"""A store in two dictionaries, and the next process that starts with it."""

from collections.abc import Iterable
from typing import Any

import attrs

from tests.pending.box import WALL, Box
from ztrio.pending import ActivityRow, JournalRow, Restored, Transition, Transport, activity_row, journal_of

HTTP: dict[str, Any] = {"transport": Transport.HTTP}


@attrs.define
class Tables:
    """A store that is told of each transition, as the shell would, without a crash."""

    activity: dict[str, ActivityRow] = attrs.field(factory=dict)
    journal: dict[str, JournalRow] = attrs.field(factory=dict)

    def write(self, transitions: Iterable[Transition]) -> None:
        """One transition after the other: its row, and its part of the journal."""
        for each in transitions:
            if each.recorded and not each.call.call_id.startswith("pcb_"):
                self.activity[each.call.call_id] = activity_row(each, wall=WALL)
            for name in each.journal_drop:
                self.journal.pop(name, None)
            row = journal_of(each, wall=WALL)
            if row is not None:
                self.journal[row.call_id] = row


def journalled(box: Box, **facts: object) -> Tables:
    """What there is after the box's life so far."""
    tables = Tables()
    tables.write(box.seen)
    return tables


def again(tables: Tables, **changes: object) -> tuple[Box, Restored]:
    """The next process, a minute later by its own clock, which starts at zero."""
    box = Box.of(**changes)
    box.now, box.seq, box.minted = 60.0, 10_000, 10_000
    restored = box.registry.restore(
        sorted(tables.journal.values(), key=lambda row: row.seq),
        tables.activity,
        now=60.0,
        wall=WALL + 1000,
        seq=10_000,
    )
    box.note(restored.transitions)
    return box, restored
