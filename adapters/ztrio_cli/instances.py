"""Where each `ztrio wrap` keeps its state, and how an operator finds the ones that run.

A gateway has no workspace: its client starts it wherever the client is. So its state is the user's, by name, in
`$XDG_STATE_HOME/ztrio/wrap/NAME` (`~/.local/state` where that is not set). Without `--name` the name is that of the
program and a digest of the command and the directory, so the same entry of a client's configuration finds its unsettled
calls again. Clients do start one entry several times at once: then the first free of NAME, NAME-2, … is taken. A name
that somebody gave stands for one thing only, so a second process under it is refused.

Whether one runs is asked of its socket and not of its lock: to try the lock is to hold it for a moment, in which a
gateway that starts would find it taken. Environment and arguments may hold secrets and are kept nowhere; the digest
tells commands apart.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import attrs
import msgspec

from ztrio.errors import AlreadyInUse, StoreUnavailable
from ztrio.locks import ProcessLock
from ztrio.management import place
from ztrio_cli.console import USAGE, Complaint
from ztrio_mcp.gateway.settings import NAME

__all__ = ["Facts", "Instance", "check_name", "find", "root", "running", "take"]

_FACTS: Final = "instance.json"
_STORE: Final = "state.db"
_JOURNAL: Final = "sent.journal"
_PROCESSES: Final = 16  # of one command at once
_PROGRAM: Final = 40  # characters of a program's name in an instance's


class Facts(msgspec.Struct, frozen=True):
    """What is written down of an instance's process, for people.

    Args:
        program: The command's first word.
        arguments: How many words followed.
        digest: Digest of all words and the directory.
        directory: Where it was started.
        pid: Its process id.
        started: When, as ISO 8601 in UTC.
        ztrio: The version that runs.
    """

    program: str
    arguments: int
    digest: str
    directory: str
    pid: int
    started: str
    ztrio: str


@attrs.frozen
class Instance:
    """One gateway's place, whether its process runs or not.

    Args:
        name: Its name.
        folder: Its state directory.
    """

    name: str
    folder: Path

    @property
    def store(self) -> Path:
        """The file of its store."""
        return self.folder / _STORE

    @property
    def journal(self) -> Path:
        """The journal of the calls that it sent."""
        return self.folder / _JOURNAL

    def facts(self) -> Facts | None:
        """What is written down of its process, or of the last one; None if that cannot be read."""
        try:
            return msgspec.json.decode((self.folder / _FACTS).read_bytes(), type=Facts)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def __str__(self) -> str:
        """The instance in a list: its name, and what tells it apart."""
        facts = self.facts()
        if facts is None:
            return self.name
        return f"{self.name} ({facts.program}, process {facts.pid}, in {facts.directory}, since {facts.started})"


def root() -> Path:
    """The directory that has a directory for each instance.

    Raises:
        StoreUnavailable: the user has no home.
    """
    given = os.environ.get("XDG_STATE_HOME", "")
    if Path(given).is_absolute():  # a relative one is to be ignored, says the XDG specification
        return Path(given) / "ztrio" / "wrap"
    try:
        return Path.home() / ".local" / "state" / "ztrio" / "wrap"
    except RuntimeError as error:
        raise StoreUnavailable(f"{error} Set HOME or XDG_STATE_HOME. Nothing was started.") from error


def check_name(name: str) -> str:
    """The name, if it is one.

    Raises:
        Complaint: USAGE, it is none.
    """
    if not NAME.fullmatch(name):
        raise Complaint(
            "USAGE",
            f"--name {name!r}: give at most 64 letters, digits, dots, dashes and underscores, the first one no sign.",
            status=USAGE,
        )
    return name


@contextlib.contextmanager
def take(name: str | None, argv: Sequence[str], cwd: Path) -> Iterator[Instance]:
    """Be an instance for as long as the body lasts: nobody else is.

    Args:
        name: The name that was given, or None.
        argv: The command.
        cwd: The directory that it is started in.

    Raises:
        Complaint: USAGE, the name is none.
        AlreadyInUse: GATEWAY_BUSY, another process has the name; or sixteen run the command.
        StoreUnavailable: its directory cannot be made or used.
    """
    digest = _digest(argv, cwd)
    base = f"{_program(argv[0])}-{digest}" if name is None else check_name(name)
    instance, lock = _locked(base, _PROCESSES if name is None else 1)
    try:
        _write_facts(instance, argv, cwd, digest)
        yield instance
    finally:
        lock.release()


def _locked(base: str, count: int) -> tuple[Instance, ProcessLock]:
    """The first free one of an instance's names, and its lock, held."""
    for number in range(1, count + 1):
        name = base if number == 1 else f"{base}-{number}"
        instance = Instance(name, root() / name)
        _make(instance.folder)
        lock = ProcessLock(instance.folder / "lock", what=f"the gateway {name!r}", code="GATEWAY_BUSY")
        try:
            lock.acquire()
        except AlreadyInUse:
            if count == 1:
                raise
            continue
        return instance, lock
    raise AlreadyInUse(
        f"{count} processes run this command already. Nothing was started; end some.", code="GATEWAY_BUSY"
    )


