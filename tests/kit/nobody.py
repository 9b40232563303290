"""Running a Python program as an ordinary user, from tests that root runs."""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

__all__ = ["NOBODY", "as_nobody"]

NOBODY = 65534

# An interpreter below a private home directory is out of an ordinary user's reach. So, in a mount namespace of its own,
# an empty directory that everybody may enter is put over the private one, and what is needed of it back into it.
_REACHABLE = """
set -eu
private="$1"; shift
hold=$(mktemp -d)
trap 'rmdir "$hold"' EXIT
mount -t tmpfs tmpfs "$hold"
for place in $ZTRIO_TEST_PLACES; do mkdir -p "$hold$place"; mount --bind "$place" "$hold$place"; done
mount --rbind "$hold$private" "$private"
chmod 755 "$private"
unset ZTRIO_TEST_PLACES
umount -R -l "$hold"; rmdir "$hold"; trap - EXIT
exec "$@"
"""


def as_nobody(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The command that runs this interpreter with `arguments` as user and group 65534, and its environment.

    As another user than root it is simply the interpreter: the user is ordinary already.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, *arguments]
    if os.geteuid() != 0:
        return command, environment
    for tool in ("unshare", "setpriv", "mount"):
        if shutil.which(tool) is None:
            pytest.skip(f"there is no {tool} here")
    command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--", *command]
    needed = {Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve()}
    private = {top for place in needed for top in place.parents if not top.stat().st_mode & 1}
    if not private:
        return command, environment
    top = min(private, key=lambda place: len(place.parts))
    environment["ZTRIO_TEST_PLACES"] = " ".join(str(place) for place in needed if place.is_relative_to(top))
    return ["unshare", "--mount", "--", "sh", "-c", _REACHABLE, "sh", str(top), *command], environment
