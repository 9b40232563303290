"""What may become of a call, as one table: what each event does in each state.

Why a table and not methods that each know a few states: a race is a pair that nobody thought of. Here all pairs are
written down, each is a move, an explicit nothing, or a rejection with its reason, and a missing one cannot hide: the
table is compared with every state and every event. The diagram in the documentation is drawn from it.

Rejections are for what a caller chose wrongly (cancelling a call that is not unresolved). Whatever a race can bring
about, such as an answer after the end, is never an error: it changes nothing, and the caller is told the state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import attrs

__all__ = ["HOLDABLE", "TABLE", "UNTRACKED", "Effect", "Event", "Rejected", "Rule", "State", "diagram", "rule", "table"]

UNTRACKED: Final = "untracked"
"""The state, in the activity record only, of a call that nobody knows any more."""


class State(StrEnum):
    """What is known of a call."""

    RESERVED = "reserved"
    SENT = "sent"
    UNRESOLVED = "unresolved"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    NOT_SENT = "not_sent"
    COMPLETED_LATE = "completed_late"
    CANCELLED = "cancelled"
    CONNECTION_RESET = "connection_reset"
    PROVEN = "proven"
    RECONCILED = "reconciled"
    RELEASED = "released"
    EXPIRED = "expired"

    @property
    def terminal(self) -> bool:
        """Whether the state never changes any more."""
        return self not in _OPEN


_OPEN: Final = frozenset({State.RESERVED, State.SENT, State.UNRESOLVED, State.CANCELLING})

HOLDABLE: Final = frozenset({State.CONNECTION_RESET, State.EXPIRED})
"""Final states in which a record may still be gating: nothing more will be heard, and nobody has looked yet."""


class Event(StrEnum):
    """What can happen to a call."""

    CLAIM = "claim"
    NOT_SENT = "not_sent"
    REFUSED = "refused"
    RESPONSE = "response"
    LATE_RESPONSE = "late_response"
    WAIT_ENDED = "wait_ended"
    CLAIM_CANCEL = "claim_cancel"
    CANCEL_TOLD = "cancel_told"
    CANCEL_FAILED = "cancel_failed"
    EPOCH_ENDED = "epoch_ended"
    PROOF = "proof"
    RECONCILE = "reconcile"
    RELEASE = "release"
    EXPIRE = "expire"


class Effect(StrEnum):
    """What an event does to a call in a certain state.

    `MOVE` to another state. `NOTHING`: the state stands, and is the answer. `REJECT`: whoever asked chose wrongly.
    `ANNOTATE` a late outcome. On a record that is held, else nothing: `SETTLE` clears the gate and notes by whom,
    `TAKE` gives one canceller the right to send, `GIVE_BACK` takes it back because nothing was told.
    """

    MOVE = "move"
    NOTHING = "nothing"
    REJECT = "reject"
    ANNOTATE = "annotate"
    SETTLE = "settle"
    TAKE = "take"
    GIVE_BACK = "give_back"


@attrs.frozen
class Rule:
    """What happens for one pair.

    Args:
        effect: The kind of thing that happens.
        to: The next state of a move.
        why: The reason of a rejection, a stable word.
    """

    effect: Effect
    to: State | None = None
    why: str | None = None


class Rejected(Exception):
    """An event that makes no sense for a call in its state; nothing was changed.

    Args:
        why: A stable word: `not_unresolved`, `already_sent`, `id_unknown`, …
        state: The state of the call, None when there is no such call.
    """

    def __init__(self, why: str, state: State | None) -> None:
        super().__init__(f"{why}: the call is {'unknown' if state is None else state}")
        self.why = why
        self.state = state


def _move(to: State) -> Rule:
    return Rule(Effect.MOVE, to=to)


def _reject(why: str) -> Rule:
    return Rule(Effect.REJECT, why=why)


_NOTHING: Final = Rule(Effect.NOTHING)
_ANNOTATE: Final = Rule(Effect.ANNOTATE)
_SETTLE: Final = Rule(Effect.SETTLE)

_NOT_SENT_YET: Final = _reject("not_sent_yet")
_NOT_UNRESOLVED: Final = _reject("not_unresolved")
_NOT_CLAIMED: Final = _reject("cancel_not_claimed")
_SENT_ALREADY: Final = _reject("sent_already")
_WAIT_IS_OVER: Final = _reject("wait_is_over")
_BEING_CANCELLED: Final = _reject("being_cancelled")

_RESERVED: Final = {
    Event.CLAIM: _move(State.SENT),
    Event.NOT_SENT: _move(State.NOT_SENT),
    Event.REFUSED: _NOT_SENT_YET,
    Event.RESPONSE: _NOT_SENT_YET,
    Event.LATE_RESPONSE: _NOT_SENT_YET,
    Event.WAIT_ENDED: _move(State.NOT_SENT),  # whose caller leaves before the claim has sent nothing
    Event.CLAIM_CANCEL: _NOT_UNRESOLVED,
    Event.CANCEL_TOLD: _NOT_CLAIMED,
    Event.CANCEL_FAILED: _NOT_CLAIMED,
    Event.EPOCH_ENDED: _move(State.NOT_SENT),
    Event.PROOF: _NOT_UNRESOLVED,
    Event.RECONCILE: _NOT_UNRESOLVED,
    Event.RELEASE: _NOT_UNRESOLVED,
    Event.EXPIRE: _NOTHING,
}
_SENT: Final = {
    Event.CLAIM: _SENT_ALREADY,
    Event.NOT_SENT: _SENT_ALREADY,
    Event.REFUSED: _move(State.NOT_SENT),  # the answer proves that the request was not processed
    Event.RESPONSE: _move(State.COMPLETED),
    Event.LATE_RESPONSE: _move(State.COMPLETED_LATE),  # the wait has ended, its entry is not made yet
    Event.WAIT_ENDED: _move(State.UNRESOLVED),
    Event.CLAIM_CANCEL: _NOT_UNRESOLVED,  # a client's own cancel ends its wait first
    Event.CANCEL_TOLD: _NOT_CLAIMED,
    Event.CANCEL_FAILED: _NOT_CLAIMED,
    Event.EPOCH_ENDED: _move(State.CONNECTION_RESET),
    Event.PROOF: _NOT_UNRESOLVED,
    Event.RECONCILE: _NOT_UNRESOLVED,
    Event.RELEASE: _NOT_UNRESOLVED,
    Event.EXPIRE: _NOTHING,  # its wait ends first, by the ceiling of its timeout
}
_UNRESOLVED: Final = {
    Event.CLAIM: _SENT_ALREADY,
    Event.NOT_SENT: _SENT_ALREADY,
    Event.REFUSED: _move(State.PROVEN),
    Event.RESPONSE: _WAIT_IS_OVER,
    Event.LATE_RESPONSE: _move(State.COMPLETED_LATE),
    Event.WAIT_ENDED: _NOTHING,
    Event.CLAIM_CANCEL: _move(State.CANCELLING),
    Event.CANCEL_TOLD: _NOT_CLAIMED,
    Event.CANCEL_FAILED: _NOT_CLAIMED,
    Event.EPOCH_ENDED: _move(State.CONNECTION_RESET),
    Event.PROOF: _move(State.PROVEN),
    Event.RECONCILE: _move(State.RECONCILED),
    Event.RELEASE: _move(State.RELEASED),
    Event.EXPIRE: _move(State.EXPIRED),
}
_CANCELLING: Final = {
    Event.CLAIM: _SENT_ALREADY,
    Event.NOT_SENT: _SENT_ALREADY,
    Event.REFUSED: _move(State.PROVEN),
    Event.RESPONSE: _WAIT_IS_OVER,
    Event.LATE_RESPONSE: _move(State.COMPLETED_LATE),
    Event.WAIT_ENDED: _NOTHING,
    Event.CLAIM_CANCEL: _NOTHING,  # one winner; the others wait for the same answer
    Event.CANCEL_TOLD: _move(State.CANCELLED),
    Event.CANCEL_FAILED: _move(State.UNRESOLVED),
    Event.EPOCH_ENDED: _move(State.CONNECTION_RESET),
    Event.PROOF: _move(State.PROVEN),
    Event.RECONCILE: _BEING_CANCELLED,
    Event.RELEASE: _BEING_CANCELLED,
    Event.EXPIRE: _NOTHING,
}
_FINAL: Final = dict.fromkeys(Event, _NOTHING)
_HELD: Final = _FINAL | {
    Event.REFUSED: _SETTLE,
    Event.PROOF: _SETTLE,
    Event.RECONCILE: _SETTLE,
    Event.RELEASE: _SETTLE,
    Event.CLAIM_CANCEL: Rule(Effect.TAKE),
    Event.CANCEL_TOLD: _SETTLE,
    Event.CANCEL_FAILED: Rule(Effect.GIVE_BACK),
}

_ROWS: Final[Mapping[State, Mapping[Event, Rule]]] = {
    State.RESERVED: _RESERVED,
    State.SENT: _SENT,
    State.UNRESOLVED: _UNRESOLVED,
    State.CANCELLING: _CANCELLING,
    State.COMPLETED: _FINAL,
    State.NOT_SENT: _FINAL,
    State.COMPLETED_LATE: _FINAL,
    State.CANCELLED: _FINAL | {Event.LATE_RESPONSE: _ANNOTATE},
    State.CONNECTION_RESET: _HELD | {Event.LATE_RESPONSE: _ANNOTATE},
    State.PROVEN: _FINAL,
    State.RECONCILED: _FINAL,
    State.RELEASED: _FINAL,
    State.EXPIRED: _HELD,
}

TABLE: Final[Mapping[tuple[State, Event], Rule]] = MappingProxyType(
    {(state, event): rule for state, rules in _ROWS.items() for event, rule in rules.items()}
)
"""Every pair of a state and an event."""


def rule(state: State, event: Event) -> Rule:
    """What `event` does to a call in `state`.

    Raises:
        Rejected: it makes no sense.
    """
    found = TABLE[state, event]
    if found.effect is Effect.REJECT:
        raise Rejected(str(found.why), state)
    return found


def _moves() -> Iterator[tuple[State, State, list[Event]]]:
    """From, to, by which events; in the order of the table."""
    found: dict[tuple[State, State], list[Event]] = {}
    for (state, event), each in TABLE.items():
        if each.to is not None:
            found.setdefault((state, each.to), []).append(event)
    for (state, to), events in found.items():
        yield state, to, events


def diagram() -> str:
    """The moves as a Mermaid state diagram, for the documentation."""
    lines = ["stateDiagram-v2", "    [*] --> reserved: begin"]
    lines += [f"    {state} --> {to}: {', '.join(events)}" for state, to, events in _moves()]
    lines += [f"    {state} --> [*]" for state in State if state.terminal]
    return "\n".join(lines)


def table() -> str:
    """All pairs as a Markdown table, for the documentation: a state in bold is a move, a dot nothing, ✗ a rejection."""
    words = {
        Effect.NOTHING: "·",
        Effect.REJECT: "✗",
        Effect.ANNOTATE: "note the outcome",
        Effect.SETTLE: "settle if held",
        Effect.TAKE: "claim if held",
        Effect.GIVE_BACK: "unclaim",
    }
    head = ["| event |", "|---|"]
    head = [head[0] + "".join(f" {state} |" for state in State), head[1] + "---|" * len(State)]
    rows = []
    for event in Event:
        cells = [TABLE[state, event] for state in State]
        shown = [f"**{cell.to}**" if cell.to is not None else words[cell.effect] for cell in cells]
        rows.append(f"| {event} | {' | '.join(shown)} |")
    return "\n".join(head + rows)