def _make(folder: Path) -> None:
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise StoreUnavailable(
            f"The directory {folder} cannot be used: {error.strerror or error}. Nothing was started; XDG_STATE_HOME "
            "names another place."
        ) from error


def _write_facts(instance: Instance, argv: Sequence[str], cwd: Path, digest: str) -> None:
    """Write down what tells this instance from others; a failure costs no more than that."""
    facts = Facts(
        program=_shown(argv[0]),
        arguments=len(argv) - 1,
        digest=digest,
        directory=_shown(str(cwd)),
        pid=os.getpid(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        ztrio=_version(),
    )
    fresh = instance.folder / f"{_FACTS}.new"
    with contextlib.suppress(OSError):
        fresh.unlink(missing_ok=True)
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123 - its mode
            file.write(msgspec.json.encode(facts) + b"\n")
        fresh.replace(instance.folder / _FACTS)


def running() -> list[Instance]:
    """The instances whose process answers operators, by name."""
    try:
        names = sorted(entry.name for entry in root().iterdir() if NAME.fullmatch(entry.name))
    except OSError:
        return []
    return [instance for name in names if _answers(instance := Instance(name, root() / name))]


def find(name: str | None) -> Instance:
    """The instance that is meant: the one of this name, else the only one that runs.

    Raises:
        Complaint: GATEWAY_NOT_FOUND, there never was one of this name; SERVER_NOT_RUNNING, none is named and none runs;
            GATEWAY_AMBIGUOUS, several do; USAGE, the name is none.
    """
    if name is not None:
        instance = Instance(check_name(name), root() / name)
        if not instance.folder.is_dir():
            raise Complaint(
                "GATEWAY_NOT_FOUND", f"No `ztrio wrap` of the name {name} ever ran here. {_list(running())}"
            )
        return instance
    found = running()
    if not found:
        raise Complaint("SERVER_NOT_RUNNING", "No `ztrio wrap` runs. Your MCP client starts it, as it is configured.")
    if len(found) > 1:
        raise Complaint("GATEWAY_AMBIGUOUS", f"Say which with --name. {_list(found)}", status=USAGE)
    return found[0]


def _list(found: Sequence[Instance]) -> str:
    return f"Running: {'; '.join(map(str, found))}." if found else "None runs."


def _answers(instance: Instance) -> bool:
    try:
        place.connect(instance.folder, wait=False).close()
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


def _digest(argv: Sequence[str], cwd: Path) -> str:
    parts = [os.fsencode(part) for part in (*argv, str(cwd))]
    together = hashlib.sha256(b"".join(b"%d:%s" % (len(part), part) for part in parts))
    return base64.b32encode(together.digest()[:5]).decode().lower()


def _program(word: str) -> str:
    """What a command is called in the name of its instance."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(word).name).lstrip("._-")[:_PROGRAM] or "server"


def _shown(text: str) -> str:
    """Text that JSON can carry, whatever bytes it was."""
    return os.fsencode(text).decode("utf-8", "replace")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("ztrio")
    except PackageNotFoundError:  # run from a source tree
        return ""
