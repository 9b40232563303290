"""Where outputs may go and inputs may come from: path strings of a caller, resolved inside the workspace.

The path is walked component by component with directory descriptors, and links are read and walked the same way,
because every shorter way is wrong somewhere: `os.path.normpath` disagrees with the kernel about `link/..`,
`realpath` followed by `open` trusts a name that may have been swapped in between, and `openat2(RESOLVE_BENEATH)`
refuses absolute links that stay inside. The result is the canonical path, without any link in it; it is the key that
calls queue on, and `open_parent` walks it again, this time without following anything, each time it is used.

Refused are: whatever leaves the workspace, through `..` or a link (`OUTPUT_OUTSIDE_WORKSPACE`); the workspace itself
(the same); a path through a name that starts with `.ztrio`, which is ours (`OUTPUT_NOT_WRITABLE`); a target that is a
symlink, wherever it points (`OUTPUT_IS_SYMLINK`: replacing it would leave what it points to stale, following it would
move the write elsewhere); a target in a directory that does not exist (`OUTPUT_NOT_WRITABLE`: no directory is made).
Links among the target's *parents* are fine as long as they stay inside.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import attrs

from ztrio.errors import InvalidArguments, OutputRefused
from ztrio.policies import Input, Output
from ztrio.publication.exchange import SEARCH, FileOps, is_missing

__all__ = [
    "RESERVED_PREFIX",
    "Target",
    "check_existing",
    "open_parent",
    "refuse",
    "refuse_overlap",
    "resolve_input",
    "resolve_output",
]

RESERVED_PREFIX: Final = ".ztrio"
"""Names that start so belong to ztrio and are never a target or an input."""

_MAX_LINKS: Final = 40  # as the kernel has it: path_resolution(7)


@attrs.frozen
class Target:
    """A place in the workspace that a call wants to make or replace.

    Args:
        parameter: The tool's parameter that named it.
        policy: What the tool said about the parameter.
        path: Canonical absolute path: inside the workspace, free of links.
        parts: The same, relative to the workspace.
    """

    parameter: str
    policy: Output
    path: Path
    parts: tuple[str, ...]

    @property
    def key(self) -> tuple[str, ...]:
        """What calls queue on; equal, ancestor and descendant keys exclude each other."""
        return ("path", *self.path.parts)

    @property
    def name(self) -> str:
        """The target's name in its directory."""
        return self.parts[-1]


class _Refused(Exception):
    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code
        self.why = why


def resolve_output(workspace: Path, parameter: str, raw: str, policy: Output) -> Target:
    """Find out which place in the workspace `raw` names. A few metadata calls, no content is read.

    Args:
        workspace: The workspace's directory.
        parameter: The tool's parameter, for messages.
        raw: What the caller wrote: relative to the workspace, or absolute and inside it.
        policy: What the tool said about the parameter.

    Raises:
        InvalidArguments: `raw` is no path at all.
        OutputRefused: OUTPUT_OUTSIDE_WORKSPACE, OUTPUT_IS_SYMLINK, OUTPUT_NOT_WRITABLE, OUTPUT_EXISTS.
    """
    root = os.path.realpath(workspace)
    _check_text(parameter, raw)
    try:
        parts, found = _resolve(root, raw, follow_last=False)
        _check_place(parts)
        if found is not None:
            _check_existing(found.st_mode, policy)
    except _Refused as refused:
        raise _output_refused(parameter, raw, refused.code, refused.why) from None
    except OSError as error:
        raise _output_refused(parameter, raw, "OUTPUT_NOT_WRITABLE", f"cannot be reached: {error.strerror}") from error
    return Target(parameter, policy, Path(root, *parts), tuple(parts))


