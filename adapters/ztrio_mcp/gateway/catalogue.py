"""The server's tools as it last described them, which outlive its being busy or down.

A client's `tools/list` goes to the server, and the answer comes back as it is, with our own tools behind the last one.
When none comes in time, because the server is busy with a call or dead, the last good list is answered instead: a
client that once sees no tools forgets them for good (R20). Whatever list passes is also what the gate goes by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import structlog
import trio

from ztrio_mcp import jsonrpc
from ztrio_mcp.gateway.asks import ask
from ztrio_mcp.gateway.upstream import Connection
from ztrio_mcp.objects import Fields, encode_fields, fields_of

__all__ = ["Catalogue"]

_log: Final = structlog.get_logger("ztrio.gateway")

_METHOD: Final = "tools/list"
_PATIENCE: Final = 5.0  # seconds for one page
_RETRY: Final = (1.0, 5.0, 30.0)  # seconds between tries to make a stale list good again; the last one repeats
_MAX_PAGES: Final = 256  # a server whose cursors go in a circle is not followed for ever

_list: Final = msgspec.json.Decoder(list[msgspec.Raw])
_text: Final = msgspec.json.Decoder(str)


class Catalogue:
    """The tools of one server.

    Args:
        own: Our own tools, encoded, by name.
        observe: Told name → annotations of every whole list, before anything of it can be called.
    """

    def __init__(
        self, own: Mapping[str, bytes], observe: Callable[[Mapping[str, Mapping[str, Any] | None]], object]
    ) -> None:
        self._own = own
        self._observe = observe
        # Name → tool as it came, of the last whole list.
        self._tools: dict[str, msgspec.Raw] = {}
        # What stood beside the tools on its last page.
        self._around: Fields = {}
        # When the last whole list came, on trio's clock; None before the first.
        self._at: float | None = None
        self._stale = False
        # Names of ours that the server has, too, and that have been warned of; never shrinks.
        self._shadowed: set[str] = set()

    @property
    def stale(self) -> bool:
        """Whether the server has said, or shown by its silence, that the list may be another by now."""
        return self._stale

    @property
    def age(self) -> float | None:
        """Seconds since the last whole list; None before the first."""
        return None if self._at is None else trio.current_time() - self._at

    def names(self) -> Sequence[str]:
        """The names of the server's tools."""
        return list(self._tools)

    def tool(self, name: str) -> dict[str, Any] | None:
        """A tool of the server as it is on the wire, or None."""
        found = self._tools.get(name)
        return None if found is None else jsonrpc.decode(bytes(found))

    # ---- keeping it good

    async def refresh(self, connection: Connection, envelope: bytes | None) -> bool:
        """Ask for the whole list; whether it came.

        Args:
            connection: Whom to ask.
            envelope: `_meta` of the client's era, encoded, or None.
        """
        tools: dict[str, msgspec.Raw] = {}
        cursor: msgspec.Raw | None = None
        for _ in range(_MAX_PAGES):
            fields = {} if envelope is None else {"_meta": msgspec.Raw(envelope)}
            if cursor is not None:
                fields["cursor"] = cursor
            response = await ask(connection.peer, _METHOD, encode_fields(fields), timeout=_PATIENCE)
            if response is None or response.result is None:
                self._stale = True
                return False
            try:
                page, cursor = _page(response.result)
            except msgspec.DecodeError:
                break
            tools.update({name: each.copy() for name, each in page.items()})
            if cursor is None:
                self._take(tools, fields_of(response.result))
                return True
            cursor = cursor.copy()
        self._stale = True
        return False

    async def keep_good(self, connection: Connection, envelope: bytes | None) -> None:
        """Ask again until the list is good. Returns when it is; cancelled with its connection."""
        tries = 0
        while self._stale:
            await trio.sleep(_RETRY[min(tries, len(_RETRY) - 1)])
            tries += 1
            await self.refresh(connection, envelope)

    def changed(self) -> None:
        """The server says that its tools are others now."""
        self._stale = True

    def _take(self, tools: dict[str, msgspec.Raw], last: Fields) -> None:
        self._tools = tools
        self._around = {key: each.copy() for key, each in last.items() if key not in {"tools", "nextCursor"}}
        self._at = trio.current_time()
        self._stale = False
        self._observe({name: _annotations(each) for name, each in tools.items()})

    # ---- what a client is answered

    def passed(self, result: msgspec.Raw) -> bytes | msgspec.Raw:
        """A page that the server answered, with our own tools on the last one."""
        try:
            fields = fields_of(result)
            page, cursor = _page(result)
        except msgspec.DecodeError:
            return result  # the client is to see what it is
        self._observe({name: _annotations(each) for name, each in page.items()})
        if cursor is not None and not self._own.keys() & page.keys():
            return result
        theirs = map(bytes, self._theirs(_list.decode(fields.get("tools", b"[]"))))
        fields["tools"] = _tools([*theirs, *(() if cursor is not None else self._own.values())])
        return encode_fields(fields)

    def remembered(self) -> bytes | None:
        """The last whole list as one page, with our own tools; None when there never was one."""
        if self._at is None:
            return None
        theirs = map(bytes, self._theirs(self._tools.values()))
        return encode_fields({**self._around, "tools": _tools([*theirs, *self._own.values()])})

    def _theirs(self, tools: Iterable[msgspec.Raw]) -> Iterator[msgspec.Raw]:
        """Tools without those that have the name of one of ours: a call of that name reaches ours."""
        for tool in tools:
            name = _name(tool)
            if name is None or name not in self._own:
                yield tool
            elif name not in self._shadowed:
                self._shadowed.add(name)
                _log.warning("the server has a tool of the gateway's name, which cannot be called", tool=name)


def _tools(tools: Sequence[bytes]) -> msgspec.Raw:
    return msgspec.Raw(b"[" + b",".join(tools) + b"]")


def _page(result: msgspec.Raw) -> tuple[dict[str, msgspec.Raw], msgspec.Raw | None]:
    """Name → tool of one page, and where the next one begins."""
    fields = fields_of(result)
    tools = {name: each for each in _list.decode(fields.get("tools", b"[]")) if (name := _name(each)) is not None}
    cursor = fields.get("nextCursor")
    return tools, None if cursor is None or bytes(cursor) == b"null" else cursor


def _name(tool: msgspec.Raw) -> str | None:
    try:
        return _text.decode(fields_of(tool)["name"])
    except (msgspec.DecodeError, KeyError):
        return None


def _annotations(tool: msgspec.Raw) -> Mapping[str, Any] | None:
    hints = fields_of(tool).get("annotations")
    try:
        found = None if hints is None else jsonrpc.decode(bytes(hints))
    except ValueError:  # a number that cannot be held: nothing is believed of such a tool
        return None
    return found if isinstance(found, dict) else None
