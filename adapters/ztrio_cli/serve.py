"""`ztrio serve`: a toolbox over MCP on stdin and stdout. stdout belongs to the protocol, so everything else is stderr.

The log says little: what is served, and how it ended. What happened to calls is in the audit, which is complete and
has a format; a second account of it in the log would be neither.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import structlog

import ztrio
from ztrio.errors import ZtrioError
from ztrio_cli.audit_retention import parse_retention
from ztrio_cli.console import FAILED, USAGE, Complaint, note, one_line
from ztrio_cli.logs import configure_logging
from ztrio_cli.redaction import load_soon, redact
from ztrio_cli.state import MEMORY, opened_store, state_file
from ztrio_cli.workspace import checked_workspace, written_lines
from ztrio_mcp import run_stdio

__all__ = ["run"]


def run(
    tools: str,
    *,
    workspace: Path,
    state: str | None,
    allow: str,
    workers: int,
    backend: str,
    containment: str,
    sandbox: str,
    gate: str,
    run_as: str | None,
    keep_audit: str | None,
    audit_file: Path | None,
    log_level: str,
    as_json: bool,
) -> int:
    """Serve until the client is gone or a signal comes; the exit status.

    Returns:
        0 when the client is gone, 128 + signal, 1 after a failure.
    """
    try:
        folder = checked_workspace(workspace)
        policy = _policy(allow)
        user = None if run_as is None else _user(run_as)
        configure_logging(log_level, as_json=as_json)
        log = structlog.get_logger("ztrio")
        file = state_file(folder, state)
        retention = None if keep_audit is None else parse_retention(keep_audit)
        if file is None and retention is not None:
            raise Complaint("USAGE", "--keep-audit: with --state memory no audit is kept.", status=USAGE)
        lines = written_lines(folder, audit_file, stored=file is not None)
        log.info(
            "serving",
            tools=tools,
            workspace=str(folder),
            state=MEMORY if file is None else str(file),
            allow=allow,
            gate=gate,
            audit=str(file if lines is None else lines),
        )
        load_soon()
        settings = ztrio.Settings(workers=workers)
        status = run_stdio(
            tools,
            workspace=folder,
            open_store=partial(opened_store, folder, file, retention),
            policy=policy,
            settings=settings,
            backend=backend,
            containment=containment,
            sandbox=sandbox,
            gate=gate,
            notify=log.warning,
            run_as=user,
            audit_file=lines,
            redact=redact,
        )
    except (ZtrioError, Complaint) as error:
        # Not on stdout, whatever the format: the client would take it for a frame.
        note(json.dumps({"error": error.as_dict()}) if as_json else f"error: {error.code}: {one_line(error.message)}")
        return error.status if isinstance(error, Complaint) else FAILED
    log.info("ended", status=status)
    return status


def _policy(allowed: str) -> ztrio.Policy:
    names = [name for name in (part.strip() for part in allowed.split(",")) if name]
    if not names:
        raise Complaint("USAGE", "--allow names no capability; give some of read,write,destructive.", status=USAGE)
    try:
        return ztrio.allow(*names)
    except ztrio.InvalidArguments as error:
        raise Complaint("USAGE", f"--allow: {error.message}", status=USAGE) from None


def _user(words: str) -> tuple[int, int]:
    uid, _, gid = words.partition(":")
    if not (uid.isdecimal() and gid.isdecimal()):
        raise Complaint("USAGE", f"--run-as {words}: give user and group id, such as 1000:1000.", status=USAGE)
    return int(uid), int(gid)
