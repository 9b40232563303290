"""The supervisor's end of one fork server: starting it, asking it for workers, seeing it end.

One task reads what it sends. Messages to it are small and go out at once; when the socket is full they wait in line for
the other task. Whoever waits for an answer waits until it comes or the fork server has ended, and a worker that arrives
for nobody is killed where it arrives.
"""

from __future__ import annotations

import os
import signal
import socket
from collections import deque
from pathlib import Path
from typing import Final, TypeVar

import attrs
import msgspec
import trio

from ztrio.errors import WorkerFailed
from ztrio.workers import control
from ztrio.workers.backend import BackendSettings
from ztrio.workers.job_init import AGREED
from ztrio.workers.ladder import RungTrial
from ztrio.workers.pool import start_failed
from ztrio.workers.programs import Program, start

__all__ = ["Answer", "ForkServerLink", "Refused", "ServerGone"]

_OUTPUT_LIMIT: Final = 64 * 1024  # bytes; what loading prints
_END_BOUND: Final = 2.0  # seconds for the launcher to see everything dead

_T = TypeVar("_T")


class ServerGone(Exception):
    """The fork server ended before it answered."""


class Refused(WorkerFailed):
    """This machine or this toolbox cannot be served by a fork server; another backend may do.

    Attributes:
        trials: The rungs that were tried.
    """

    trials: tuple[RungTrial, ...] = ()


@attrs.define(eq=False)
class Answer:
    """What somebody waits for.

    Attributes:
        come: Set when it is there, or never will be.
        message: The message; None when the fork server ended first.
        descriptors: What came with it.
    """

    come: trio.Event = attrs.field(factory=trio.Event)
    message: control.Message | None = None
    descriptors: tuple[int, ...] = ()


