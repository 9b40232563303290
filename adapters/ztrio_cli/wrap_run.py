"""What `ztrio wrap` does, once its command line is read: take a place, start the gateway, end with its status.

An MCP client starts this command whenever it starts, and waits for it. So nothing is imported that a gateway does not
need, least of all the MCP SDK; and the database, which takes as long as half of the rest, while the server starts.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from pathlib import Path

import attrs
import structlog
import trio

from ztrio.errors import ZtrioError
from ztrio.store import Store
from ztrio_cli.console import FAILED, USAGE, Complaint, note, one_line
from ztrio_cli.instances import Instance, check_name, take
from ztrio_cli.logs import configure_logging
from ztrio_cli.redaction import load_soon, redact
from ztrio_cli.wrap_settings import read_settings
from ztrio_cli.wrap_words import Wrap
from ztrio_mcp.gateway.settings import GatewaySettings

__all__ = ["run"]


def run(words: Wrap) -> int:
    """Stand between the client on stdin and stdout and a server until the client is gone or a signal comes.

    Args:
        words: The command line.

    Returns:
        The exit status: 0 when the client is gone, 128 + signal, 1 after a failure, 2 when the words are wrong.
    """
    try:
        if not words.command or not words.command[0]:
            raise Complaint(
                "USAGE",
                "give the server's command after --, as in: ztrio wrap -- npx -y some-server",
                status=USAGE,
            )
        configure_logging(words.log_level, as_json=words.as_json)
        # Whatever is wrong with them is said before a directory is made for the name.
        name = "unnamed" if words.name is None else check_name(words.name)
        settings = read_settings(words.settings, words.config, name=name)
        log = structlog.get_logger("ztrio")
        load_soon()
        with take(words.name, words.command, _here()) as instance:
            log.info(
                "wrapping",
                name=instance.name,
                program=words.command[0],  # no arguments: they may hold secrets
                gate=str(settings.gate),
                state=str(instance.folder),
            )
            status = _serve(words.command, attrs.evolve(settings, name=instance.name), instance, log.warning)
    except (ZtrioError, Complaint) as error:
        # Not on stdout, whatever the format: the client would take it for a frame.
        plain = f"error: {error.code}: {one_line(error.message)}"
        note(json.dumps({"error": error.as_dict()}) if words.as_json else plain)
        return error.status if isinstance(error, Complaint) else FAILED
    log.info("ended", status=status)
    return status


def _serve(command: tuple[str, ...], settings: GatewaySettings, instance: Instance, say: Callable[..., object]) -> int:
    from ztrio_mcp.gateway.running import run_wrap

    return run_wrap(
        command,
        settings,
        instance=instance.folder,
        open_store=partial(_opened, instance.store),
        journal=instance.journal,
        notify=say,
        redact=redact,
    )


@asynccontextmanager
async def _opened(file: Path) -> AsyncIterator[Store]:
    """The store of an instance. The database is imported in a thread: the server is starting meanwhile."""
    sql = await trio.to_thread.run_sync(import_module, "ztrio_sql")
    async with sql.open_store(file) as store:
        yield store


def _here() -> Path:
    """The working directory, which may have been removed."""
    try:
        return Path(os.getcwd())  # noqa: PTH109 - what the server gets
    except OSError:
        return Path()
