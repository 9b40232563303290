"""The two eras of the protocol, and what is said in one as it is said in the other.

Versions up to 2025-11-25 (*legacy*) begin with `initialize`, and what was agreed on holds for the connection. In
2026-07-28 (*modern*) each request carries an envelope in its `_meta`, and each result says of what type it is. What the
two have in common passes untouched; one level of an object is taken apart where a key has to come or go, and every
value keeps its bytes.

What one era cannot say is refused in words and never guessed. A modern server asks by answering `input_required`; a
legacy one by a request of its own; a task is another thing in each. So a server of the other era is not told that its
client can be asked: it then says what it says to every client that cannot, before it does anything, and not after.

Why no model of the SDK's: a field that the model does not know would be lost. That the keys are the SDK's is tested.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import attrs
import msgspec

from ztrio_mcp.objects import Fields, encode_fields, fields_of, raw

__all__ = [
    "CLIENT_CAPABILITIES",
    "CLIENT_INFO",
    "ENVELOPE",
    "LEGACY_VERSIONS",
    "LOG_LEVEL",
    "METHOD_NOT_FOUND",
    "MODERN_VERSIONS",
    "PROTOCOL_VERSION",
    "SERVER_INFO",
    "SUBSCRIPTION_ID",
    "UNSUPPORTED_VERSION",
    "ClientHello",
    "CrossEra",
    "Encoded",
    "Era",
    "Translator",
    "UpstreamHello",
    "object_in",
]

Era = Literal["legacy", "modern"]
"""2025-11-25 and before, with `initialize`; 2026-07-28, with an envelope in each request's `_meta`."""

Encoded = bytes | msgspec.Raw

LEGACY_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_VERSIONS: Final = ("2026-07-28",)

# The envelope of a request (MCP 2026-07-28, `RequestMetaObject`).
PROTOCOL_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO: Final = "io.modelcontextprotocol/clientInfo"
CLIENT_CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL: Final = "io.modelcontextprotocol/logLevel"
ENVELOPE: Final = frozenset({PROTOCOL_VERSION, CLIENT_INFO, CLIENT_CAPABILITIES, LOG_LEVEL})
# `_meta` of a result, and of what comes on a stream of `subscriptions/listen`.
SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION_ID: Final = "io.modelcontextprotocol/subscriptionId"

METHOD_NOT_FOUND: Final = -32601  # JSON-RPC 2.0, section 5.1
UNSUPPORTED_VERSION: Final = -32022  # MCP 2026-07-28, `UnsupportedProtocolVersionError`

_RESULT_TYPE, _TTL, _SCOPE = "resultType", "ttlMs", "cacheScope"
_COMPLETE: Final = raw("complete")
# Nobody here can say for how long a legacy server's words hold, so they hold for no time.
_NOT_CACHED: Final[Fields] = {_TTL: raw(0), _SCOPE: raw("private")}
# Methods whose results say how long they hold (MCP 2026-07-28, `CacheableResult`).
_CACHEABLE: Final = frozenset(
    {
        "prompts/list",
        "resources/list",
        "resources/read",
        "resources/templates/list",
        "server/discover",
        "tools/list",
    }
)
# What a client can do only when it can be asked in its server's era; tasks are another thing in each.
_QUESTIONS: Final = frozenset({"elicitation", "roots", "sampling", "tasks"})


class CrossEra(Exception):
    """What a server of the other era has answered cannot be said in the client's. The message is for people."""


@attrs.frozen(kw_only=True)
class ClientHello:
    """What the client said first.

    Args:
        era: How it speaks.
        params: The parameters by which a server is asked what it is: of `initialize`, or the envelope alone.
        capabilities: What the client can do, raw.
        version: The protocol's version, as the client named it.
        info: Its name and version, raw; None where it named none.
    """

    era: Era
    params: bytes
    capabilities: Fields
    version: str = ""
    info: msgspec.Raw | None = None

    @property
    def envelope(self) -> bytes | None:
        """`_meta` of a request of our own in its name; None in an era that wants none."""
        return bytes(fields_of(self.params)["_meta"]) if self.era == "modern" else None

    def params_for(self, era: Era) -> bytes:
        """The parameters by which a server of an era is asked what it is."""
        if era == self.era:
            return self.params
        able = {key: value for key, value in self.capabilities.items() if key not in _QUESTIONS}
        can = msgspec.Raw(encode_fields(able))
        if era == "modern":
            envelope: Fields = {PROTOCOL_VERSION: raw(MODERN_VERSIONS[-1]), CLIENT_CAPABILITIES: can}
            if self.info is not None:
                envelope[CLIENT_INFO] = self.info
            return encode_fields({"_meta": msgspec.Raw(encode_fields(envelope))})
        info = raw({"name": "unnamed", "version": ""}) if self.info is None else self.info
        return encode_fields({"protocolVersion": raw(LEGACY_VERSIONS[-1]), "capabilities": can, "clientInfo": info})


@attrs.frozen(kw_only=True)
class UpstreamHello:
    """What the server said of itself.

    Args:
        era: How it speaks.
        raw: The whole result.
        capabilities: What it can do, raw.
    """

    era: Era
    raw: msgspec.Raw
    capabilities: Fields

    def able(self, *path: str) -> bool:
        """Whether the server says that it can do something, for example `able("resources", "subscribe")`."""
        fields, key = self.capabilities, path[0]
        for deeper in path[1:]:
            fields, key = object_in(fields, key), deeper
        return key in fields and bytes(fields[key]) not in {b"false", b"null"}


