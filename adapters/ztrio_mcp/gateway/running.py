"""One `ztrio wrap` process, from its first byte to its exit status.

The order of the end matters. When the client's input has ended, what it asked for is still answered for a moment. Then
the registry is told that it is closing, so that calls in flight make no entries for callers who are gone: the journal
has them. Then the calls are cancelled, the server is stopped in order, and what the store is still to know is written.
Every step has its bound, and together they fit into `EXIT_BOUND`; with it, or a second signal, the process ends at
once, and the init of the server ends everything beneath it.
"""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import structlog
import trio

from ztrio.audit import AuditBus
from ztrio.errors import ZtrioError
from ztrio.management.server import serve_operators
from ztrio.pending import PendingSettings, ServerPolicy
from ztrio.redaction import Redactor
from ztrio.store import Store
from ztrio.tracking.desk import Desk
from ztrio.tracking.journal import FileJournal
from ztrio.tracking.journalled import JournalledStore
from ztrio.tracking.notices import Notify
from ztrio.tracking.restoring import take_up
from ztrio.tracking.tracker import Tracker
from ztrio_mcp.claimed import claimed_stdio
from ztrio_mcp.gateway.gateway import Gateway
from ztrio_mcp.gateway.settings import GatewaySettings
from ztrio_mcp.life import FAILURE_STATUS, Ending, LiveWorkers, live

__all__ = ["OpenStore", "run_wrap", "serve_client"]

OpenStore = Callable[[], AbstractAsyncContextManager[Store]]

_LAST_ANSWERS: Final = 1.0  # seconds for what the client asked before its input ended
_LAST_WRITE: Final = 0.3  # seconds for what the store is still to know

_log: Final = structlog.get_logger("ztrio.gateway")


def run_wrap(
    command: tuple[str, ...],
    settings: GatewaySettings,
    *,
    instance: Path,
    open_store: OpenStore,
    journal: Path,
    notify: Notify | None,
    redact: Redactor | None,
) -> int:
    """Stand between the client on stdin and stdout and a server until the client is gone or a signal comes.

    Args:
        command: The server's program and its arguments.
        settings: What the operator has set.
        instance: The directory of this gateway, whose lock the caller holds.
        open_store: Opens its store.
        journal: The file for sent writes.
        notify: The log of what becomes of calls.
        redact: Takes secrets out of what enters the audit.

    Returns:
        The exit status: 0 when the client is gone, 128 + signal, 1 after a failure of the gateway itself.

    Raises:
        ZtrioError: it cannot start; nothing was served.
    """
    with claimed_stdio() as fds:
        try:
            return trio.run(_main, command, settings, instance, open_store, journal, notify, redact, fds)
        except ZtrioError:
            raise
        except Exception:  # noqa: BLE001 - a process reports its failure by its status
            traceback.print_exc(file=sys.stderr)
            return FAILURE_STATUS


async def _main(
    command: tuple[str, ...],
    settings: GatewaySettings,
    instance: Path,
    open_store: OpenStore,
    journal: Path,
    notify: Notify | None,
    redact: Redactor | None,
    fds: tuple[int, int],
) -> int:
    async def serve(ending: Ending, _workers: LiveWorkers, serving: Callable[[], object]) -> None:
        async with open_store() as store:
            with FileJournal(journal) as file:
                kept = JournalledStore(store, file)
                serving()
                await serve_client(
                    command,
                    settings,
                    store=cast("Store", kept),
                    sync=kept.sync_pending if settings.journal_sync == "power" else None,
                    instance=instance,
                    fds=fds,
                    ending=ending,
                    notify=notify,
                    redact=redact,
                )

    return await live(serve)


async def serve_client(
    command: tuple[str, ...],
    settings: GatewaySettings,
    *,
    store: Store,
    instance: Path,
    fds: tuple[int, int],
    ending: Ending,
    notify: Notify | None = None,
    redact: Redactor | None = None,
    **options: Any,
) -> None:
    """Serve one client until it is gone or `ending` is asked for, then end everything in order.

    Args:
        command: The server's program and its arguments.
        settings: What the operator has set.
        store: Where things are kept.
        instance: The directory of the operator's socket.
        fds: File descriptors to read the client's frames from and to write ours to.
        ending: Ends the serving; told when the client is gone.
        notify: The log of what becomes of calls.
        redact: Takes secrets out of what enters the audit.
        options: For `Gateway`.

    Raises:
        ZtrioError: it cannot start; nothing was served.
    """
    audit = AuditBus(recorder=store.record, redact=redact)
    store.watch(audit.follow_store)
    policy = ServerPolicy(mode=settings.gate, on_expire=settings.on_expire, on_reset=settings.on_reset)
    pending = PendingSettings(mode=settings.gate, servers={settings.name: policy})
    tracker = Tracker(pending, audit=audit, store=store, notify=notify)
    try:
        await take_up(tracker, store, "")
        gateway = partial(
            Gateway,
            command,
            settings,
            tracker=tracker,
            desk=Desk(tracker, store.secret),
            audit=audit,
            secret=store.secret,
            fds=fds,
            tell=notify,
            **options,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_serve, gateway, tracker, instance, ending)
            try:
                await ending.wait()
            finally:
                ending.request("shutdown", FAILURE_STATUS)  # we are being cancelled from outside
    finally:
        with trio.move_on_after(_LAST_WRITE, shield=True):
            await tracker.records.flush()
        audit.close()


async def _serve(make: Callable[..., Gateway], tracker: Tracker, instance: Path, ending: Ending) -> None:
    """Serve until the end is asked for, then wind down.

    Shielded: a cancellation from outside asks for the end like everything else. Winding down is bounded.
    """
    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as background:
            background.start_soon(tracker.expire)
            background.start_soon(tracker.records.run)
            async with trio.open_nursery() as nursery:
                gateway = make(nursery=nursery)
                async with serve_operators(gateway.subject, instance, trouble=_no_operator):
                    gc.collect()
                    gc.freeze()  # what is loaded by now stays: to look at it again takes tens of milliseconds
                    nursery.start_soon(_watch_client, gateway, ending)
                    gateway.start()
                    cause = await ending.wait()
                    await _wind_down(gateway, tracker, cause)
                nursery.cancel_scope.cancel()
            background.cancel_scope.cancel()


async def _watch_client(gateway: Gateway, ending: Ending) -> None:
    """Read what the client sends; when that ends, so does everything."""
    try:
        await gateway.client.run()
    finally:
        ending.request("client_gone", 0)


async def _wind_down(gateway: Gateway, tracker: Tracker, cause: str) -> None:
    if cause == "client_gone":
        with trio.move_on_after(_LAST_ANSWERS):
            await gateway.answered()
    tracker.closing = True
    gateway.leave_calls()
    await gateway.stop()


def _no_operator(why: str) -> None:
    _log.warning("no operator can reach this gateway", because=why)
