"""The scenes of the demo: each lets something happen to calls, and writes down what could be seen from outside.

What a scene is about is forced, not awaited by the clock: the tool says when its chart program runs, and the observer
waits until that program has half a file in staging. Only then does the client cancel, vanish, or let the time run out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import attrs
import trio
from mcp.client import Client
from mcp.shared.exceptions import MCPError

from ztrio_cli.demo.client import Answer, Server, audit_events, call
from ztrio_cli.demo.facts import Facts
from ztrio_cli.demo.observe import job_directories, read_tree, still_alive, unfinished_charts
from ztrio_cli.demo.observer import PATIENCE, Observer, observing, page_state

__all__ = ["SCENES", "Stage", "client_vanishes"]

TITLE: Final = "Harbour"
LONG: Final = 60.0  # seconds per chart where the call is not meant to end by itself
CLEAN_UP: Final = 3.0  # seconds that a call may take to remove its directory after its answer
SHORT: Final = 0.25  # seconds per chart where a reader shall have time to look
TIMEOUT: Final = 2.0  # seconds the tool gets in the timeout scene
PROMPT: Final = 2.0  # seconds in which a stopped call must be settled, on a machine that does other things too
LOOK: Final = 0.01  # seconds between two looks at the audit

EXPECTED_SITE: Final = (
    "site/index.html",
    "site/tides.html",
    "site/traffic.html",
    "site/style.css",
    "site/data-tides.svg",
    "site/data-arrivals.svg",
    "site/data-cargo.svg",
)


@attrs.define
class Stage:
    """What the scenes share."""

    client: Client
    server: Server
    # The highest `seq` of the scenes that are over; their events are not shown again.
    seen_seq: int = 0

    @property
    def workspace(self) -> Path:
        """The server's workspace."""
        return self.server.workspace

    async def build(self, *, site: str = "site", slow: float = 0.0, session: str = "default", **options: Any) -> Answer:
        """Call `build_site`; the site's title is the session's name, so that pages say who built them."""
        title = TITLE if session == "default" else session
        arguments = {"site": site, "title": title, "slow_charts": slow, "session": session}
        return await call(self.client, "build_site", arguments, **options)

    async def history(self, session: str) -> int:
        """How many builds the session remembers."""
        answer = await call(self.client, "build_history", {"session": session})
        return len(answer.value.get("result", ()))

    async def events(self) -> tuple[dict[str, Any], ...]:
        """The events of mutating calls since the last scene."""
        events = await audit_events(self.client, after=self.seen_seq)
        self.seen_seq = max((event["seq"] for event in events), default=self.seen_seq)
        return tuple(event for event in events if event.get("capability") in ("write", "destructive"))


async def _facts(
    stage: Stage,
    scene: str,
    observer: Observer,
    *answers: Answer,
    before: dict[str, str],
    began: float,
    limit: float,
    events: tuple[dict[str, Any], ...] | None = None,
    **extra: Any,
) -> Facts:
    seconds = extra.pop("seconds", trio.current_time() - began)
    alive = still_alive(observer.seen.values())
    leftovers = await _left_in(stage.workspace)
    after = read_tree(stage.workspace)
    return Facts(
        scene=scene,
        seconds=seconds,
        limit=limit,
        answers=answers,
        events=await stage.events() if events is None else events,
        before=before,
        after=after,
        sightings=tuple(observer.sightings),
        seen=tuple(observer.seen.values()),
        alive=tuple(alive),
        half_written=tuple(sorted(observer.half_written)),
        leftovers=tuple(leftovers),
        extra=extra,
    )


async def _left_in(workspace: Path) -> list[str]:
    """Job directories that stay: a call removes its own right after its answer, so the last one gets a moment."""
    with trio.move_on_after(CLEAN_UP):
        while job_directories(workspace):  # noqa: ASYNC110 - nobody tells
            await trio.sleep(0.01)
    return job_directories(workspace)


async def commit(stage: Stage) -> Facts:
    """A build that succeeds."""
    before, began = read_tree(stage.workspace), trio.current_time()
    async with observing(stage.server, (stage.workspace / "site").exists) as observer:
        answer = await stage.build(slow=SHORT)
        return await _facts(
            stage,
            "commit",
            observer,
            answer,
            before=before,
            began=began,
            limit=PATIENCE,
            history={"default": await stage.history("default")},
            expected_files=EXPECTED_SITE,
            unfinished=unfinished_charts(stage.workspace),
            target=str(stage.workspace / "site"),
        )


async def timeout(stage: Stage) -> Facts:
    """A build whose chart program hangs until its time is up."""
    before, began = read_tree(stage.workspace), trio.current_time()
    async with observing(stage.server, lambda: read_tree(stage.workspace)) as observer:
        answer = await stage.build(slow=LONG, timeout=TIMEOUT)
        return await _facts(
            stage,
            "timeout",
            observer,
            answer,
            before=before,
            began=began,
            limit=TIMEOUT + PROMPT,
            seconds=trio.current_time() - began,
            history={"default": await stage.history("default")},
        )