class Translator:
    """Says what passes between a client and a server in the other's era.

    Args:
        client: What the client said first.
        upstream: What the server said of itself.

    Attributes:
        same: Whether both speak in one era; then everything is passed as it is.
        log_level: What a legacy client has asked to be told, raw; None before it has.
    """

    def __init__(self, client: ClientHello, upstream: UpstreamHello) -> None:
        self.same = client.era == upstream.era
        self.log_level: msgspec.Raw | None = None
        self._client = client
        self._upstream = upstream
        self._envelope: Fields = {}
        self._info: msgspec.Raw | None = None
        said = fields_of(upstream.raw)
        if self.same:
            return
        if upstream.era == "modern":
            self._envelope = object_in(fields_of(client.params_for("modern")), "_meta")
            self._info = object_in(said, "_meta").get(SERVER_INFO, said.get("serverInfo"))
        else:
            self._info = said.get("serverInfo")

    @property
    def _down(self) -> Callable[[str, Fields], Fields]:
        return self._modern_down if self._upstream.era == "modern" else self._legacy_down

    def params_up(self, method: str, params: Encoded | None) -> Encoded | None:
        """Parameters of the client's as its server wants them.

        Raises:
            msgspec.DecodeError: they are no object.
        """
        del method
        if self.same:
            return params
        fields = {} if params is None else fields_of(params)
        meta = {key: value for key, value in object_in(fields, "_meta").items() if key not in ENVELOPE}
        meta |= self._envelope
        if self._envelope and self.log_level is not None:
            meta[LOG_LEVEL] = self.log_level
        return _with_meta(fields, meta) if fields or meta else None

    def result_down(self, method: str, result: Encoded) -> Encoded:
        """A result of the server's as its client reads it.

        Raises:
            CrossEra: it cannot be said in the client's era.
        """
        if self.same:
            return result
        try:
            fields = fields_of(result)
        except msgspec.DecodeError:
            return result  # the client is to see what it is
        return encode_fields(self._down(method, fields))

    def seen(self, name: str) -> UpstreamHello:
        """What the server said of itself, as a server of the client's era says it.

        Args:
            name: What it is called if it has not said so.
        """
        if self.same:
            return self._upstream
        said = fields_of(self._upstream.raw)
        gone = {"extensions"} if self._upstream.era == "modern" else {"tasks", "logging"}
        capabilities = {key: value for key, value in self._upstream.capabilities.items() if key not in gone}
        fields: Fields = {"capabilities": msgspec.Raw(encode_fields(capabilities))}
        if "instructions" in said:
            fields["instructions"] = said["instructions"]
        meta = object_in(said, "_meta")
        if self._upstream.era == "modern":
            version = self._client.version
            fields["protocolVersion"] = raw(version if version in LEGACY_VERSIONS else LEGACY_VERSIONS[-1])
            fields["serverInfo"] = self._info or raw({"name": name, "version": ""})
            meta.pop(SERVER_INFO, None)
            if meta:
                fields["_meta"] = msgspec.Raw(encode_fields(meta))
        else:
            fields["supportedVersions"] = raw(list(MODERN_VERSIONS))
            fields["_meta"] = msgspec.Raw(encode_fields(meta))
            fields = self._legacy_down("server/discover", fields)
        hello = msgspec.Raw(encode_fields(fields))
        return UpstreamHello(era=self._client.era, raw=hello, capabilities=capabilities)

    def _modern_down(self, method: str, fields: Fields) -> Fields:
        """What a modern server has answered, for a legacy client."""
        kind = fields.pop(_RESULT_TYPE, _COMPLETE)
        if bytes(kind) != bytes(_COMPLETE):
            raise CrossEra(
                f"The server has answered {method} with {bytes(kind).decode()}, which this client's version of the "
                "protocol does not have: it cannot be asked in the middle of a call, and knows no such tasks. What was "
                "asked for is not done. Connect with a client of protocol 2026-07-28."
            )
        if method in _CACHEABLE:
            fields.pop(_TTL, None)
            fields.pop(_SCOPE, None)
        meta = object_in(fields, "_meta")
        if meta.pop(SERVER_INFO, None) is not None:
            fields.pop("_meta")
            if meta:
                fields["_meta"] = msgspec.Raw(encode_fields(meta))
        return fields

    def _legacy_down(self, method: str, fields: Fields) -> Fields:
        """What a legacy server has answered, for a modern client."""
        if method == "tools/call" and "task" in fields and "content" not in fields:
            raise CrossEra(
                f"The server has answered {method} with a task, which this client's version of the protocol has in "
                "another form. The task may be running: look before you repeat it."
            )
        fields = {_RESULT_TYPE: _COMPLETE, **(_NOT_CACHED if method in _CACHEABLE else {}), **fields}
        if self._info is not None:
            meta = object_in(fields, "_meta")
            fields["_meta"] = msgspec.Raw(encode_fields({SERVER_INFO: self._info, **meta}))
        return fields


def object_in(fields: Fields, key: str) -> Fields:
    """The object under a key, taken apart and copied; empty where there is none."""
    try:
        return {name: each.copy() for name, each in fields_of(fields[key]).items()} if key in fields else {}
    except msgspec.DecodeError:
        return {}


def _with_meta(fields: Fields, meta: Fields) -> bytes:
    fields = {key: value for key, value in fields.items() if key != "_meta"}
    return encode_fields({**fields, "_meta": msgspec.Raw(encode_fields(meta))} if meta else fields)
