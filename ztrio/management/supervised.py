"""A supervisor as what an operator asks about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import attrs
import trio

from ztrio.errors import InvalidArguments
from ztrio.management.subject import OPERATOR
from ztrio.supervisor import Supervisor
from ztrio.tools import Capability
from ztrio.tracking.desk import Desk

__all__ = ["Supervised"]


class Supervised:
    """The `Subject` that a supervisor is.

    Args:
        supervisor: The supervisor.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    @property
    def desk(self) -> Desk:
        return self._supervisor.pending

    async def tool_schema(self, name: str, *, reads: bool) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        return self._tool_schema(name, reads=reads)

    def _tool_schema(self, name: str, *, reads: bool) -> dict[str, Any]:
        toolbox = self._supervisor.toolbox
        tool = toolbox.get(name)
        if tool is None or (reads and tool.capability is not Capability.READ):
            read = ", ".join(each.name for each in toolbox if each.capability is Capability.READ) or "none"
            what = "there is no such tool" if tool is None else "it does not only read"
            raise InvalidArguments(f"{name}: {what}. A read settles a call; there are: {read}. Nothing ran.")
        return tool.schema.input_schema

    async def reconcile(self, call_id: str, tool: str, arguments: dict[str, Any], *, session: str) -> dict[str, Any]:
        self._tool_schema(tool, reads=True)
        found, principal, scope = await self.desk.owner(call_id, OPERATOR)
        if principal != OPERATOR.principal.id:
            raise InvalidArguments(
                "The call is another principal's, and only its own reads can settle it. Nothing ran; look, then "
                "release it."
            )
        answer = await self._supervisor.call(
            tool, arguments, session=session, context=attrs.evolve(OPERATOR, gate_scope=scope), reconciles=[found]
        )
        return {
            "pending_call": await self.desk.call(call_id, OPERATOR),
            "tool": tool,
            "value": answer.value,
            "job_id": answer.job_id,
        }

    async def replay(self, call_id: str, arguments: dict[str, Any], *, reconciles: Sequence[str]) -> dict[str, Any]:
        del arguments, reconciles
        await self.desk.owner(call_id, OPERATOR)
        _refuse("A call of your own tools is not repeated here; make it with `ztrio call`, or through the client.")

    async def kill(self, call_id: str) -> dict[str, Any]:
        await self.desk.owner(call_id, OPERATOR)
        _refuse("A tool of your own is in a process of its own, which was killed when the call ended.")

    async def status(self) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        toolbox = self._supervisor.toolbox
        return {
            "kind": "serve",
            "toolbox": toolbox.name,
            "tools": sum(1 for _ in toolbox),
            "counters": attrs.asdict(self.desk.statistics()),
        }

    async def retry(self) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        _refuse("This is `ztrio serve`; it starts a worker for each call and never gives up.")

    async def reload(self) -> dict[str, Any]:
        await self._supervisor.reload()
        toolbox = self._supervisor.toolbox
        return {"toolbox": toolbox.name, "tools": [tool.name for tool in toolbox]}


def _refuse(why: str) -> NoReturn:
    raise InvalidArguments(f"{why} Nothing was done.")
