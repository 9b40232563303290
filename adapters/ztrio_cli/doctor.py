"""`ztrio doctor`: what works on this machine, found out by doing it and not by reading a version.

Each check is a sentence about what was tried, and a second one about what to do where it did not work.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import attrs
import trio
from rich.table import Table
from rich.text import Text

import ztrio
from ztrio.errors import ZtrioError
from ztrio.publication.exchange import FileOps
from ztrio.workers.ladder import ContainmentReport, RungTrial, complete
from ztrio.workers.landlock import why_unavailable
from ztrio_cli import probe
from ztrio_cli.console import FAILED, OK, console, one_line, write_json, write_line
from ztrio_cli.state import state_file
from ztrio_cli.toolbox import load

__all__ = ["Check", "run"]

Status = Literal["ok", "warn", "fail"]
COLOURS: dict[Status, str] = {"ok": "green", "warn": "yellow", "fail": "bold red"}

PLATFORMS = {"linux": "Linux", "darwin": "macOS"}
OLDEST_PYTHON = (3, 11)
SLOW_START = 2.0  # seconds; a worker that takes longer makes every call after a burst wait
BOUND = 20.0  # seconds for everything that is tried with workers
NO_RUNG = "A tool that makes a daemon leaves it behind. Allow user namespaces, or delegate a cgroup to this user."
PARTIAL = (
    "Containment is 'partial': a worker and everything in its process group is killed and proven dead, but a program "
    "that makes its own session (a daemon) escapes. Commits say so in their proof."
)


@attrs.frozen
class Check:
    """One finding.

    Args:
        name: What was checked.
        status: `ok`, `warn` (works, with a limit) or `fail` (ztrio cannot work so).
        finding: What was found, in a sentence.
        advice: What to do, or empty.
        facts: Further facts for machines.
    """

    name: str
    status: Status
    finding: str
    advice: str = ""
    facts: dict[str, Any] = attrs.field(factory=dict)


def run(tools: str | None, *, workspace: Path, state: str | None, as_json: bool) -> int:
    """Make every check and show the findings; the exit status: 1 if one of them is `fail`."""
    checks = list(_checks(tools, workspace, state))
    failed = [check.name for check in checks if check.status == "fail"]
    if as_json:
        write_json({"ok": not failed, "checks": [attrs.asdict(check) for check in checks]})
        return FAILED if failed else OK
    table = Table(box=None, show_header=False, pad_edge=False)
    for check in checks:
        sentence = f"{check.finding}\n{check.advice}" if check.advice else check.finding
        table.add_row(Text(check.status, style=COLOURS[check.status]), check.name, sentence)
    console().print(table)
    write_line()
    write_line(f"Not working: {', '.join(failed)}." if failed else "ztrio works here.")
    return FAILED if failed else OK


def _checks(tools: str | None, workspace: Path, state: str | None) -> Iterator[Check]:
    yield check_python()
    yield check_platform()
    yield check_packages()
    writable = check_workspace(workspace)
    yield writable
    if writable.status == "ok":
        yield check_exchange(workspace, FileOps())
        yield check_state(workspace, state)
    yield check_sandbox(why_unavailable())
    yield check_ladder()
    yield from check_workers()
    if tools is not None:
        yield from check_toolbox(tools)


def check_python() -> Check:
    """Whether this Python is new enough."""
    found = platform.python_version()
    if sys.version_info < OLDEST_PYTHON:
        return Check("python", "fail", f"Python {found} is too old.", "Install Python 3.11 or newer.")
    return Check("python", "ok", f"Python {found}.", facts={"version": found, "executable": sys.executable})


def check_platform(name: str = sys.platform) -> Check:
    """Whether the platform has what the promises rest on."""
    if name not in PLATFORMS:
        return Check("platform", "fail", f"{name} is not supported.", "Use Linux or macOS (WSL 2 counts as Linux).")
    return Check("platform", "ok", f"{PLATFORMS[name]} {platform.release()}.", facts={"machine": platform.machine()})


def check_packages() -> Check:
    """Which versions of the packages that matter are there."""
    found = {}
    for package in ("ztrio", "trio", "mcp", "msgspec", "pydantic"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    finding = ", ".join(f"{package} {number}" for package, number in found.items())
    if not found["mcp"].startswith("2.3."):
        return Check("packages", "fail", f"{finding}.", "Install mcp 2.3: pip install 'mcp>=2.3,<2.4'.", found)
    return Check("packages", "ok", f"{finding}.", facts=found)


def check_workspace(workspace: Path) -> Check:
    """Whether files can be made in the workspace."""
    try:
        with tempfile.TemporaryDirectory(prefix=".ztrio-doctor-", dir=workspace) as folder:
            (Path(folder) / "file").write_bytes(b"x")
    except OSError as error:
        advice = "Make the folder, or choose one you may write in with --workspace."
        return Check("workspace", "fail", f"{workspace} cannot be written: {error.strerror}.", advice)
    return Check("workspace", "ok", f"{workspace.resolve()} can be written.")


def check_exchange(workspace: Path, ops: FileOps) -> Check:
    """Whether two folders can change places in one step, and a new name never overwrites an old one."""
    with tempfile.TemporaryDirectory(prefix=".ztrio-doctor-", dir=workspace) as place:
        root = Path(place)
        for name in ("old", "new"):
            (root / name).mkdir()
            (root / name / "content").write_text(name)
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            ops.exchange(fd, "old", fd, "new")
            swapped = [(root / name / "content").read_text() for name in ("old", "new")] == ["new", "old"]
            try:
                ops.move_new(fd, "new", fd, "old")
                kept = False
            except FileExistsError:
                kept = True
        except OSError as error:
            return _no_exchange(workspace, error.strerror or str(error))
        finally:
            os.close(fd)
    if not (swapped and kept):
        return _no_exchange(workspace, "the file system does something else")
    return Check("exchange", "ok", "Files and folders of the workspace change places in one step.")


def _no_exchange(workspace: Path, why: str) -> Check:
    advice = "Outputs there will be refused. Use a local file system (ext4, xfs, btrfs, tmpfs, APFS)."
    return Check("exchange", "fail", f"Exchanging names in {workspace} does not work: {why}.", advice)


def check_state(workspace: Path, state: str | None) -> Check:
    """Whether calls are kept, and whether what is kept can be used."""
    file = state_file(workspace, state)
    if file is None:
        advice = "Leave out --state to keep sessions, calls and the audit across restarts."
        return Check("state", "warn", "Nothing outlives the server.", advice)
    facts = {"file": str(file)}
    if not file.exists():
        return Check("state", "ok", f"{file} will be made by the first server.", facts=facts)
    from ztrio_sql import StoreReader

    try:
        with StoreReader.open(file) as reader:
            left = len(reader.unfinished())
    except ZtrioError as error:
        return Check("state", "fail", f"{error.code}: {one_line(error.message)}", "Or name another file with --state.")
    return Check("state", "ok", f"{file} can be read.", facts=facts | {"unfinished": left})


def check_sandbox(reason: str | None) -> Check:
    """Whether tools can be kept from writing elsewhere.

    Args:
        reason: Why not, as the trial found it; None if they can.
    """
    if reason is None:
        return Check("sandbox", "ok", "Tools can write their outputs, temporary files and what they declare only.")
    finding = f"Tools can write wherever this user can: Landlock does not work, because {reason}."
    return Check("sandbox", "warn", finding, "Serve tools that you trust, or use a system with Landlock.")


def check_ladder() -> Check:
    """Which rungs of the containment ladder this machine offers."""
    if sys.platform != "linux":
        return judge_ladder((RungTrial("group", works=True),))
    from ztrio.workers.zygote import survey

    try:
        return judge_ladder(trio.run(survey))
    except OSError as error:
        return Check("ladder", "fail", f"No way to contain workers could be tried: {error}.", "Please report this.")


def judge_ladder(trials: Sequence[RungTrial]) -> Check:
    """Judge what came of trying each rung."""
    said = "; ".join(f"{trial.name}: {'works' if trial.works else f'no ({trial.reason})'}" for trial in trials)
    facts = {trial.name: trial.reason or True for trial in trials}
    finding = f"Ways to contain a worker with all it starts, the strongest first: {one_line(said)}."
    if any(trial.works and complete(trial.name) for trial in trials):
        return Check("ladder", "ok", finding, facts=facts)
    return Check("ladder", "warn", finding, NO_RUNG, facts)


def check_workers() -> list[Check]:
    """Start a worker, let it start a child, kill both, and look from outside whether they are gone."""
    with tempfile.TemporaryDirectory(prefix="ztrio-doctor-") as folder:
        try:
            return trio.run(_try_workers, Path(folder).resolve())
        except (ZtrioError, trio.TooSlowError) as error:
            reason = str(error) or f"nothing happened for {BOUND:g} seconds"
            advice = "Run `ztrio serve` with --log-level debug, or see what keeps this user from starting processes."
            return [Check("workers", "fail", f"A worker could not be tried: {one_line(reason)}", advice)]


async def _try_workers(workspace: Path) -> list[Check]:
    began = trio.current_time()
    with trio.fail_after(BOUND):
        async with (
            ztrio.open_supervisor(probe.toolbox, workspace=workspace) as supervisor,
            supervisor.audit.subscribe() as events,
        ):
            await supervisor.call("nothing")
            started = trio.current_time() - began
            chosen = supervisor.containment
            child = await _hold_and_cancel(supervisor)
            ended = [await events.receive()]
            while ended[-1].event != "rollback":
                ended.append(await events.receive())
    proof = next((event.proof for event in ended if event.event == "worker_terminated"), None)
    return [_start_check(started, chosen), check_containment(proof, child, _is_alive)]


async def _hold_and_cancel(supervisor: ztrio.Supervisor) -> int:
    """Call `hold`, and cancel it once its child runs; the child's process id."""
    children: list[int] = []
    held = trio.Event()

    def on_progress(_progress: float, _total: float | None, message: str | None) -> None:
        children.append(int(message or 0))
        held.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: supervisor.call("hold", on_progress=on_progress))
        await held.wait()
        nursery.cancel_scope.cancel()
    return children[0]