def resolve_input(workspace: Path, parameter: str, raw: str, policy: Input) -> Path:
    """Find out which existing file or directory of the workspace `raw` names; links that stay inside are followed.

    Args:
        workspace: The workspace's directory.
        parameter: The tool's parameter, for messages.
        raw: What the caller wrote: relative to the workspace, or absolute and inside it.
        policy: What the tool said about the parameter.

    Returns:
        The canonical absolute path.

    Raises:
        InvalidArguments: there is nothing of the right kind.
        OutputRefused: OUTPUT_OUTSIDE_WORKSPACE, also for ztrio's own files.
    """
    root = os.path.realpath(workspace)
    _check_text(parameter, raw)
    try:
        parts, found = _resolve(root, raw, follow_last=True)
        if any(map(_reserved, parts)):
            raise _Refused("OUTPUT_OUTSIDE_WORKSPACE", f"goes through a {RESERVED_PREFIX}* name, which is ztrio's own")
    except _Refused as refused:
        if refused.code == "OUTPUT_OUTSIDE_WORKSPACE":
            raise _output_refused(parameter, raw, refused.code, refused.why) from None
        raise _input_refused(parameter, raw, refused.why) from None
    except OSError as error:
        raise _input_refused(parameter, raw, f"cannot be reached: {error.strerror}") from error
    if found is None:
        raise _input_refused(parameter, raw, "does not exist")
    if policy.kind == "file" and not stat.S_ISREG(found.st_mode):
        raise _input_refused(parameter, raw, "is not a regular file")
    if policy.kind == "dir" and not stat.S_ISDIR(found.st_mode):
        raise _input_refused(parameter, raw, "is not a directory")
    return Path(root, *parts)


def refuse_overlap(targets: Sequence[Target]) -> None:
    """Refuse targets of one call that are equal or lie within one another.

    Raises:
        OutputRefused: OUTPUT_OVERLAP, naming both parameters.
    """
    ordered = sorted(targets, key=lambda target: target.parts)
    for first, second in pairwise(ordered):
        # Sorted by components, everything below a directory follows it directly.
        if second.parts[: len(first.parts)] == first.parts:
            raise OutputRefused(
                f"{first.parameter} ({first.path}) and {second.parameter} ({second.path}) overlap, so the one would "
                "overwrite the other; nothing was started. Name paths that do not contain each other.",
                code="OUTPUT_OVERLAP",
                parameters=[first.parameter, second.parameter],
            )


def refuse(target: Target, code: str, why: str) -> OutputRefused:
    """The refusal of a target, as a sentence."""
    return _output_refused(target.parameter, str(target.path), code, why)


def check_existing(target: Target, mode: int) -> None:
    """Refuse what stands at the target now.

    Raises:
        OutputRefused: OUTPUT_IS_SYMLINK, OUTPUT_NOT_WRITABLE or OUTPUT_EXISTS.
    """
    try:
        _check_existing(mode, target.policy)
    except _Refused as refused:
        raise refuse(target, refused.code, refused.why) from None


def open_parent(ops: FileOps, workspace: str, target: Target) -> int:
    """Open the directory that holds the target, following no link on the way from the workspace.

    Returns:
        A descriptor that the caller closes.

    Raises:
        OSError: a component is gone, or is not a directory any more (a link, for example).
    """
    fd = ops.open_directory(None, workspace)
    for name in target.parts[:-1]:
        try:
            below = ops.open_directory(fd, name)
        finally:
            os.close(fd)
        fd = below
    return fd


def _check_text(parameter: str, raw: str) -> None:
    try:
        usable = bool(raw) and b"\0" not in os.fsencode(raw)
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise InvalidArguments(f"{parameter}: {raw!r} is not a path; nothing was started. Name a path.")


def _check_place(parts: Sequence[str]) -> None:
    if not parts:
        raise _Refused("OUTPUT_OUTSIDE_WORKSPACE", "is the workspace itself")
    if any(map(_reserved, parts)):
        raise _Refused("OUTPUT_NOT_WRITABLE", f"goes through a {RESERVED_PREFIX}* name, which is ztrio's own")
    if not all(map(_encodable, parts)):
        raise _Refused("OUTPUT_NOT_WRITABLE", "leads through a name that is not UTF-8")