class ForkServerLink:
    """One launcher with its fork server. Made by `launch`; `run` must run in some nursery.

    Attributes:
        rung: The rung that its workers stand on.
        trials: The rungs that were tried.
        died: Set when the fork server has ended or is about to.
        ended: Set when the launcher has ended.
        workers: Workers whose end is not proven; it is hung up when it is retired and there are none.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._sock = program.sock
        self._sock.setblocking(False)
        self.rung = ""
        self.trials: tuple[RungTrial, ...] = ()
        self.died = trio.Event()
        self.ended = trio.Event()
        self.workers = 0
        # Whether a newer one has taken its place.
        self._retired = False
        # Who waits for which message: its class, and the worker's number (the class again where there is none).
        self._waiting: dict[tuple[type[object], object], Answer] = {}
        # Messages that found the socket full, with descriptors of our own; at most one per call.
        self._outbox: deque[tuple[control.Message, tuple[int, ...]]] = deque()
        self._outgoing = trio.Event()
        self._next_job = 0

    @classmethod
    async def launch(cls) -> ForkServerLink:
        """Start a launcher. It does nothing until `choose`.

        Raises:
            OSError: it cannot be started.
        """
        return cls(await start("ztrio.workers.launcher", control.make_pair(), output_limit=_OUTPUT_LIMIT))

    # ---- tasks

    async def run(self) -> None:
        """Read, write, and see the end; runs beside everything else, until `close`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._program.output.drain)
            nursery.start_soon(self._write)
            nursery.start_soon(self._read)
            await self._program.process.wait()
            self._read_rest()
            self.died.set()
            self.ended.set()
            self._release_waiting()
            nursery.cancel_scope.cancel()

    async def _read(self) -> None:
        try:
            while True:
                await trio.lowlevel.wait_readable(self._sock)
                try:
                    received = control.receive(self._sock)
                except BlockingIOError:
                    continue  # the launcher ended in the same moment, and `_read_rest` was first
                if received is None:
                    break
                self._deliver(*received)
        except (trio.ClosedResourceError, msgspec.MsgspecError):
            pass  # closed here; or a tool got hold of the socket, so that nothing can be believed any more
        self.died.set()
        self._release_waiting()
        self.hang_up()

    def _read_rest(self) -> None:
        """Deliver what the launcher said before it ended and nobody has read yet."""
        try:
            while (received := control.receive(self._sock)) is not None:
                self._deliver(*received)
        except (OSError, msgspec.MsgspecError):
            pass  # nothing is left; or closed here

    def _deliver(self, message: control.Message, descriptors: tuple[int, ...]) -> None:
        kind = control.Born if isinstance(message, control.NotBorn) else type(message)
        answer = self._waiting.pop((kind, getattr(message, "job", kind)), None)
        if answer is None:
            self._turn_away(message, descriptors)
            return
        answer.message, answer.descriptors = message, descriptors
        answer.come.set()

    def _release_waiting(self) -> None:
        for answer in self._waiting.values():
            answer.come.set()
        self._waiting.clear()

    async def _write(self) -> None:
        while True:
            await self._outgoing.wait()
            try:
                await trio.lowlevel.wait_writable(self._sock)
            except trio.ClosedResourceError:
                return
            while self._outbox and self._send_now(*self._outbox[0]):
                for fd in self._outbox.popleft()[1]:
                    os.close(fd)
            if not self._outbox:
                self._outgoing = trio.Event()

    # ---- messages

    def _send(self, message: control.Message, descriptors: tuple[int, ...] = ()) -> None:
        if self._outbox or not self._send_now(message, descriptors):
            self._outbox.append((message, tuple(os.dup(fd) for fd in descriptors)))
            self._outgoing.set()

    def _send_now(self, message: control.Message, descriptors: tuple[int, ...]) -> bool:
        """Send; False when there is no room. Where nobody listens any more, the end is seen by reading."""
        try:
            control.send(self._sock, message, descriptors)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    async def _ask(
        self, message: control.Message, key: object, kind: type[_T], descriptors: tuple[int, ...] = ()
    ) -> tuple[_T | control.NotBorn, tuple[int, ...]]:
        if self.died.is_set():
            await trio.lowlevel.checkpoint()
            raise ServerGone
        answer = self._waiting[kind, key] = Answer()
        self._send(message, descriptors)
        try:
            await answer.come.wait()
        except BaseException:
            # What arrives now arrives for nobody; so does what has arrived between the cancellation and this.
            self._waiting.pop((kind, key), None)
            self._turn_away(answer.message, answer.descriptors)
            raise
        if answer.message is None:
            raise ServerGone
        assert isinstance(answer.message, kind | control.NotBorn)
        return answer.message, answer.descriptors

    async def choose(self, rungs: tuple[str, ...], cgroup: Path | None, *, try_all: bool = False) -> None:
        """Let the launcher try rungs and take the first that works.

        Raises:
            Refused: none works; its `trials` say why.
            ServerGone: the launcher ended.
        """
        launch = control.Launch(list(rungs), None if cgroup is None else str(cgroup), try_all)
        launched, _ = await self._ask(launch, control.Launched, control.Launched)
        assert isinstance(launched, control.Launched)
        self.trials = tuple(RungTrial(trial.rung, trial.works, trial.reason) for trial in launched.trials)
        if launched.rung is None:
            reasons = "; ".join(f"{trial.name}: {trial.reason}" for trial in self.trials)
            raise _refused(f"no way to contain a worker works here ({reasons})", self)
        self.rung = launched.rung

    async def preload(self, settings: BackendSettings) -> None:
        """Let the fork server load everything.

        Raises:
            Refused: loading started a thread.
            WorkerFailed: something cannot be loaded.
            ServerGone: it ended meanwhile.
        """
        boot = control.Boot(list(settings.modules), list(settings.functions))
        loaded, _ = await self._ask(boot, control.Preloaded, control.Preloaded)
        assert isinstance(loaded, control.Preloaded)
        if loaded.problem is not None:
            raise start_failed(loaded.problem, self.output_tail())
        if loaded.threads > 1:
            culprit = loaded.culprit or "one of the toolbox's modules"
            raise _refused(f"loading {culprit} starts a thread, which a forked worker would not have", self)

    async def fork(self, descriptors: tuple[int, ...], *, wanted: bool) -> tuple[control.Born, int, Answer]:
        """Have a worker forked.

        Args:
            descriptors: Its socket and so on, see `control.Spawn`; they stay the caller's.
            wanted: Whether a call waits for it.

        Returns:
            What the fork server says, the pidfd, and where a `control.Ended` will be.

        Raises:
            WorkerFailed: it could not be forked.
            ServerGone: the fork server ended.
        """
        self._next_job += 1
        job = self._next_job
        end = self._waiting[control.Ended, job] = Answer()
        try:
            born, received = await self._ask(control.Spawn(job, wanted), job, control.Born, descriptors)
            if isinstance(born, control.NotBorn):
                raise start_failed(born.problem, "")
        except BaseException:
            self._waiting.pop((control.Ended, job), None)
            raise
        return born, received[0], end

    async def sweep(self, job: int) -> bool:
        """On the rung `job-init`: have everything killed that a killed guard left; False when nobody can any more."""
        try:
            await self._ask(control.Sweep(job), job, control.Swept)
        except ServerGone:
            return False
        return True

    def reap(self, job: int) -> None:
        """The worker's end is proven, or will never be: the fork server may forget it."""
        self._waiting.pop((control.Ended, job), None)
        self._send(control.Reap(job))

    def _turn_away(self, message: control.Message | None, descriptors: tuple[int, ...]) -> None:
        """Have a worker that nobody waits for killed and forgotten."""
        if isinstance(message, control.Born):
            for pidfd in descriptors:
                try:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                except ProcessLookupError:
                    pass  # dead, and reaped when its fork server died
                os.close(pidfd)
            self.reap(message.job)

    # ---- the end

    @property
    def saw_all_dead(self) -> bool:
        """Whether the launcher has ended after seeing every descendant of its own dead."""
        return self._program.process.returncode == AGREED

    @property
    def pid(self) -> int:
        """Process id of the launcher."""
        return self._program.process.pid

    def output_tail(self) -> str:
        """The last of what launcher and fork server printed."""
        self._program.output.drain_now()
        return self._program.output.ring.tail()

    def retire(self) -> None:
        """A newer one has taken its place: hang up when its last worker has ended."""
        self._retired = True
        self.worker_gone(0)

    def worker_gone(self, count: int = 1) -> None:
        """The end of a worker is proven, or will never be."""
        self.workers -= count
        if self._retired and self.workers <= 0:
            self.hang_up()

    def hang_up(self) -> None:
        """Let the fork server end, and with it everything it made."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended

    async def close(self) -> None:
        """Hang up, wait for the launcher, kill it where it does not end in time, and close everything."""
        self.hang_up()
        with trio.move_on_after(_END_BOUND):
            await self.ended.wait()
        if not self.ended.is_set():
            self._program.process.kill()
            with trio.move_on_after(_END_BOUND):
                await self.ended.wait()
        self.release()

    def release(self) -> None:
        """Close everything; the launcher, if it still runs, is killed by that."""
        self._program.cut_lifeline()
        self._program.output.close()
        while self._outbox:
            for fd in self._outbox.popleft()[1]:
                os.close(fd)
        if self._sock.fileno() >= 0:
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()


def _refused(reason: str, link: ForkServerLink) -> Refused:
    error = start_failed(reason, link.output_tail())
    refusal = Refused(error.message, code=error.code, **error.details)
    refusal.trials = link.trials
    return refusal
