"""Somebody who looks at files and processes all the time while a call runs.

It also tells when the moment has come that a scene is about: a chart program runs and has half a file in staging.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from ztrio_cli.demo.client import Server
from ztrio_cli.demo.facts import CHART_PROGRAM
from ztrio_cli.demo.observe import Process, below, processes, unfinished_charts

__all__ = ["PATIENCE", "Observer", "observing", "page_state"]

PATIENCE: Final = 20.0
"""Seconds until something that must happen is given up."""

_LOOK: Final = 0.01  # seconds between two looks


@attrs.define
class Observer:
    """Looks at files and processes all the time while a call runs."""

    server: Server
    look: Callable[[], Any]
    # Each different thing that `look` returned, once, in the order of appearance.
    sightings: list[Any] = attrs.field(factory=list)
    # Chart programs and the workers that run them, by pid; only grows.
    seen: dict[int, Process] = attrs.field(factory=dict)
    # Unfinished charts; only grows.
    half_written: set[str] = attrs.field(factory=set)
    # Set once a chart program was seen with half a file.
    caught: trio.Event = attrs.field(factory=trio.Event)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await trio.to_thread.run_sync(self._look)
            if self.half_written and self.seen:
                self.caught.set()
            await trio.sleep(_LOOK)

    async def wait_caught(self) -> None:
        """Wait until a chart program was seen with half a file; give up after `PATIENCE`."""
        with trio.move_on_after(PATIENCE):
            await self.caught.wait()

    def see_everything(self) -> None:
        """Count the server and all it started among the processes of the call: idle workers too."""
        table = processes()
        server = self.server.process.pid
        self.seen.update({process.pid: process for process in [table[server], *below(server, table)]})

    def _look(self) -> None:
        sighting = self.look()
        if sighting not in self.sightings:
            self.sightings.append(sighting)
        self.half_written |= set(unfinished_charts(self.server.workspace))
        descendants = below(self.server.process.pid, processes())
        # A worker leads a process group, in which its chart programs are; what made the worker, and serves other calls
        # too, is not in it. (Parents do not tell: a program whose worker was killed just now has another.)
        groups = {process.group for process in descendants if CHART_PROGRAM in process.command}
        self.seen.update({process.pid: process for process in descendants if process.group in groups})


@asynccontextmanager
async def observing(server: Server, look: Callable[[], Any]) -> AsyncIterator[Observer]:
    """Look once now, and then all the time until the block is left."""
    observer = Observer(server, look)
    await trio.to_thread.run_sync(observer._look)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(observer.run)
        yield observer
        nursery.cancel_scope.cancel()


def page_state(page: Path) -> str:
    """The site's title as the page shows it, if it is there and whole."""
    try:
        text = page.read_text(encoding="utf-8")
    except FileNotFoundError:
        return "missing"
    title = re.search(r"<strong>(.*?)</strong>", text)
    return title[1] if title and text.endswith("</html>\n") else "half written"
