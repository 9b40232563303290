"""What the tests of idempotency keys share: a tool that waits and fails on demand, and callers that come and go."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

import ztrio
from tests.supervisor.support import Log, nothing_left, opened, play, settle
from ztrio import CallResult, Outcome
from ztrio.testing import ScriptedCall


@attrs.define
class Runs:
    """A script that counts, waits for a word where it is to, and fails where it is to."""

    count: int = 0
    # Set to let every run go on; none waits once it is set.
    go: trio.Event = attrs.field(factory=trio.Event)
    # How many of the first runs fail.
    failures: int = 0

    async def __call__(self, call: ScriptedCall) -> Any:
        self.count += 1
        number = self.count
        await self.go.wait()
        if number <= self.failures:
            raise ValueError("not this time")
        await play(call)
        return {"run": number}


@attrs.define
class Caller:
    """Calls in tasks of their own, and what came of them."""

    supervisor: ztrio.Supervisor
    nursery: trio.Nursery
    answers: dict[str, CallResult | ztrio.ZtrioError] = attrs.field(factory=dict)

    async def begin(self, name: str, tool: str = "export", **options: Any) -> trio.CancelScope:
        """Begin a call and let everything happen that needs no time; cancelling the scope is its caller's leaving."""
        scope = trio.CancelScope()
        options.setdefault("idempotency_key", "k")

        async def call() -> None:
            with scope:
                try:
                    self.answers[name] = await self.supervisor.call(tool, options.pop("arguments", OUT), **options)
                except ztrio.ZtrioError as error:
                    self.answers[name] = error

        self.nursery.start_soon(call)
        await settle()
        return scope


OUT = {"out": "out"}


@asynccontextmanager
async def calling(workspace: Path, script: Any = None, **options: Any) -> AsyncIterator[tuple[Caller, Log]]:
    """A supervisor to make calls of; nothing may be left of them at the end."""
    async with opened(workspace, script, **options) as (supervisor, log), trio.open_nursery() as nursery:
        yield Caller(supervisor, nursery), log
        await nothing_left(supervisor, workspace)


async def refused(supervisor: ztrio.Supervisor, tool: str, arguments: Any, **options: Any) -> ztrio.ZtrioError:
    """The error that a call ends with."""
    with pytest.raises(ztrio.ZtrioError) as caught:
        await supervisor.call(tool, arguments, **options)
    return caught.value


def stood(error: ztrio.ZtrioError) -> tuple[str, str | None, Outcome | None]:
    """What a caller decides by."""
    return error.code, error.job_id, error.outcome
