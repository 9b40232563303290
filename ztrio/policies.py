"""What a tool says of its paths, `Output` and `Input`, used as `Annotated[Path, Output()]`; and of its `Limits`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import attrs

__all__ = ["Input", "Limits", "Output"]


def _default_existing(output: Output) -> Literal["replace", "refuse"]:
    # Replacing a directory drops what else was in it, so the tool's author has to say it.
    return "replace" if output.kind == "file" else "refuse"


@attrs.frozen
class Output:
    """The parameter names a path that the tool makes. The tool gets a staging path; success publishes it.

    The staging path does not exist when the tool starts (except with `copy_in`), its parent does.

    Args:
        kind: `file` or `dir`.
        existing: What to do when the target exists: `replace` it, `refuse` the call (`OUTPUT_EXISTS`), or `copy_in`
            its content first and replace it. Default: `replace` for files, `refuse` for directories.
        required: Whether a tool that does not make it has failed (`OUTPUT_MISSING`).
        on_conflict: When somebody else changed the target while the tool ran: `fail` keeps theirs
            (`OUTPUT_CONFLICT`), `overwrite` replaces it.
    """

    kind: Literal["file", "dir"] = attrs.field(default="file", validator=attrs.validators.in_(("file", "dir")))
    existing: Literal["replace", "refuse", "copy_in"] = attrs.field(
        default=attrs.Factory(_default_existing, takes_self=True),
        validator=attrs.validators.in_(("replace", "refuse", "copy_in")),
    )
    required: bool = True
    on_conflict: Literal["fail", "overwrite"] = attrs.field(
        default="fail", validator=attrs.validators.in_(("fail", "overwrite"))
    )


@attrs.frozen
class Input:
    """The parameter names a path inside the workspace that must exist. The tool gets it absolute.

    Args:
        kind: `file`, `dir` or `any`.
    """

    kind: Literal["file", "dir", "any"] = attrs.field(
        default="any", validator=attrs.validators.in_(("file", "dir", "any"))
    )


def _at_least(least: int) -> Callable[[Any, Any, Any], None]:
    def check(_: Any, attribute: Any, value: Any) -> None:
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise ValueError(f"{attribute.name} must be a whole number of at least {least}, not {value!r}")

    return check


@attrs.frozen(kw_only=True)
class Limits:
    """What a tool's worker process may use; each program that the tool starts may use as much again.

    Reaching one fails the call: memory with `MemoryError`, files with `OSError`, processor time with SIGKILL. How many
    processes a tool starts cannot be limited this way: the system's limit counts all processes of a user.

    Args:
        memory: Bytes of address space beyond what the worker has when the tool starts (RLIMIT_AS). A thread reserves
            its stack, usually 8 MiB, though it uses little of it.
        cpu: Seconds of processor time, of all threads together (RLIMIT_CPU).
        open_files: Descriptors open at once (RLIMIT_NOFILE).
        file_size: Bytes of the largest file it may write (RLIMIT_FSIZE).

    Raises:
        ValueError: a limit is not a whole number, or too small for any tool to run.
    """

    memory: int | None = attrs.field(default=None, validator=_at_least(1 << 20))
    cpu: int | None = attrs.field(default=None, validator=_at_least(1))
    open_files: int | None = attrs.field(default=None, validator=_at_least(16))
    file_size: int | None = attrs.field(default=None, validator=_at_least(0))
