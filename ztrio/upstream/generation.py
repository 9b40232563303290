"""One generation of a server under a keeper: started, served, and put down, with a bound on each step.

It is served until its stdout ends, also while it is being stopped: what a server still answers when its stdin has ended
is an answer. It is also served on when the program that was started has exited and what that started has the pipes
(R02): the end is that of the stream, or of the tree. What nobody serves is still read, and thrown away.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import trio

from ztrio.upstream.process import ServerProcess
from ztrio.upstream.words import Death, Timing

__all__ = ["Generation", "Wishes", "any_of"]

_LAST_WORDS: Final = 0.25  # seconds from the end of a server's stdout to that of its process, where it ends by itself


@attrs.frozen(eq=False)
class Wishes:
    """What is wanted of a keeper for good.

    Args:
        stop: To stop.
        force: To wait for no graces.
    """

    stop: trio.Event = attrs.field(factory=trio.Event)
    force: trio.Event = attrs.field(factory=trio.Event)


@attrs.define(eq=False)
class Generation:
    """One run of a server.

    Args:
        process: The process.
        serve: Serves it.
        timing: How long things may take.
        wishes: What is wanted of its keeper.
        moved: Told that it is `ready`, `ending` or `stopping`.
    """

    process: ServerProcess
    _serve: Callable[[Generation], Awaitable[None]]
    _timing: Timing
    _wishes: Wishes
    _moved: Callable[[str], object]
    # It has been ready.
    _up: trio.Event = attrs.field(factory=trio.Event, init=False)
    # Nobody serves it any more.
    _unserved: trio.Event = attrs.field(factory=trio.Event, init=False)
    # Somebody wishes its end.
    _unwanted: trio.Event = attrs.field(factory=trio.Event, init=False)
    # Why it is ended: by that wish, or because something was wrong with it; None while that is not so.
    _killed: str | None = attrs.field(default=None, init=False)
    _trouble: str | None = attrs.field(default=None, init=False)

    @property
    def epoch(self) -> int:
        """Its number."""
        return self.process.epoch

    def ready(self) -> None:
        """The handshake is done."""
        self._up.set()
        self._moved("ready")

    # ---- for its keeper

    def kill(self, why: str) -> None:
        """End it at once, unless it has ended.

        Args:
            why: What somebody will read after "was killed: ".
        """
        if self._killed is None and not self.process.dead.is_set():
            self._killed = f"was killed: {why}"
            self._unwanted.set()
            self._moved("ending")

    async def conduct(self) -> None:
        """See it from its start to the proof of its death. Being cancelled kills it."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.process.run, self._timing.kill_bound)
                await self._live(nursery)
                if await self._put_down():  # what is left in its stdout is read, for a moment
                    await any_of(self._unserved, self._wishes.force, patience=self._timing.drain)
                nursery.cancel_scope.cancel()
        finally:
            self.process.close()

    def death(self) -> Death:
        """What is known of its end."""
        return self.process.death(expected=self._asked, why=self._killed or self._trouble)

    @property
    def _asked(self) -> bool:
        """Whether somebody wishes its end."""
        return self._killed is not None or self._wishes.stop.is_set()

    async def _live(self, nursery: trio.Nursery) -> None:
        """Have it served from its start on, until it is to be put down."""
        process, patience = self.process, self._timing.start_timeout
        wishes = self._wishes.stop, self._unwanted
        until = trio.current_time() + patience
        await any_of(process.started, *wishes, patience=patience)
        if process.dead.is_set() or self._asked:
            self._unserved.set()
            nursery.start_soon(process.discard)
            return
        nursery.start_soon(self._serve_it)
        if not await any_of(self._up, self._unserved, process.dead, *wishes, patience=until - trio.current_time()):
            self._trouble = f"did not become ready within {patience:g} s"
            return
        await any_of(self._unserved, process.dead, *wishes)
        if self._trouble is not None or process.dead.is_set() or self._asked:
            return
        # Most often the end of a server is seen by that of its stdout first.
        if not await any_of(process.exited, *wishes, patience=_LAST_WORDS):
            self._trouble = "was killed, because its connection had ended and it had not"

    async def _serve_it(self) -> None:
        try:
            await self._serve(self)
        except* Exception as failures:  # noqa: BLE001 - whatever it stumbled over, the connection is of no use
            self._trouble = self._said(failures)
        self._unserved.set()
        self._moved("ending")
        await self.process.discard()

    def _said(self, failure: BaseException) -> str:
        while isinstance(failure, BaseExceptionGroup):
            failure = failure.exceptions[0]
        if isinstance(failure, trio.TooSlowError) and not self._up.is_set():
            return "did not become ready in time"
        return f"was ended because its connection failed: {str(failure) or type(failure).__name__}"

    async def _put_down(self) -> bool:
        """End it, and wait for the proof; whether that came in time.

        In order when we are asked to stop; otherwise nothing is left to wait for.
        """
        process, timing, force = self.process, self._timing, self._wishes.force
        if self._wishes.stop.is_set():
            self._moved("stopping")
            process.close_stdin()
            if not await any_of(process.dead, force, patience=timing.eof_grace):
                process.terminate()
                await any_of(process.dead, force, patience=timing.term_grace)
        else:
            self._moved("ending")
        if not process.dead.is_set():
            process.kill()
        proven = await any_of(process.dead, patience=timing.kill_bound)
        process.give_up()
        return proven


async def any_of(*events: trio.Event, patience: float = math.inf) -> bool:
    """Wait for the first of these.

    Args:
        events: They.
        patience: For so many seconds.

    Returns:
        Whether there was one.
    """
    with trio.move_on_after(patience):
        async with trio.open_nursery() as nursery:
            for event in events:
                nursery.start_soon(_cancel_after, event, nursery.cancel_scope)
    return any(event.is_set() for event in events)


async def _cancel_after(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
