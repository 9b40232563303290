"""What an operator asks about: whatever has pending calls, a supervisor of our own tools or the gateway of a server.

The socket knows this protocol and nothing else, so neither loads the other. Everything is asked as `OPERATOR`; every
method may raise a `ZtrioError`, which is the answer then. What one of them cannot do at all it refuses with
`InvalidArguments` and a sentence that says why: the command line is one for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import attrs

from ztrio.calls import LOCAL
from ztrio.tracking.desk import Desk

__all__ = ["OPERATOR", "Subject"]

OPERATOR: Final = attrs.evolve(LOCAL, surface="cli")
"""Who asks: the owner of the process, at a command line."""


class Subject(Protocol):
    """What has pending calls, and what can be done there beside listing, showing, cancelling and releasing them."""

    @property
    def desk(self) -> Desk:
        """Answers about its pending calls."""

    async def tool_schema(self, name: str, *, reads: bool) -> dict[str, Any]:
        """The JSON Schema of a tool's arguments.

        Args:
            name: The tool.
            reads: Whether it must be one that only reads.

        Raises:
            InvalidArguments: there is no such tool, or it does not only read.
        """

    async def reconcile(self, call_id: str, tool: str, arguments: dict[str, Any], *, session: str) -> dict[str, Any]:
        """Call a tool that only reads, and let its success settle a call.

        Args:
            call_id: The call.
            tool: The tool.
            arguments: Its arguments.
            session: The session that is read; only our own tools have any.

        Returns:
            `pending_call` as it is then, and what was done: `tool`, `value` and, of our own tools, `job_id`.
        """

    async def replay(self, call_id: str, arguments: dict[str, Any], *, reconciles: Sequence[str]) -> dict[str, Any]:
        """Call the tool of a recorded call again, in the gate scope of that one.

        Args:
            call_id: The recorded call.
            arguments: The tool's arguments, which are not on record.
            reconciles: Calls that the success of this one is to settle, if it is a read.

        Returns:
            `call_id` of the new call, `tool`, `is_error` and `value`, what it answered.
        """

    async def kill(self, call_id: str) -> dict[str, Any]:
        """Kill the server process that a call went to, with everything it started; it starts anew.

        Returns:
            `call_id`, `state`, and a `note` that says what was done.
        """

    async def status(self) -> dict[str, Any]:
        """What it is and how it does: plain values, lists and objects, shown in their order and by their names."""

    async def retry(self) -> dict[str, Any]:
        """Start a server again that was given up.

        Returns:
            As `status`.
        """

    async def reload(self) -> dict[str, Any]:
        """Load the tools anew.

        Returns:
            `toolbox`, its name, and `tools`, their names.
        """
