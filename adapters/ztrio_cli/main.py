"""The `ztrio` command: how a command line is read and how every command ends.

Errors are one line with a code, or one JSON object where `--json` is given; typer's own boxes are not used.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ztrio_cli.console import (
    BROKEN_PIPE,
    FAILED,
    INTERRUPTED,
    OK,
    USAGE,
    Complaint,
    discard_stdout,
    open_missing_streams,
    report,
)

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the `ztrio` command.

    Args:
        argv: The words after `ztrio`; those of the process when omitted.

    Returns:
        The exit status.
    """
    open_missing_streams()
    words = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        try:
            status = _run(words)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()
        return BROKEN_PIPE
    except OSError as error:  # what was printed last cannot be written
        discard_stdout()
        report(Complaint("OS_ERROR", str(error)), as_json=False)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _run(words: list[str]) -> int:
    # What `serve` and `wrap` print to stdout is taken for a frame, even an error in JSON; `bench` takes a file with
    # --json.
    as_json = "--json" in words and words[0] not in {"serve", "wrap", "bench"}
    try:
        status = _command(words)
    except Complaint as complaint:
        report(complaint, as_json=as_json)
        return complaint.status
    except BrokenPipeError:
        raise
    except OSError as error:
        report(Complaint("OS_ERROR", str(error)), as_json=_stdout_works() and as_json)
        return FAILED
    except Exception as error:  # noqa: BLE001 - told apart there; a defect is raised again
        return _known(error, as_json=as_json)
    return status if isinstance(status, int) else OK


def _command(words: list[str]) -> object:
    from ztrio_cli.app import app

    return app(args=words, prog_name="ztrio", standalone_mode=False)


def _stdout_works() -> bool:
    """Whether what is printed arrives; if not, it is given up, so that the failure is reported once."""
    try:
        sys.stdout.flush()
    except OSError:
        discard_stdout()
        return False
    return True


def _known(error: Exception, *, as_json: bool) -> int:
    """Report a usage error of typer or a failure of ztrio; anything else is a defect and keeps its traceback."""
    format_message = getattr(error, "format_message", None)
    if format_message is not None:
        if words := format_message():
            report(Complaint("USAGE", f"{words} Try --help."), as_json=as_json)
        return USAGE
    from ztrio.errors import InvalidArguments, ZtrioError

    if isinstance(error, ZtrioError):
        report(error, as_json=as_json)
        return USAGE if isinstance(error, InvalidArguments) else FAILED
    raise error
