"""Saying that it was the sandbox, where a tool only sees that something failed.

A denied write is a `PermissionError` like any other. Whether the sandbox denied it is found by asking the system about
the ordinary permissions: access(2) knows nothing of Landlock, so where it says yes and the write said no, it was the
sandbox. A write that a program of the tool was denied only shows in what that program printed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

from ztrio.policies import Limits
from ztrio.workers.sandbox import SandboxPolicy

__all__ = ["Denial", "explain"]

_MAX_CHAIN: Final = 16  # exceptions looked at; a chain can be a circle


@attrs.frozen(kw_only=True)
class Denial:
    """Why a tool failed, as far as the sandbox is the reason.

    Args:
        sentence: What it was and what to do.
        path: The path that was denied.
        limit: The limit that was reached: `memory`, `cpu`, `open_files`, `file_size`.
    """

    sentence: str
    path: str | None = None
    limit: str | None = None


def explain(error: BaseException, policy: SandboxPolicy) -> Denial | None:
    """Why a tool's exception was raised, if the sandbox is the reason. Called in the worker, inside the sandbox."""
    denials = (_explain_one(cause, policy) for cause in _chain(error))
    return next((denial for denial in denials if denial is not None), None)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and what it came from, nearest first; of a group its members too."""
    pending, seen = [error], 0
    while pending and seen < _MAX_CHAIN:
        current = pending.pop(0)
        seen += 1
        yield current
        if isinstance(current, BaseExceptionGroup):
            pending.extend(current.exceptions)
        origin = current.__cause__
        if origin is None and not current.__suppress_context__:
            origin = current.__context__
        if origin is not None:
            pending.append(origin)


def _explain_one(error: BaseException, policy: SandboxPolicy) -> Denial | None:
    limits = policy.limits or Limits()
    number = error.errno if isinstance(error, OSError) else None
    if limits.memory is not None and (isinstance(error, MemoryError) or number == errno.ENOMEM):
        sentence = f"The tool may use {limits.memory} bytes of memory (Limits.memory). Raise the limit, or use less."
        return Denial(sentence=sentence, limit="memory")
    if limits.file_size is not None and number == errno.EFBIG:
        sentence = f"A file may have {limits.file_size} bytes (Limits.file_size). Raise the limit, or write less."
        return Denial(sentence=sentence, limit="file_size")
    if limits.open_files is not None and number == errno.EMFILE:
        most = limits.open_files
        sentence = f"The tool may have {most} files open (Limits.open_files). Raise the limit, or close some."
        return Denial(sentence=sentence, limit="open_files")
    return _explain_path(error, policy) if isinstance(error, PermissionError) else None


def _explain_path(error: PermissionError, policy: SandboxPolicy) -> Denial | None:
    names = [name for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
    if not names:
        return None
    # Not resolved: the tool's own words are shown.
    paths = [Path.cwd() / os.fsdecode(name) for name in names]
    for path in paths:
        sentence = _why_denied(path, policy)
        if sentence is not None:
            return Denial(sentence=sentence, path=str(path))
    return Denial(sentence=_ordinary(policy), path=str(paths[0]))


def _why_denied(path: Path, policy: SandboxPolicy) -> str | None:
    """Why the sandbox denied writing to `path`; None if it did not."""
    if policy.landlock == "off":
        return None
    place = Path(os.path.realpath(path.parent), path.name)
    for allowed in policy.writable:
        if place.is_relative_to(os.path.realpath(allowed)):
            if os.access(allowed, os.F_OK):
                return None
            return f"writes= names {allowed}, which did not exist when the call began. Make it before the call."
    if not _was_permitted(place):
        return None
    return (
        f"The tool may not write to {path}: only to its outputs, to its temporary directory and beneath what it "
        "declares. Declare an Output for it, or its directory with writes=."
    )


def _was_permitted(path: Path) -> bool:
    """Whether ordinary permissions let this user change `path`, or make or remove it."""
    if os.path.lexists(path):
        if not os.access(path, os.R_OK):
            return False  # it was perhaps only to be read
        if os.access(path, os.W_OK):
            return True
    return os.access(path.parent, os.W_OK | os.X_OK)


def _ordinary(policy: SandboxPolicy) -> str:
    if policy.run_as is not None:
        return f"Tools run as user {policy.run_as[0]}, group {policy.run_as[1]} here, and that user may not."
    if os.geteuid() == 0:
        return (
            "Tools run without root's privileges, so permissions hold for root too. Give root the permission, or run "
            "workers as the owner with run_as."
        )
    return ""
