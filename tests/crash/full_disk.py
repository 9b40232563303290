"""Servers on a disk that fills up: run by a test, in a mount namespace where the disk is small."""

import contextlib
import random
import sys
from pathlib import Path

from tests.crash.box import SCHEDULED, Box, seed


def fill_up_and_kill(disk: Path, dice: random.Random, *, really: bool = True) -> None:
    """Fill the disk while a server works, kill it, start it on the full disk, make room, start it again.

    Args:
        disk: The disk.
        dice: Chooses.
        really: Whether it is small; else the database cannot grow.
    """
    with Box(disk, callers=4, dice=dice) as box:
        box.troubled = True
        for _ in range(5 if SCHEDULED else 1):
            server = box.start(full_after=None if really else 20)
            box.check()
            box.begin(server)
            server.wait_for("nothing", seconds=0.2)
            filler = disk / "filler"
            if really:
                with filler.open("wb", buffering=0) as file:
                    for size in (65536, 512):
                        with contextlib.suppress(OSError):
                            while True:
                                file.write(bytes(size))
            server.wait_for("nothing", seconds=0.5)
            box.kill(server)
            again = box.fork("serve", callers=0)  # it starts or says why not
            said = again.wait_for("up", "refused")
            assert said is not None
            if said["type"] == "refused":
                again.join()  # it ends by itself
            else:
                box.kill(again)
            filler.unlink(missing_ok=True)
        assert any(answer.get("code") for answer in box.answers if answer["kind"] == "publish")
        server = box.start()
        box.check()
        box.kill(server)


if __name__ == "__main__":
    fill_up_and_kill(Path(sys.argv[1]), random.Random(seed()))
