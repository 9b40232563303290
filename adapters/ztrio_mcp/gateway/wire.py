"""A `tools/call` on the wire: what the gateway takes out of its parameters, puts in, and adds to its answer.

Arguments and results pass as the bytes that they are. Where a key has to go or come, one level of the object is decoded
with its values left raw, and encoded again, so an integer of forty digits or a key that nobody here knows survives.
Results mostly have no `_meta` yet: then it is put in front, and nothing is decoded at all.

Why not a model of the call: it would have to know each field of each version, and whatever it did not know was lost.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

import attrs
import msgspec

from ztrio.errors import InvalidArguments
from ztrio.pending import LateOutcome, reconcile_ids
from ztrio_mcp import jsonrpc
from ztrio_mcp.objects import Fields, encode_fields, fields_of, raw
from ztrio_mcp.results import RECONCILES_META, TIMEOUT_META

__all__ = [
    "CALL_ID_META",
    "CallParams",
    "ResultShape",
    "decode_call",
    "late_outcome_of",
    "shape_of",
    "with_meta",
]

CALL_ID_META: Final = "ztrio/call_id"
SCOPE_META: Final = "ztrio/scope"

_OURS: Final = "ztrio/"
_PROGRESS_TOKEN: Final = "progressToken"  # noqa: S105 - the protocol's name for it

_encoder: Final = msgspec.json.Encoder()
_text: Final = msgspec.json.Decoder(str)

# An exponent of three digits, or a number of over 308: perhaps more than a double holds. Rare, so what has neither is
# not looked at any further.
_PERHAPS_TOO_LARGE: Final = re.compile(rb"[eE]\+?[0-9]{3}|[0-9]{309}")


@attrs.frozen(kw_only=True)
class CallParams:
    """The parameters of a `tools/call`, taken apart.

    Args:
        tool: The tool's name.
        fields: Everything but `_meta`, as it came.
        meta: What of `_meta` is the server's: neither `ztrio/…` nor the progress token.
        progress_token: The caller's, with its JSON type; None where it wants no progress.
        timeout: Seconds that the caller is ready to wait, or None.
        reconciles: Ids of calls that it settles, if it is a read that succeeds.
        scope: The handle of a gate scope, or None.
    """

    tool: str
    fields: Fields
    meta: Fields
    progress_token: str | int | None = None
    timeout: float | None = None
    reconciles: tuple[str, ...] = ()
    scope: str | None = None

    def encoded(self, call_id: str, *, token: int | None) -> bytes:
        """The parameters as the server gets them.

        Args:
            call_id: The call's id, for a server that keeps books of its own.
            token: The progress token of this connection, where the caller wants progress.
        """
        meta = self.meta.copy()
        meta[CALL_ID_META] = msgspec.Raw(b'"%b"' % call_id.encode())
        if token is not None:
            meta[_PROGRESS_TOKEN] = msgspec.Raw(b"%d" % token)
        fields = self.fields.copy()
        fields["_meta"] = msgspec.Raw(encode_fields(meta))
        return encode_fields(fields)

    @property
    def arguments(self) -> msgspec.Raw | None:
        """The tool's arguments."""
        return self.fields.get("arguments")


def decode_call(params: msgspec.Raw | bytes | None) -> CallParams:
    """Take the parameters of a `tools/call` apart.

    Raises:
        InvalidArguments: they are none, or a number in them is more than JSON's readers hold. Nothing was sent.
    """
    if params is None:
        raise InvalidArguments("A tools/call needs parameters with the name of a tool. Nothing was sent.")
    if _PERHAPS_TOO_LARGE.search(params):
        _refuse_large_numbers(bytes(params))
    try:
        fields = fields_of(params)
        tool = _text.decode(fields["name"])
    except (msgspec.DecodeError, KeyError):
        raise InvalidArguments("A tools/call needs an object with the name of a tool. Nothing was sent.") from None
    arguments = fields.get("arguments")
    if arguments is not None and not bytes(arguments).lstrip().startswith((b"{", b"null")):
        raise InvalidArguments(f"{tool}: the arguments are no object. Nothing was sent.")
    given = fields.pop("_meta", None)
    if given is None:
        return CallParams(tool=tool, fields=fields, meta={})
    return _with_meta_of_caller(tool, fields, given)


