"""Environments for peers: made once, kept in the user's cache, never ztrio's own.

A stamp is written last, so an installation that was interrupted is made anew. Nothing is installed unless a peer was
asked for by name.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import trio

from ztrio_bench.subjects import Subject

__all__ = ["Unavailable", "cache_folder", "find_python", "interpreter"]

_BOUND = 600.0  # seconds for an installation
_STAMP = "installed"


class Unavailable(Exception):
    """A peer cannot take part; the text says why and what to do."""


def cache_folder() -> Path:
    """Where environments are kept unless told otherwise."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ztrio" / "bench"


def find_python(wanted: tuple[int, int] | None) -> str:
    """An interpreter of that version that can make virtual environments.

    Raises:
        Unavailable: there is none on PATH nor among pyenv's.
    """
    if wanted is None or sys.version_info[:2] == wanted:
        return sys.executable
    for candidate in _candidates(f"{wanted[0]}.{wanted[1]}"):
        code = "import sys, venv, ensurepip; print(*sys.version_info[:2])"
        try:
            done = subprocess.run([candidate, "-c", code], capture_output=True, text=True, timeout=20, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.stdout.split() == [str(number) for number in wanted]:
            return candidate
    raise Unavailable(f"it needs Python {wanted[0]}.{wanted[1]}, and none was found on PATH or under ~/.pyenv")


def _candidates(number: str) -> Iterator[str]:
    # pyenv's own before PATH, where a shim of that name may stand for a version that is not active.
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from (str(path) for path in sorted((root / "versions").glob(f"{number}*/bin/python"), reverse=True))
    on_path = shutil.which(f"python{number}")
    if on_path is not None:
        yield on_path


async def interpreter(subject: Subject, *, cache: Path, install: bool = True) -> str:
    """The interpreter that has the subject, after installing it if need be.

    Args:
        subject: The subject.
        cache: Folder for environments.
        install: Whether to install what is missing.

    Raises:
        Unavailable: it is not there and could not or must not be installed.
    """
    await trio.lowlevel.checkpoint()
    if subject.requirement is None:
        return sys.executable
    base = find_python(subject.python)
    digest = hashlib.sha256(f"{subject.requirement} {base} {sys.version}".encode()).hexdigest()[:8]
    place = cache / f"{subject.name}-{digest}"
    python = str(place / "bin" / "python")
    if (place / _STAMP).exists() and Path(python).exists():  # noqa: ASYNC240 - one look
        return python
    if not install:
        raise Unavailable("it is not installed; leave out --no-install")
    cache.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - one step, before anything runs
    await _run([base, "-m", "venv", "--clear", str(place)])
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    await _run([*pip, subject.requirement])
    (place / _STAMP).write_text(f"{subject.requirement}\n")  # noqa: ASYNC240 - the same
    return python


async def _run(command: list[str]) -> None:
    try:
        with trio.fail_after(_BOUND):
            done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    except trio.TooSlowError:
        raise Unavailable(f"installing it took more than {_BOUND:g} s") from None
    except OSError as error:
        raise Unavailable(f"it could not be installed: {error}") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise Unavailable(f"it could not be installed: {lines[-1]}")
