"""What the core says, as MCP says it: results, and errors that a model can act on.

`structuredContent` is an object in MCP, so a dict result goes as it is, None becomes `{}` and anything else
`{"result": …}`. The text content is the same JSON, for clients that show or forward text only (MCP 2025-11-25, Tools,
Structured Content). Every answer to a call names its job and outcome in `_meta`.
"""

from __future__ import annotations

import json
from typing import Any, Final

from ztrio.calls import CallResult
from ztrio.errors import Outcome, ZtrioError

__all__ = [
    "IDEMPOTENCY_KEY_META",
    "JOB_ID_META",
    "OUTCOME_META",
    "RECONCILES_META",
    "TIMEOUT_META",
    "error_result",
    "plain_result",
    "success_result",
]

JOB_ID_META: Final = "ztrio/job_id"
OUTCOME_META: Final = "ztrio/outcome"
TIMEOUT_META: Final = "ztrio/timeout"
IDEMPOTENCY_KEY_META: Final = "ztrio/idempotency_key"
RECONCILES_META: Final = "ztrio/reconciles"
PENDING_CALL_META: Final = "ztrio/pending_call"
WARNING_META: Final = "pending_call_warning"

_json: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def success_result(result: CallResult) -> dict[str, Any]:
    """The answer to a call that succeeded, as it goes over the wire (MCP 2025-11-25, `CallToolResult`)."""
    structured = _structured(result.value)
    meta = _meta(result.job_id, result.outcome)
    if result.warning is not None:
        meta[WARNING_META] = dict(result.warning)
    return _result(_json.encode(structured), structured, False, meta)


def plain_result(value: dict[str, Any]) -> dict[str, Any]:
    """The answer to what is no call of a tool of the toolbox, and so has neither job nor outcome."""
    return _result(_json.encode(value), value, False, {})


def _structured(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    return {} if value is None else {"result": value}


def error_result(error: ZtrioError) -> dict[str, Any]:
    """The answer to a call that failed: the sentence for the model, the facts for the program."""
    known = []
    if error.outcome is not None:
        known.append(f"outcome: {error.outcome}")
    if error.job_id is not None:
        known.append(f"job: {error.job_id}")
    text = f"{error} ({', '.join(known)})" if known else str(error)
    facts, meta = error.as_dict(), _meta(error.job_id, error.outcome)
    structured = {"error": facts}
    pending, warning = facts.pop("pending_call", None), facts.pop("pending_call_warning", None)
    if pending is not None:
        structured["pending_call"] = meta[PENDING_CALL_META] = pending
    if warning is not None:
        meta[WARNING_META] = warning
    return _result(text, structured, True, meta)


def _result(text: str, structured: dict[str, Any], is_error: bool, meta: dict[str, Any]) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return {"content": content, "structuredContent": structured, "isError": is_error, "_meta": meta}


def _meta(job_id: str | None, outcome: Outcome | None) -> dict[str, Any]:
    facts = {JOB_ID_META: job_id, OUTCOME_META: None if outcome is None else str(outcome)}
    return {key: value for key, value in facts.items() if value is not None}
