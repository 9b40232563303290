"""Tools as the protocol library describes them. The only part of what is said to clients that needs its models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mcp_types import Tool, ToolAnnotations

from ztrio.admission import ToolDescription
from ztrio.tools import Capability
from ztrio_mcp.pending_tools import PENDING_TOOLS

__all__ = ["PENDING_DESCRIPTORS", "tool"]

PENDING_DESCRIPTORS: Final[Mapping[str, Tool]] = {
    name: Tool.model_validate(definition) for name, definition in PENDING_TOOLS.items()
}
"""Name → the tool by which a client manages its pending calls."""


def tool(description: ToolDescription) -> Tool:
    """A `ToolDescription` of the supervisor as an MCP tool."""
    return Tool(
        name=description.name,
        title=description.title,
        description=description.description or None,
        input_schema=description.input_schema,
        output_schema=description.output_schema,
        annotations=_annotations(description.capability),
    )


def _annotations(capability: str) -> ToolAnnotations:
    """The hints that follow from a capability. A hint that does not follow is not given.

    Whether repeating a write changes anything is not known here, so no write is called idempotent.
    """
    if capability == Capability.READ:
        return ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True)
    return ToolAnnotations(
        read_only_hint=False, destructive_hint=capability == Capability.DESTRUCTIVE, idempotent_hint=False
    )
