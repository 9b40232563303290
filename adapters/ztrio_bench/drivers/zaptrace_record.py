"""The tool `record` as ZapTrace has it: a file at a path that was given, and a count in the session it looks up."""

from __future__ import annotations

from pathlib import Path

__all__ = ["record"]


def record(value: int, out: str, session_id: str) -> dict[str, int]:
    """Write one small file and count in the session's state."""
    from zaptrace.agent import _tool_impls  # noqa: PLC0415 - the worker has it loaded by now

    session = _tool_impls._get_session(session_id)
    session["calls"] = session.get("calls", 0) + 1
    Path(out).write_text(f"{value}\n")
    return {"value": value}
