"""`ztrio call`: one call through a supervisor of its own, in the foreground.

A signal is a word and then a cancellation, never a `KeyboardInterrupt` somewhere in between: the supervisor kills the
tool's processes, proves it and puts the files back, and only then does the command say so and end. More signals change
nothing, because that work is bounded and cutting it short is what would leave things half done.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterable, Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Literal

import attrs
import trio
from rich.panel import Panel
from rich.pretty import Pretty
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

import ztrio
from ztrio.audit import Subscription
from ztrio.errors import AlreadyInUse, InvalidArguments, Outcome, ZtrioError
from ztrio.workers.ladder import Containment
from ztrio_cli.arguments import given_arguments
from ztrio_cli.console import FAILED, OK, USAGE, Complaint, console, note, report, write_json
from ztrio_cli.redaction import redact
from ztrio_cli.state import opened_store, state_file
from ztrio_cli.toolbox import load
from ztrio_cli.workspace import checked_workspace, written_lines

__all__ = ["Options", "run"]

CONTEXT = ztrio.CallContext(ztrio.LOCAL.principal, ztrio.LOCAL.view, surface="cli")
ONE_CALL = ztrio.Settings(workers=1)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ENOUGH_EVENTS = 64  # one call has fewer (ztrio.audit.EVENTS_PER_CALL)

WHAT_BECAME = {
    Outcome.NOT_STARTED: "the tool never ran",
    Outcome.ROLLED_BACK: "everything is as it was before",
    Outcome.COMMITTED: "it came too late: the call had committed",
    Outcome.COMPLETED: "it was a read and changed nothing",
}


@attrs.frozen(kw_only=True)
class Options:
    """What the command line said; see `ztrio call --help`."""

    tools: str
    tool: str
    pairs: tuple[str, ...] = ()
    arguments: str | None = None
    session: str = "default"
    timeout: float | None = None
    idempotency_key: str | None = None
    workspace: Path = Path()
    state: str | None = None
    backend: Literal["auto", "zygote", "spawn"] = "auto"
    containment: Containment = "auto"
    sandbox: Literal["auto", "require", "off"] = "auto"
    gate: Literal["off", "warn", "enforce"] = "warn"
    as_json: bool = False


@attrs.frozen
class Interrupted:
    """A signal ended the call; its events say what became of it."""

    number: int
    events: tuple[ztrio.AuditEvent, ...]


def run(options: Options) -> int:
    """Call the tool; the exit status."""
    workspace = checked_workspace(options.workspace)
    toolbox = load(options.tools)
    arguments = _arguments(options, toolbox)
    # Reads run in this process; what they print must not get between the lines of the answer.
    with redirect_stdout(sys.stderr):
        try:
            answer = trio.run(_call, options, toolbox, workspace, arguments)
        except AlreadyInUse as busy:
            raise _busy(busy, workspace) from busy
    if isinstance(answer, Interrupted):
        _show_interrupted(answer, as_json=options.as_json)
        return 128 + answer.number
    if isinstance(answer, ZtrioError):
        _show_error(answer, as_json=options.as_json)
        return USAGE if isinstance(answer, InvalidArguments) else FAILED
    _show_result(options.tool, answer, as_json=options.as_json)
    return OK


def _busy(busy: AlreadyInUse, workspace: Path) -> AlreadyInUse:
    """The refusal in words for somebody who wanted to make one call, and not to serve."""
    if busy.code != "WORKSPACE_BUSY":
        return busy
    pid = busy.details.get("pid")
    who = "Another process" if pid is None else f"Process {pid}"
    return AlreadyInUse(
        f"{who} works in {workspace}, a server perhaps. Nothing was started; make the call through its client, end it "
        "first, or choose another --workspace.",
        code="WORKSPACE_BUSY",
        **busy.details,
    )


def _arguments(options: Options, toolbox: ztrio.Toolbox) -> dict[str, Any]:
    tool = toolbox.get(options.tool)
    if tool is None:
        names = ", ".join(tool.name for tool in toolbox) or "none"
        raise InvalidArguments(f"There is no tool {options.tool!r} in {options.tools}; it has: {names}. Nothing ran.")
    arguments = given_arguments(options.arguments, options.pairs, tool.schema.input_schema)
    if "session" in arguments:
        raise Complaint("USAGE", "the session is named with --session.", status=USAGE)
    return arguments


async def _call(
    options: Options, toolbox: ztrio.Toolbox, workspace: Path, arguments: dict[str, Any]
) -> ztrio.CallResult | ZtrioError | Interrupted:
    cause = ztrio.Cause()
    received: list[int] = []
    answer: ztrio.CallResult | ZtrioError | None = None
    with trio.open_signal_receiver(*SIGNALS) as signals:
        async with (
            opened_store(workspace, state_file(workspace, options.state)) as store,
            ztrio.open_supervisor(
                toolbox,
                workspace=workspace,
                store=store,
                settings=ONE_CALL,
                backend=options.backend,
                containment=options.containment,
                sandbox=options.sandbox,
                gate=options.gate,
                audit_file=written_lines(workspace, None, stored=store is not None),
                redact=redact,
            ) as supervisor,
            supervisor.audit.subscribe(capacity=ENOUGH_EVENTS) as events,
            trio.open_nursery() as nursery,
        ):
            scope = trio.CancelScope()
            nursery.start_soon(_stop_on_signal, signals, scope, cause, received, not options.as_json)
            with scope, _Reporter(show=not options.as_json) as on_progress:
                try:
                    answer = await supervisor.call(
                        options.tool,
                        arguments,
                        session=options.session,
                        timeout=options.timeout,
                        idempotency_key=options.idempotency_key,
                        context=CONTEXT,
                        cause=cause,
                        on_progress=on_progress,
                    )
                except ZtrioError as error:
                    answer = error
            nursery.cancel_scope.cancel()
    return Interrupted(received[0], tuple(_drain(events))) if answer is None else answer


async def _stop_on_signal(
    signals: AsyncIterable[int], scope: trio.CancelScope, cause: ztrio.Cause, received: list[int], talk: bool
) -> None:
    """Record the first signal as the cause and cancel the call; only say that later ones change nothing."""
    async for number in signals:
        received.append(number)
        name = signal.Signals(number).name
        if len(received) == 1:
            cause.record(f"interrupted by {name}")
            scope.cancel()
        if talk:
            again = "still " if len(received) > 1 else ""
            note(f"{name}: {again}stopping the tool and putting everything back ...")


def _drain(events: Subscription) -> list[ztrio.AuditEvent]:
    """The events there are. A cancelled call has had its terminal event before the cancellation comes out."""
    drained = []
    while True:
        try:
            drained.append(events.receive_nowait())
        except (trio.WouldBlock, trio.EndOfChannel):
            return drained


def _show_interrupted(interrupted: Interrupted, *, as_json: bool) -> None:
    name, events = signal.Signals(interrupted.number).name, interrupted.events
    job_id = next((event.execution_job_id for event in events if event.execution_job_id), None)
    outcome = next((event.outcome for event in reversed(events) if event.outcome is not None), Outcome.NOT_STARTED)
    became = WHAT_BECAME.get(outcome, "what became of it cannot be known: look at the targets before repeating it")
    proof = next((event.proof for event in events if event.event == "worker_terminated"), None)
    message = f"The call was stopped by {name}; {became}."
    if as_json:
        error = {"code": "INTERRUPTED", "message": message, "job_id": job_id, "outcome": str(outcome)}
        write_json({"error": {key: value for key, value in {**error, "proof": proof}.items() if value is not None}})
        return
    dead = f" Worker {proof['pid']} and its process group are gone." if proof else ""
    note(f"error: INTERRUPTED: {message}{dead}{f' ({job_id})' if job_id else ''}")


def _show_error(error: ZtrioError, *, as_json: bool) -> None:
    report(error, as_json=as_json)
    if as_json:
        return
    if error.job_id is not None:
        note(f"  {error.job_id}: {error.outcome}")
    for fact in ("traceback", "output"):
        if text := str(error.details.get(fact) or "").rstrip():
            note("\n".join(f"  | {line}" for line in text.splitlines()))


def _show_result(tool: str, result: ztrio.CallResult, *, as_json: bool) -> None:
    if as_json:
        shown = {
            "value": result.value,
            "job_id": result.job_id,
            "outcome": str(result.outcome),
            "targets": dict(result.targets),
        }
        write_json(shown if result.warning is None else shown | {"pending_call_warning": dict(result.warning)})
        return
    if result.warning is not None:
        ids = ", ".join(each["call_id"] for each in result.warning["pending"])
        note(f"warning: {result.warning['message']} ({ids})")
    console().print(
        Panel(
            _readable(result.value),
            title=tool,
            title_align="left",
            subtitle=f"{result.outcome} · {result.job_id}",
            subtitle_align="left",
        )
    )


def _readable(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        return Pretty(value)
    table = Table.grid(padding=(0, 2))
    for key, item in value.items():
        table.add_row(str(key), item if isinstance(item, str) else Pretty(item))
    return table


class _Reporter:
    """Shows progress on stderr: a bar on a terminal, lines elsewhere, nothing where nobody wants it.

    The bar is drawn when a report comes, without the refresh thread that rich would start.
    """

    def __init__(self, *, show: bool) -> None:
        self._show = show
        self._bar: Progress | None = None

    def __enter__(self) -> Callable[[float, float | None, str | None], None] | None:
        if not self._show:
            return None
        if not sys.stderr.isatty():
            return self._line
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:g}/{task.total:g}"))
        self._bar = Progress(*columns, console=console(stderr=True), transient=True, auto_refresh=False)
        self._bar.start()
        self._bar.add_task("starting", total=1.0)
        return self._draw

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _draw(self, progress: float, total: float | None, message: str | None) -> None:
        assert self._bar is not None
        task = self._bar.task_ids[0]
        self._bar.update(task, completed=progress, total=total or max(1.0, progress), refresh=True)
        if message is not None:
            self._bar.update(task, description=message, refresh=True)

    @staticmethod
    def _line(progress: float, total: float | None, message: str | None) -> None:
        of = "" if total is None else f"/{total:g}"
        note(f"{progress:g}{of} {message or ''}".rstrip())