def _start_check(seconds: float, chosen: ContainmentReport) -> Check:
    facts = {"seconds": round(seconds, 4), "chosen": attrs.asdict(chosen)}
    finding = f"The first call is finished in {seconds:.2f} s ({_chosen(chosen)})."
    if seconds > SLOW_START:
        return Check("workers", "warn", finding, "That is slow; look at what the machine is busy with.", facts)
    return Check("workers", "ok", f"{finding} A few workers are kept ready.", facts=facts)


def _chosen(chosen: ContainmentReport) -> str:
    """Backend and rung, with the reasons against those before them."""
    against = [f"not {trial.name}: {trial.reason}" for trial in (*chosen.backends, *chosen.rungs) if not trial.works]
    return one_line("; ".join((f"{chosen.backend}, {chosen.rung}", *against)))


def check_containment(proof: dict[str, Any] | None, child: int, is_alive: Callable[[int], bool]) -> Check:
    """Judge the end of a worker that had a child.

    Args:
        proof: The proof of death from the audit, or None.
        child: Process id of the worker's child.
        is_alive: Says whether a process id is in use.
    """
    if proof is None:
        return Check("containment", "fail", "A killed worker could not be proven dead.", "Please report this.")
    alive = [pid for pid in (proof["pid"], child) if is_alive(pid)]
    if alive:
        finding = f"A worker was said to be dead, and {alive} of it still runs."
        return Check("containment", "fail", finding, "Please report this with the output of --json.", {"proof": proof})
    took = (proof["proven_at"] - proof["killed_at"]) * 1000
    finding = f"A worker ({proof['pid']}) and its child ({child}) were killed and proven dead in {took:.1f} ms."
    if proof["containment"] == "partial":
        return Check("containment", "warn", f"{finding} {PARTIAL}", "Let tools start no daemons.", {"proof": proof})
    return Check("containment", "ok", finding, facts={"proof": proof})


