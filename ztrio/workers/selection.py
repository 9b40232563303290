"""Which backend runs the workers: the strongest that works here, found out by opening it.

    auto      zygote, and where that cannot be used, spawn
    zygote    or nothing: the reason is the error
    spawn     at once

`spawn` stands on the lowest rung of the containment ladder, so it is no choice where a complete one is required.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import attrs

from ztrio.errors import InvalidArguments, UnsupportedPlatform
from ztrio.workers.backend import Backend, BackendSettings
from ztrio.workers.ladder import RungTrial, rungs_for

__all__ = ["BACKENDS", "open_backend"]

BACKENDS: Final = ("auto", "zygote", "spawn")


@asynccontextmanager
async def open_backend(settings: BackendSettings, choice: str = "auto") -> AsyncIterator[Backend]:
    """Open the backend that `choice` names.

    Args:
        settings: What every backend needs; its `containment` restricts the choice.
        choice: One of `BACKENDS`.

    Raises:
        InvalidArguments: there is no such backend or containment, or they do not go together.
        UnsupportedPlatform: this machine cannot contain workers as is required.
        WorkerFailed: the chosen backend cannot be used, naming the reason.
    """
    if choice not in BACKENDS:
        raise InvalidArguments(f"There is no backend {choice!r}; choose from {', '.join(BACKENDS)}.")
    allowed = rungs_for(settings.containment)
    if choice == "spawn" and "group" not in allowed:
        raise InvalidArguments(
            f"The spawn backend contains workers by their process group only, and containment is "
            f"{settings.containment!r}. Nothing was started; use the zygote backend."
        )
    tried: list[RungTrial] = []
    rungs: tuple[RungTrial, ...] = ()
    async with AsyncExitStack() as stack:
        backend: Backend | None = None
        if choice != "spawn":
            backend, refusal, rungs = await _try_zygote(stack, settings, choice)
            tried.append(RungTrial("zygote", backend is not None, refusal))
        if backend is None:
            if "group" not in allowed:
                raise UnsupportedPlatform(
                    f"Workers cannot be contained as required ({settings.containment}): {tried[0].reason}. Nothing was "
                    "started. See `ztrio doctor`, or allow containment='auto'."
                )
            from ztrio.workers.spawn import open_spawn_backend  # noqa: PLC0415 - imports what only POSIX has

            backend = await stack.enter_async_context(open_spawn_backend(settings))
            tried.append(RungTrial("spawn", works=True))
        backend.report = attrs.evolve(backend.report, rungs=rungs or backend.report.rungs, backends=tuple(tried))
        yield backend


async def _try_zygote(
    stack: AsyncExitStack, settings: BackendSettings, choice: str
) -> tuple[Backend | None, str, tuple[RungTrial, ...]]:
    """The zygote backend, or why not and which rungs were tried."""
    if sys.platform != "linux":
        if choice == "zygote":
            raise UnsupportedPlatform("The zygote backend needs Linux. Nothing was started; use spawn.")
        return None, "it needs Linux", ()
    from ztrio.workers.zygote import Refused, open_zygote_backend  # noqa: PLC0415 - imports what only Linux has

    try:
        return await stack.enter_async_context(open_zygote_backend(settings)), "", ()
    except Refused as refusal:
        if choice == "zygote":
            raise
        return None, str(refusal.details["reason"]), refusal.trials