def _with_meta_of_caller(tool: str, fields: Fields, given: msgspec.Raw) -> CallParams:
    try:
        meta = {} if bytes(given).strip() == b"null" else fields_of(given)
    except msgspec.DecodeError:
        raise InvalidArguments(f"{tool}: `_meta` is no object. Nothing was sent.") from None
    token = meta.pop(_PROGRESS_TOKEN, None)
    ours = {key: jsonrpc.decode(bytes(meta.pop(key))) for key in [key for key in meta if key.startswith(_OURS)]}
    scope = ours.get(SCOPE_META)
    if scope is not None and not isinstance(scope, str):
        raise InvalidArguments(f"{SCOPE_META} is the `scope` of a pending call, a string. Nothing was sent.")
    return CallParams(
        tool=tool,
        fields=fields,
        meta=meta,
        progress_token=None if token is None else _token(token),
        timeout=_timeout(ours.get(TIMEOUT_META)),
        reconciles=reconcile_ids(ours.get(RECONCILES_META) or ()),
        scope=scope,
    )


def _token(token: msgspec.Raw) -> str | int:
    value = jsonrpc.decode(bytes(token))
    if not jsonrpc.is_request_id(value):
        raise InvalidArguments("A progress token is a string or an integer. Nothing was sent.")
    assert isinstance(value, str | int)
    return value


def _timeout(value: Any) -> float | None:
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or value <= 0 or not math.isfinite(value):
        raise InvalidArguments(f"{TIMEOUT_META} is a number of seconds, above zero. Nothing was sent.")
    return float(value)


def _refuse_large_numbers(params: bytes) -> None:
    try:
        jsonrpc.decode(params)
    except jsonrpc.NumberOutOfRange:
        raise InvalidArguments("A number in the arguments is out of range. Nothing was sent.") from None
    except jsonrpc.NotJson as error:
        raise InvalidArguments(f"The parameters are no JSON ({error}). Nothing was sent.") from None


def with_meta(result: bytes | msgspec.Raw, ours: Mapping[str, Any]) -> bytes:
    """A result with keys of ours in its `_meta`, next to what the server put there.

    Args:
        result: A JSON object.
        ours: Key → plain value. A key that the server has given itself stays the server's.
    """
    body = bytes(result).lstrip()
    if b'"_meta"' not in body:  # which only a result without one can say so cheaply
        rest = body[1:].lstrip()
        return b'{"_meta":%b%b%b' % (_encoder.encode(ours), b"" if rest.startswith(b"}") else b",", rest)
    fields = fields_of(body)
    try:
        theirs = fields_of(fields["_meta"]) if "_meta" in fields else {}
    except msgspec.DecodeError:  # not an object: the client is to see what it is
        return body
    merged = {**{key: raw(value) for key, value in ours.items()}, **theirs}
    return encode_fields({**fields, "_meta": msgspec.Raw(encode_fields(merged))})


_ABSENT: Final = msgspec.Raw(b"")


class ResultShape(msgspec.Struct, rename="camel"):
    """What of a result decides what it means.

    Args:
        is_error: Whether the tool failed.
        result_type: `complete`, `input_required` or `task`; the handshake era has none.
        task: A task that was accepted in place of a result; empty where there is none.
        request_state: What continues a call that wants input, its server's own words; empty where there is nothing.
    """

    is_error: bool | None = None
    result_type: str | None = None
    task: msgspec.Raw = _ABSENT
    request_state: msgspec.Raw = _ABSENT

    @property
    def wants_input(self) -> bool:
        """Whether the action did not complete."""
        return self.result_type == "input_required"


_shape: Final = msgspec.json.Decoder(ResultShape)
_SHAPE_KEYS: Final = frozenset(ResultShape.__struct_encode_fields__)


def shape_of(result: bytes | msgspec.Raw) -> ResultShape | None:
    """What a result says; None for what is no result of a tool at all."""
    try:
        return _shape.decode(result)
    except msgspec.DecodeError:
        pass
    try:
        known = {key: value for key, value in fields_of(result).items() if key in _SHAPE_KEYS}
        return _shape.decode(encode_fields(known))
    except msgspec.DecodeError:
        return None


def late_outcome_of(result: msgspec.Raw | None, error: msgspec.Raw | None) -> LateOutcome:
    """What a response says that came when nobody waited for it any more."""
    if error is not None:
        return LateOutcome.JSONRPC_ERROR
    shape = None if result is None else shape_of(result)
    if shape is None:
        return LateOutcome.MALFORMED
    if shape.wants_input:
        return LateOutcome.INPUT_REQUIRED
    if shape.task or shape.result_type == "task":
        return LateOutcome.TASK_ACCEPTED
    return LateOutcome.TOOL_ERROR if shape.is_error else LateOutcome.SUCCESS