def _check_existing(mode: int, policy: Output) -> None:
    if stat.S_ISLNK(mode):
        raise _Refused("OUTPUT_IS_SYMLINK", "is a symbolic link; replacing it would leave what it points to as it is")
    if policy.kind == "file" and not stat.S_ISREG(mode):
        raise _Refused("OUTPUT_NOT_WRITABLE", "exists and is not a regular file")
    if policy.kind == "dir" and not stat.S_ISDIR(mode):
        raise _Refused("OUTPUT_NOT_WRITABLE", "exists and is not a directory")
    if policy.existing == "refuse":
        raise _Refused("OUTPUT_EXISTS", "exists, and this tool does not replace what exists")


def _encodable(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _reserved(name: str) -> bool:
    return name.casefold().startswith(RESERVED_PREFIX)  # file systems that ignore case exist


def _output_refused(parameter: str, raw: str, code: str, why: str) -> OutputRefused:
    return OutputRefused(
        f"{parameter}: {raw!r} {why}; nothing was started. Name another path inside the workspace.",
        code=code,
        parameter=parameter,
        path=raw,
    )


def _input_refused(parameter: str, raw: str, why: str) -> InvalidArguments:
    return InvalidArguments(
        f"{parameter}: {raw!r} {why}; nothing was started. Name an existing path inside the workspace.",
        parameter=parameter,
        path=raw,
    )


def _resolve(root: str, raw: str, *, follow_last: bool) -> tuple[list[str], os.stat_result | None]:
    """Walk `raw`; returns the canonical components below `root` and the status of the last (None: not there)."""
    pending = _steps(root, raw)
    names: list[str] = []
    fds = [os.open(root, SEARCH)]  # fds[0] is the root, fds[i] the directory names[i - 1]
    links = 0
    try:
        found = os.fstat(fds[0])
        while pending:
            name = pending.pop()
            if name == "..":
                if not names:
                    raise _Refused("OUTPUT_OUTSIDE_WORKSPACE", "leads outside the workspace")
                names.pop()
                os.close(fds.pop())
                found = os.fstat(fds[-1])
                continue
            try:
                found = os.stat(name, dir_fd=fds[-1], follow_symlinks=False)
            except OSError as error:
                if not is_missing(error):
                    raise
                if pending:
                    missing = os.path.join(root, *names, name)
                    raise _Refused("OUTPUT_NOT_WRITABLE", f"has no directory: {missing} does not exist") from None
                return [*names, name], None
            if stat.S_ISLNK(found.st_mode):
                if not pending and not follow_last:
                    return [*names, name], found
                links += 1
                if links > _MAX_LINKS:
                    raise _Refused("OUTPUT_NOT_WRITABLE", "goes through too many symbolic links")
                text = os.readlink(name, dir_fd=fds[-1])
                steps = _steps(root, text)
                if text.startswith("/"):
                    names.clear()
                    while len(fds) > 1:
                        os.close(fds.pop())
                pending += steps
            elif stat.S_ISDIR(found.st_mode):
                fds.append(os.open(name, SEARCH, dir_fd=fds[-1]))
                names.append(name)
            elif pending:
                place = os.path.join(root, *names, name)
                raise _Refused("OUTPUT_NOT_WRITABLE", f"has no directory: {place} is not one")
            else:
                return [*names, name], found
        return names, found
    finally:
        for fd in fds:
            os.close(fd)


def _steps(root: str, text: str) -> list[str]:
    """The components to walk from where we are, or from the root if `text` is absolute; the next one last."""
    steps = [step for step in text.split("/") if step not in ("", ".")]
    if text.startswith("/"):
        steps = steps[_depth_of_root(root, steps) :]
    return steps[::-1]


def _depth_of_root(root: str, steps: Sequence[str]) -> int:
    """How many leading components of an absolute path lead to the workspace, also under another name of it."""
    own = [step for step in root.split("/") if step]
    if list(steps[: len(own)]) == own:
        return len(own)
    wanted = os.stat(root)
    for depth in range(len(steps) + 1):
        try:
            reached = os.stat("/" + "/".join(steps[:depth]))
        except (OSError, ValueError):
            break
        if os.path.samestat(reached, wanted):
            return depth
    raise _Refused("OUTPUT_OUTSIDE_WORKSPACE", "lies outside the workspace")
