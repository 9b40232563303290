"""Starting a Python process of ours: its own session, a socket, a pipe for what it prints, and a lifeline.

The lifeline is a pipe whose read end the process holds: when the supervisor ends, however that happens, the kernel
sends SIGKILL to the process's group (`prelude.hang_on`).
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from typing import Final

import attrs
import trio

from ztrio.workers.output import OutputPipe
from ztrio.workers.prelude import bind

__all__ = ["Program", "pipe", "start"]

# The first thing it does is to look whether the supervisor is there still: the rest takes a quarter of a second.
_BOOT: Final = (
    "import json, os, select, sys; poll = select.poll(); poll.register(int(sys.argv[2]), 0); "
    "poll.poll(0) and os._exit(1); sys.path[:] = json.loads(sys.argv[3]); "
    "from {module} import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)


@attrs.define(eq=False)
class Program:
    """A started process and what connects it with us.

    Args:
        process: The process, leader of its session and group; nobody else may wait for it.
        sock: Our end of its socket pair.
        output: Our end of the pipe that is its stdout and stderr.
        lifeline: The write end of its lifeline; -1 once cut.
    """

    process: trio.Process
    sock: socket.socket
    output: OutputPipe
    lifeline: int

    def cut_lifeline(self) -> None:
        """Close our end, which kills the group while its leader holds the other. Twice does nothing."""
        if self.lifeline >= 0:
            os.close(self.lifeline)
            self.lifeline = -1


async def start(module: str, pair: tuple[socket.socket, socket.socket], *, output_limit: int) -> Program:
    """Start `module.main(socket descriptor, lifeline descriptor)` in a new process.

    Args:
        module: Full name of the module.
        pair: Our end of its socket and its own, both owned from now on.
        output_limit: Bytes of its output that are kept.

    Raises:
        OSError: it cannot be started.
    """
    with ExitStack() as ours, ExitStack() as theirs:
        sock, far = pair
        ours.callback(sock.close)
        theirs.callback(far.close)
        output, printed = pipe(ours, theirs)
        # The child holds the read end here, so the roles are swapped.
        held, lifeline = pipe(theirs, ours)
        process = await trio.lowlevel.open_process(
            [sys.executable, "-I", "-c", _BOOT.format(module=module), str(far.fileno()), str(held), _search_path()],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
            pass_fds=(far.fileno(), held),
            start_new_session=True,
            env=_environment(),
        )
        # It does so itself when it has imported what it needs; the supervisor may be killed before.
        bind(held, process.pid)
        ours.pop_all()
    return Program(process, sock, OutputPipe(output, output_limit), lifeline)


def pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    """A pipe whose ends each belong to a stack: (read end, write end)."""
    read, write = os.pipe()
    reader.callback(os.close, read)
    writer.callback(os.close, write)
    return read, write


def _search_path() -> str:
    """This process's `sys.path` for a child that need not have the same current directory."""
    return json.dumps([os.path.abspath(entry) for entry in sys.path])  # noqa: PTH100 - Path would keep ''


def _environment() -> dict[str, str]:
    """The variables that every worker has; TMPDIR and what the tool declares come with the request."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in ("PATH", "HOME", "LANG", "TZ") or name.startswith("LC_")
    }
