"""The log of a process that serves: on stderr, in one format, whoever writes it. stdout belongs to the protocol."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

from ztrio_cli.console import USAGE, Complaint

__all__ = ["configure_logging"]

LEVELS = ("debug", "info", "warning", "error")


def configure_logging(level: str, *, as_json: bool) -> None:
    """Send structlog and the standard library's logging (the MCP SDK uses it) to stderr in one format.

    Args:
        level: debug, info, warning or error.
        as_json: One JSON object per line instead of text.

    Raises:
        Complaint: USAGE, there is no such level.
    """
    if level.lower() not in LEVELS:
        raise Complaint("USAGE", f"--log-level {level}: choose from {', '.join(LEVELS)}.", status=USAGE)
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: Any = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=False)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info if as_json else _unchanged,
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("alembic").setLevel("WARNING")  # making a store is no news, least of all its plugins
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def _unchanged(_logger: Any, _method: str, event: Any) -> Any:
    return event