async def client_cancels(stage: Stage) -> Facts:
    """A build whose client loses interest and says so."""
    before = read_tree(stage.workspace)
    async with observing(stage.server, lambda: read_tree(stage.workspace)) as observer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_build_for_long, stage)
            await observer.wait_caught()
            began = trio.current_time()
            nursery.cancel_scope.cancel()
        events = await _settled(stage)
        return await _facts(
            stage,
            "client cancels",
            observer,
            before=before,
            began=began,
            limit=PROMPT,
            events=events,
            seconds=trio.current_time() - began,
            history={"default": await stage.history("default")},
        )


async def _build_for_long(stage: Stage) -> None:
    await stage.build(slow=LONG)


async def _settled(stage: Stage) -> tuple[dict[str, Any], ...]:
    """Look at the audit until the cancelled call has its last event: nobody is answered who has left."""
    events: tuple[dict[str, Any], ...] = ()
    with trio.move_on_after(PATIENCE):
        while not any(event["event"] in ("rollback", "commit", "unresolved") for event in events):
            await trio.sleep(LOOK)
            events += await stage.events()
    return events


async def tool_error(stage: Stage) -> Facts:
    """An import of a file whose fourth line is no number: the rows before it were written already."""
    before, began = read_tree(stage.workspace), trio.current_time()
    async with observing(stage.server, lambda: read_tree(stage.workspace)) as observer:
        arguments = {"source": "incoming/broken.csv", "data": "content/data/bathing.csv"}
        answer = await call(stage.client, "import_csv", arguments)
        return await _facts(stage, "tool error", observer, answer, before=before, began=began, limit=PATIENCE)


async def two_sessions(stage: Stage) -> Facts:
    """Two sessions build into one folder at the same time, and somebody reads its first page meanwhile."""
    site = stage.workspace / "site"
    before, began = read_tree(stage.workspace), trio.current_time()
    answers: dict[str, Answer] = {}

    async def build(session: str) -> None:
        answers[session] = await stage.build(slow=SHORT, session=session)

    async with observing(stage.server, lambda: page_state(site / "index.html")) as observer:
        async with trio.open_nursery() as nursery:
            for session in ("morning", "evening"):
                nursery.start_soon(build, session)
        return await _facts(
            stage,
            "two sessions, one target",
            observer,
            *answers.values(),
            before=before,
            began=began,
            limit=PATIENCE,
            history={session: await stage.history(session) for session in ("morning", "evening")},
            titles=sorted(page_state(page) for page in site.glob("*.html")),
            whole_versions=(TITLE, "morning", "evening"),
        )


async def destroyed_session(stage: Stage) -> Facts:
    """A session is opened, used and destroyed, and then used again."""
    handle = (await call(stage.client, "session_open", {})).value["session"]
    await call(stage.client, "add_page", {"page": "content/pilots.md", "title": "Pilots", "session": handle})
    await call(stage.client, "session_destroy", {"session": handle})
    await stage.events()
    before, began = read_tree(stage.workspace), trio.current_time()
    async with observing(stage.server, lambda: read_tree(stage.workspace)) as observer:
        answer = await stage.build(session=handle)
        read = await call(stage.client, "build_history", {"session": handle})
        return await _facts(
            stage, "destroyed session", observer, answer, before=before, began=began, limit=PATIENCE, read=read
        )


SCENES: Final = (commit, timeout, client_cancels, tool_error, two_sessions, destroyed_session)


async def client_vanishes(stage: Stage) -> Facts:
    """The client is gone in the middle of a build: the server's input ends. Last, because the server ends with it."""
    before = read_tree(stage.workspace)
    await stage.events()
    async with observing(stage.server, lambda: read_tree(stage.workspace)) as observer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_build_until_gone, stage)
            await observer.wait_caught()
            observer.see_everything()
            began = trio.current_time()
            ended_after = await stage.server.end_of_input()
            nursery.cancel_scope.cancel()
        recorded = tuple(_recorded(stage.workspace))
        return await _facts(
            stage,
            "client vanishes",
            observer,
            before=before,
            began=began,
            limit=5.0,
            seconds=trio.current_time() - began,
            events=tuple(
                event
                for event in sorted(recorded, key=lambda event: int(event["seq"]))
                if event["seq"] > stage.seen_seq and event.get("capability") == "write"
            ),
            ended_after=ended_after,
            status=stage.server.process.returncode,
            recorded=recorded,
        )


async def _build_until_gone(stage: Stage) -> None:
    try:
        await stage.build(slow=LONG)
    except MCPError:
        pass  # the connection closed: what this scene is about


def _recorded(workspace: Path) -> list[dict[str, Any]]:
    """The audit log in the store; a bad link of its hash chain stands in it as an event that no check accepts."""
    from ztrio_sql import StoreReader

    with StoreReader.open(workspace / ".ztrio" / "state.db") as reader:
        events = list(reader.export())
        problem = reader.verify().problem
    if problem is not None:
        events.append({"event": "damaged", "execution_job_id": problem, "seq": 0})
    return events
