"""The hash chain of the audit log, and the one form of an event that is hashed, stored and exported.

The canonical bytes of an event are its JSON object in ASCII without spaces: `log_pos` first, then the others by name.
The hash of an event is SHA-256 over the hash of the one before it (32 bytes; zeros before the first) and its canonical
bytes. So whoever has an export can follow the chain without this program, and nobody can change, remove, insert or move
an event without every later hash being wrong.

The columns that answer questions (whose, of which call, when) repeat what stands in the event; they are compared too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any, Final

import attrs
import msgspec

from ztrio.audit import AuditEvent
from ztrio.errors import Outcome

__all__ = [
    "GENESIS",
    "Anchor",
    "Link",
    "Verification",
    "canonical",
    "column",
    "decode_event",
    "facts_of",
    "link_hash",
    "verify",
]

GENESIS: Final = bytes(32)
"""What stands for the hash before the first event."""

_encoder: Final = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"), sort_keys=True)


# What JSON knows as lists only.
_TUPLES: Final = {name for name, kind in AuditEvent.__annotations__.items() if str(kind).startswith("tuple")}


@attrs.frozen
class Anchor:
    """The end of what is not, or no longer, in the log; the first event follows it.

    Args:
        log_pos: Position of the newest event that was removed, 0 when none was.
        hash: Its hash.
        total_bytes: Bytes of it and of everything before.
    """

    log_pos: int = 0
    hash: bytes = GENESIS
    total_bytes: int = 0

    def encode(self) -> bytes:
        """The anchor as it is stored."""
        return json.dumps(attrs.asdict(self) | {"hash": self.hash.hex()}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Anchor:
        """What `encode` wrote."""
        facts = json.loads(data)
        return cls(facts["log_pos"], bytes.fromhex(facts["hash"]), facts["total_bytes"])


@attrs.frozen
class Link:
    """One event as it is stored."""

    log_pos: int
    seq: int
    job_id: str
    principal: str | None
    time: str
    event: str
    hash: bytes
    total_bytes: int


@attrs.frozen
class Verification:
    """What following the chain found.

    Args:
        events: Events whose hash and columns are right.
        first: Position of the first event that is kept, None for an empty log.
        last: Position of the last right event, None when there is none.
        bad: Position of the first bad link, None when all are good.
        problem: What is wrong with it.
        head: Hash of the last right event, or what stands for the one before the first. Whoever notes it elsewhere can
            tell later whether the newest events were removed, which the chain itself cannot.
    """

    events: int
    first: int | None
    last: int | None
    bad: int | None = None
    problem: str | None = None
    head: bytes = attrs.field(default=GENESIS, eq=False)


def facts_of(event: AuditEvent) -> str:
    """The canonical form of an event without its position: all but the beginning of the canonical bytes.

    Raises:
        TypeError, ValueError: it holds what is no JSON.
    """
    return _encoder.encode(event.as_dict())[1:]


def canonical(log_pos: int, facts: str) -> str:
    """The canonical bytes of an event, as text; `facts` is what `facts_of` gave."""
    return f'{{"log_pos":{log_pos},{facts}'


def column(text: str | None) -> str | None:
    """Text as a database takes it: a lone surrogate as the escape that names it."""
    return text if text is None or text.isascii() else text.encode(errors="backslashreplace").decode()


def link_hash(previous: bytes, event: str) -> bytes:
    """The hash of an event's canonical bytes."""
    return hashlib.sha256(previous + event.encode("ascii")).digest()


def decode_event(text: str) -> AuditEvent:
    """The event of canonical bytes."""
    facts: dict[str, Any] = json.loads(text)
    del facts["log_pos"]
    for name in _TUPLES & facts.keys():
        facts[name] = tuple(facts[name])
    if "outcome" in facts:
        facts["outcome"] = Outcome(facts["outcome"])
    return AuditEvent(**facts)


class _Columns(msgspec.Struct):
    log_pos: int
    seq: int
    time: str
    execution_job_id: str = ""
    principal: str | None = None


_columns: Final = msgspec.json.Decoder(_Columns)


def _read_columns(text: str) -> _Columns:
    try:
        return _columns.decode(text)
    except msgspec.MsgspecError:  # a lone surrogate, which msgspec does not take; or no event at all
        return msgspec.convert(json.loads(text), _Columns)


def verify(anchor: Anchor, links: Iterable[Link]) -> Verification:
    """Follow the chain from the anchor to its end or its first bad link, one link at a time.

    Args:
        anchor: Where the log begins.
        links: The events after it, by position.
    """
    expected, previous, total = anchor.log_pos + 1, anchor.hash, anchor.total_bytes
    count, first = 0, None

    def bad(problem: str) -> Verification:
        return Verification(count, first, expected - 1 if count else None, expected, problem, previous)

    for link in links:
        if link.log_pos != expected:
            missing = "is missing" if link.log_pos == expected + 1 else f"to {link.log_pos - 1} are missing"
            return bad(f"event {expected} {missing}")
        problem = _problem(link, previous, total)
        if problem is not None:
            return bad(f"event {expected}: {problem}")
        first = first or link.log_pos
        previous, total = link.hash, link.total_bytes
        expected += 1
        count += 1
    return Verification(count, first, expected - 1 if count else None, head=previous)


def _problem(link: Link, previous: bytes, total: int) -> str | None:
    try:
        if link_hash(previous, link.event) != link.hash:
            return "its hash does not follow from the event and the hash before it"
        columns = _read_columns(link.event)
    except (ValueError, TypeError, AttributeError) as error:  # no ASCII text, no JSON, no event
        return f"it cannot be read ({type(error).__name__})"
    said = (columns.log_pos, columns.seq, columns.time, column(columns.execution_job_id), column(columns.principal))
    if said != (link.log_pos, link.seq, link.time, link.job_id, link.principal):
        return "its columns are not those of the event"
    if link.total_bytes != total + len(link.event):
        return "its size does not add up"
    return None
