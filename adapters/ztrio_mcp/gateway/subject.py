"""What an operator asks a gateway, over its private socket: its pending calls, and the process of its server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

import attrs
import msgspec
import trio

from ztrio.calls import CallContext
from ztrio.errors import InvalidArguments
from ztrio.management.subject import OPERATOR
from ztrio.pending import Tier, Tiers, Transport
from ztrio.tracking.desk import Desk
from ztrio.upstream import Keeper
from ztrio_mcp.gateway.batch import BatchError
from ztrio_mcp.gateway.wire import CallParams, decode_call

__all__ = ["GatewaySubject", "Listed"]

_KILLED: Final = "operator: cancel --kill"


class Listed(Protocol):
    """The tools that the server has, as it last described them."""

    def tool(self, name: str) -> dict[str, Any] | None:
        """A tool as it is on the wire, or None."""

    def names(self) -> Sequence[str]:
        """The names of all."""


class GatewaySubject:
    """The `Subject` that a gateway is.

    Args:
        server: The server's name.
        desk: Its pending calls.
        tiers: How much each tool may change.
        keeper: Its process.
        call: Makes one call; the result as it goes over the wire.
        listed: The server's tools.
        describe: How everything does, for `status`.
    """

    def __init__(
        self,
        server: str,
        *,
        desk: Desk,
        tiers: Tiers,
        keeper: Keeper,
        call: Callable[[CallParams, CallContext], Awaitable[dict[str, Any]]],
        listed: Listed,
        describe: Callable[[], dict[str, Any]],
    ) -> None:
        self._server = server
        self._desk = desk
        self._tiers = tiers
        self._keeper = keeper
        self._call = call
        self._listed = listed
        self._describe = describe

    @property
    def desk(self) -> Desk:
        """Its pending calls."""
        return self._desk

    async def tool_schema(self, name: str, *, reads: bool) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        tool = self._listed.tool(name)
        if tool is None or (reads and not self._reads(name)):
            read = ", ".join(each for each in self._listed.names() if self._reads(each)) or "none"
            what = "the server has no such tool" if tool is None else "it does not only read, by its own words"
            raise InvalidArguments(f"{name}: {what}. A read settles a call; there are: {read}. Nothing was sent.")
        schema = tool.get("inputSchema")
        return schema if isinstance(schema, dict) else {"type": "object"}

    def _reads(self, name: str) -> bool:
        return self._tiers.tier(self._server, name) is Tier.READ

    async def reconcile(self, call_id: str, tool: str, arguments: dict[str, Any], *, session: str) -> dict[str, Any]:
        if session != "default":
            await trio.lowlevel.checkpoint()
            raise InvalidArguments("A server behind a gateway has no sessions of ours. Nothing was sent.")
        await self.tool_schema(tool, reads=True)
        found, _, scope = await self._desk.owner(call_id, OPERATOR)
        answer = await self._made(tool, arguments, scope, reconciles=[found])
        return {"pending_call": await self._desk.call(call_id, OPERATOR), "tool": tool, "value": answer["value"]}

    async def replay(self, call_id: str, arguments: dict[str, Any], *, reconciles: Sequence[str]) -> dict[str, Any]:
        _, _, scope = await self._desk.owner(call_id, OPERATOR)
        shown = await self._desk.call(call_id, OPERATOR)
        tool = shown["tool"]
        if "count" in shown:
            raise InvalidArguments(f"{call_id} stands for several calls; repeat one of them by its own id.")
        return await self._made(tool, arguments, scope, reconciles=reconciles, surface="replay")

    async def _made(
        self, tool: str, arguments: dict[str, Any], scope: str, *, reconciles: Sequence[str], surface: str = "cli"
    ) -> dict[str, Any]:
        """Make a call in the gate scope of an earlier one."""
        meta = {"ztrio/reconciles": list(reconciles)} if reconciles else {}
        params = decode_call(msgspec.json.encode({"name": tool, "arguments": arguments, "_meta": meta}))
        try:
            result = await self._call(params, attrs.evolve(OPERATOR, gate_scope=scope, surface=surface))
        except BatchError as failed:
            raise InvalidArguments(f"{tool}: the server answered with an error: {failed}", error=failed.error) from None
        return {
            "call_id": result.get("_meta", {}).get("ztrio/call_id"),
            "tool": tool,
            "is_error": bool(result.get("isError")),
            "value": result.get("structuredContent", result.get("content")),
        }

    async def kill(self, call_id: str) -> dict[str, Any]:
        await self._desk.owner(call_id, OPERATOR)
        shown = await self._desk.call(call_id, OPERATOR)
        generation = self._keeper.generation
        if shown["transport"] != str(Transport.STDIO) or generation is None:
            raise InvalidArguments("The server process of this call is not running any more. Nothing was done.")
        if shown["connection_generation"] != generation.epoch:
            raise InvalidArguments(
                f"The process of this call (generation {shown['connection_generation']}) is dead already; generation "
                f"{generation.epoch} runs. Nothing was done."
            )
        death = await self._keeper.kill(_KILLED)
        after = await self._desk.call(call_id, OPERATOR)
        return {
            "call_id": call_id,
            "state": after["state"],
            "note": f"{self._server} was killed with everything it had started ({death.how}), and starts anew. Every "
            "call that it was at has lost its connection: it may have happened.",
        }

    async def status(self) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        return self._describe()

    async def retry(self) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        self._keeper.retry()
        return self._describe()

    async def reload(self) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        raise InvalidArguments(
            "A gateway has no toolbox of its own. Its server is started anew by `ztrio pending cancel --kill`, or with "
            "the gateway. Nothing was done."
        )
