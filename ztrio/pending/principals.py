"""Who is calling, which scope that opens, and what may be carried by a client without being believed.

Ids do not depend on secrets: regenerating a token's secret keeps its principal, deleting and creating it anew does not,
because the time of creation is part of the hash. Every part is hashed with its length in front of it, so no two triples
read alike ("ab", "c" and "a", "bc").

A scope handle and a sealed `requestState` travel through the client. Both carry a MAC over everything they stand for,
so neither needs memory here, and a handle that another principal shows is worth nothing. MACs are made under different
labels: what was minted as one is never taken for the other.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final

__all__ = [
    "SCOPE_PREFIX",
    "anonymous_id",
    "gate_scope_of",
    "mint_scope_handle",
    "open_lineage",
    "open_scope_handle",
    "principal_id",
    "seal_lineage",
]

SCOPE_PREFIX: Final = "zg_"
_SEAL: Final = "zl1"
_MAC_BYTES: Final = 15


def _framed(*parts: str) -> bytes:
    """Every part with its length in bytes before it."""
    encoded = [part.encode() for part in parts]
    return b"".join(len(part).to_bytes(8, "big") + part for part in encoded)


def _hashed(prefix: str, *parts: str) -> str:
    digest = hashlib.blake2b(_framed(*parts), digest_size=16, person=b"ztrio principal").digest()
    return prefix + base64.b32encode(digest).decode("ascii").rstrip("=").lower()


def _mac(secret: bytes, *parts: str) -> str:
    digest = hmac.digest(secret, _framed(*parts), hashlib.sha256)[:_MAC_BYTES]
    return base64.b32encode(digest).decode("ascii").lower()


def principal_id(owner: str, name: str, created_at: str) -> str:
    """The id of a token's principal, 128 bits; independent of the token's secret.

    Args:
        owner: Whose token it is.
        name: The owner's name for it.
        created_at: When it was created, as stored.
    """
    return _hashed("pr_", "token", owner, name, created_at)


def anonymous_id(profile: str) -> str:
    """The id of everybody who comes without a token and is confined to `profile`."""
    return _hashed("pa_", "anonymous", profile)


def gate_scope_of(principal: str, session: str | None = None, *, transport: str, setting: str = "auto") -> str:
    """The scope that gate and reconciliation of a caller are keyed on. It does not show the principal's id.

    Args:
        principal: Id of the caller.
        session: The caller's MCP session, where its era of the protocol has sessions.
        transport: How the caller came in: `stdio` or `http`.
        setting: `auto`, or `principal` for one scope per principal.

    Only `local` over HTTP is split by session: there it stands for several clients of one human. A stdio process has
    one client, which must meet its old entries again when it is restarted.
    """
    if principal != "local":
        return _hashed("gs_", principal)
    if session is None or transport == "stdio" or setting == "principal":
        return "local"
    return _hashed("gs_", principal, session)


def mint_scope_handle(secret: bytes, principal: str, scope: str) -> str:
    """A handle that brings `principal`, and nobody else, back into `scope`."""
    return f"{SCOPE_PREFIX}{_mac(secret, 'scope', principal, scope)}_{scope}"


def open_scope_handle(secret: bytes, principal: str, handle: str) -> str | None:
    """The scope of a handle, or None for whatever was not minted for this principal."""
    mac, separator, scope = handle.removeprefix(SCOPE_PREFIX).partition("_")
    if not separator or not handle.startswith(SCOPE_PREFIX):
        return None
    return scope if hmac.compare_digest(mac.encode(), _mac(secret, "scope", principal, scope).encode()) else None


def seal_lineage(secret: bytes, server: str, principal: str, call_id: str, state: str) -> str:
    """Wrap an upstream's `requestState`, so that whoever continues the call can be told from whoever repeats it.

    Args:
        secret: The store's secret.
        server: The upstream that gave the state.
        principal: Id of who called.
        call_id: The first call of the lineage.
        state: The upstream's own `requestState`; comes back as it was.
    """
    body = base64.urlsafe_b64encode(state.encode()).decode("ascii")
    return f"{_SEAL}.{call_id}.{_mac(secret, 'lineage', server, principal, call_id, state)}.{body}"


def open_lineage(secret: bytes, server: str, principal: str, sealed: str) -> tuple[str, str] | None:
    """The call id and the upstream's `requestState`; None for what was not sealed for this server and principal."""
    parts = sealed.split(".")
    if len(parts) != 4 or parts[0] != _SEAL:
        return None
    _, call_id, mac, body = parts
    try:
        state = base64.b64decode(body, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    expected = _mac(secret, "lineage", server, principal, call_id, state)
    return (call_id, state) if hmac.compare_digest(mac.encode(), expected.encode()) else None
