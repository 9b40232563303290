"""Asking a server that keeps books of its own what became of a call: between two ztrio, `proven` settles an entry.

A ztrio server says at the handshake that it knows calls by the ids that the gateway gives them. Whenever a connection
to one is ready, each call of it that shuts a gate is asked about. Asking fences: an id that the server did not know is
refused there from then on, so "not started" stays true.

"Not started" is believed only once an answer has brought a call's id back. Something between the two that passes calls
and drops `_meta` would make every call one that the server never heard of, and that is no proof of anything.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ztrio.audit import AuditBus, AuditEvent
from ztrio.pending import Blocker, Proof, Record
from ztrio.tracking.tracker import PROOF, Tracker
from ztrio_mcp.gateway.asks import ask
from ztrio_mcp.gateway.upstream import Connection
from ztrio_mcp.gateway.wire import CALL_ID_META
from ztrio_mcp.objects import raw

__all__ = ["Prover"]

_ABILITY: Final = "ztrio/calls"
_URI: Final = "ztrio://calls/"
_PATIENCE: Final = 10.0  # seconds for one answer

_any: Final = msgspec.json.Decoder()


class Prover:
    """Asks one server about calls.

    Args:
        server: Its name.
        tracker: The registry's shell.
        audit: Where proofs are published.
    """

    def __init__(self, server: str, tracker: Tracker, audit: AuditBus) -> None:
        self._server = server
        self._tracker = tracker
        self._audit = audit
        # Whether an answer of this server has brought an id back; never goes back.
        self._ids_arrive = False

    def answered(self, call_id: str, result: msgspec.Raw) -> bool:
        """Take note of an answer; whether it is the first that shows that ids arrive."""
        if self._ids_arrive or b'"%b":"%b"' % (CALL_ID_META.encode(), call_id.encode()) not in bytes(result):
            return False
        self._ids_arrive = True
        return True

    async def ask_all(self, connection: Connection) -> None:
        """Ask about every call that shuts a gate, if the server keeps books."""
        if not _keeps_books(connection):
            return
        for record in self._tracker.registry.entries():
            if record.call.server == self._server and record.gating and not isinstance(record, Blocker):
                await self._ask(connection, record)

    async def _ask(self, connection: Connection, record: Record) -> None:
        call_id = record.call.call_id
        params = connection.own_params({"uri": raw(f"{_URI}{call_id}")})
        response = await ask(connection.peer, "resources/read", params, timeout=_PATIENCE)
        proof = None if response is None or response.result is None else _proof(response.result, call_id)
        if proof is None or (proof is Proof.NOT_STARTED and not self._ids_arrive):
            return
        self._audit.publish(AuditEvent(event=PROOF, pending={"call_id": call_id, "proof": str(proof)}))


def _keeps_books(connection: Connection) -> bool:
    experimental = connection.hello.capabilities.get("experimental")
    if experimental is None:
        return False
    told = _any.decode(experimental)
    return isinstance(told, dict) and _ABILITY in told


def _proof(result: msgspec.Raw, call_id: str) -> Proof | None:
    """What a server's own record says; None for what says nothing."""
    try:
        content: Any = _any.decode(_any.decode(result)["contents"][0]["text"])
        return Proof(content["outcome"]) if content["call_id"] == call_id else None
    except (msgspec.DecodeError, KeyError, IndexError, TypeError, ValueError):
        return None