def _is_alive(pid: int) -> bool:
    """Whether the pid is in use. The child was re-parented and its zombie may be around for a moment: not alive."""
    from ztrio_cli.demo.observe import processes

    return pid in processes()


def check_toolbox(source: str) -> list[Check]:
    """Whether the toolbox loads, each of its tools has a schema, and how its workers are made."""
    try:
        toolbox = load(source)
        tools = {tool.name: str(tool.capability) for tool in toolbox if tool.schema.input_schema}
    except ZtrioError as error:
        return [Check("toolbox", "fail", one_line(error.message), "Mend the named line.", {"code": error.code})]
    if not tools:
        return [Check("toolbox", "warn", f"{source} has no tools.", "Register some with @toolbox.tool(...).")]
    listed = ", ".join(f"{name} ({capability})" for name, capability in tools.items())
    return [Check("toolbox", "ok", f"{toolbox.name}: {listed}.", facts={"tools": tools}), check_loading(toolbox)]


def check_loading(toolbox: ztrio.Toolbox) -> Check:
    """Which backend can serve the toolbox."""

    async def opened(workspace: Path) -> ContainmentReport:
        with trio.fail_after(BOUND):
            async with ztrio.open_supervisor(toolbox, workspace=workspace) as supervisor:
                return supervisor.containment

    with tempfile.TemporaryDirectory(prefix="ztrio-doctor-") as folder:
        try:
            chosen = trio.run(opened, Path(folder).resolve())
        except (ZtrioError, trio.TooSlowError) as error:
            reason = str(error) or f"nothing happened for {BOUND:g} seconds"
            return Check("loading", "fail", f"Workers cannot load the toolbox: {one_line(reason)}", "Mend the cause.")
    finding = f"Its workers are made by {_chosen(chosen)}."
    facts = {"chosen": attrs.asdict(chosen)}
    if all(trial.works for trial in chosen.backends):
        return Check("loading", "ok", finding, facts=facts)
    advice = "Each call will take longer to start. Start threads in the tools and not while their modules are imported."
    return Check("loading", "warn", finding, advice, facts)
