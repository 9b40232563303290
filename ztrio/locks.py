"""One process at a time: a lock file beside what it protects, with the owner's pid in it.

`flock`, because it belongs to the open file and not to the process: a library that opens and closes the same file
elsewhere in the process cannot lose it for us, as it does with POSIX locks. For the same reason it is never taken on a
database file itself, whose own locks are POSIX ones. The lock ends with the process, whatever ends that; the file
stays, since removing it would let a third process lock a file that no longer has a name. What the file says is only
believed while somebody holds the lock.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from ztrio.errors import AlreadyInUse, StoreUnavailable

if os.name == "posix" and sys.platform != "win32":  # elsewhere it can only be imported, and that must work
    import fcntl

__all__ = ["ProcessLock"]

_FLAGS: Final = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


class ProcessLock:
    """A lock that one process holds until it is released or the process ends. Children do not inherit it across exec.

    Args:
        path: The lock file; made with mode 0600.
        what: What is protected, for the message: "the workspace /srv/boards".
        code: The code of the refusal.
    """

    def __init__(self, path: Path, *, what: str, code: Literal["WORKSPACE_BUSY", "STORE_BUSY", "GATEWAY_BUSY"]) -> None:
        self._path = path
        self._what = what
        self._code = code
        # The locked file while the lock is held, else None.
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._fd is not None

    def acquire(self) -> None:
        """Take the lock, now or never.

        Raises:
            AlreadyInUse: somebody holds it; `details` has its `pid` where that is known.
            StoreUnavailable: the file cannot be made or locked.
        """
        assert self._fd is None
        try:
            fd = os.open(self._path, _FLAGS, 0o600)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        except BlockingIOError:
            owner = _owner(fd)
            os.close(fd)
            raise self._refusal(owner) from None
        except OSError as error:
            if error.errno != errno.ENOSPC:
                os.close(fd)
                raise self._unusable(error) from error
            # Locked, and that is what counts; there is no room for the pid.
        self._fd = fd

    def release(self) -> None:
        """Give the lock back. Idempotent."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def _refusal(self, owner: int | None) -> AlreadyInUse:
        if owner is None:
            return AlreadyInUse(
                f"Another process uses {self._what}. Nothing was started; end it first.", code=self._code
            )
        who = "This process itself" if owner == os.getpid() else f"Process {owner}"
        return AlreadyInUse(
            f"{who} uses {self._what}. Nothing was started; end that first.", code=self._code, pid=owner
        )

    def _unusable(self, error: OSError) -> StoreUnavailable:
        return StoreUnavailable(
            f"The lock file {self._path} of {self._what} cannot be used: {error.strerror or error}. "
            "Nothing was started."
        )


def _owner(fd: int) -> int | None:
    try:
        return int(os.pread(fd, 32, 0))
    except (OSError, ValueError):
        return None
