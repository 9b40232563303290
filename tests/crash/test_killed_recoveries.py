"""What happens between the crash and the answer to the first call: recovery is killed as well, and is not alone."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.box import SCHEDULED, Box, Server, seed
from tests.crash.checker import Seen, read

pytestmark = [pytest.mark.timeout(900 if SCHEDULED else 120)]

TWICE = ["publish", "publish"]
# Of a caller's second publication: two exchanges, and nine syncs of directories. The first has two probes instead, of a
# file and of a directory, and two syncs less.
FIRST_EXCHANGED: list[object] = ["exchange done", 3]
ALL_SYNCED: list[object] = ["sync_directory done", 18]
COMMITTED: list[object] = ["event commit", 2]


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path, callers=4, dice=random.Random(seed())) as box:
        yield box


def crash(box: Box, hold: list[object]) -> None:
    """Kill a server whose only caller publishes for the second time, where it is told to stop."""
    server = box.start()
    box.check()
    held(box, server, hold)
    box.kill(server)


def held(box: Box, server: Server, hold: list[object]) -> None:
    """Let the only caller of a server publish twice, and wait until it stops."""
    box.begin(server, script=TWICE, callers=1, hold=hold)
    assert server.wait_for("step") is not None


def last_publication(seen: Seen) -> dict[str, Any]:
    """Row of the call that was accepted last."""
    return max((row for row in seen.jobs.values() if row["tool"] == "publish"), key=lambda row: row["number"])


def left_directories(box: Box) -> list[Path]:
    return list(box.workspace.glob(".ztrio-job-*"))


def end(pids: list[int]) -> None:
    """SIGKILL, for those that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def settle(box: Box) -> None:
    """One more life, in which everything is as promised."""
    server = box.start()
    box.check()
    box.kill(server)


@pytest.mark.parametrize(
    ("hold", "outcome"),
    [(ALL_SYNCED, "rolled_back"), (FIRST_EXCHANGED, "rolled_back"), (COMMITTED, "committed")],
    ids=["published", "half published", "committed"],
)
def test_recovery_killed_one_step_further_each_time(box: Box, hold: list[object], outcome: str) -> None:
    """Killed at its first step, then at its second, and so on: the one that is not killed ends as any other."""
    crash(box, hold)
    stride = 1 if SCHEDULED else 3
    for step in range(1, 400, stride):
        again = box.fork("recover", hold=["*", step])
        message = again.wait_for("step", "closed")
        assert message is not None
        if message["type"] == "closed":
            again.join()
            break
        box.kill(again)
    assert step > 15
    assert [] == left_directories(box)
    assert outcome == last_publication(read(box.store))["outcome"]
    settle(box)


def test_recovery_killed_at_any_of_its_steps_under_load(box: Box) -> None:
    """What four callers left is put right although recovery is killed as well, twice, anywhere."""
    for _ in range(20 if SCHEDULED else 1):
        server = box.start()
        box.check()
        box.begin(server, hold=["sync_directory", box.dice.randint(5, 60)])
        assert server.wait_for("step") is not None
        box.kill(server)
        for _ in range(2):
            again = box.fork("recover", hold=["*", box.dice.randint(1, 80)])
            again.wait_for("step", "closed")
            box.kill(again)
    settle(box)


def test_workers_killed_with_their_server(box: Box) -> None:
    """Some of what the server had started is killed, a moment later the server itself; or the server first."""
    for _ in range(20 if SCHEDULED else 2):
        server = box.start()
        box.check()
        box.begin(server, race=["event start", box.dice.randint(1, 12)])
        assert server.wait_for("step") is not None
        below = box.below(server)
        end(box.dice.sample(below, box.dice.randint(1, len(below))))
        time.sleep(box.dice.choice([0.0, 0.01, 0.1]))
        box.kill(server)
    settle(box)


def test_what_workers_are_made_by_is_killed(box: Box) -> None:
    """Without its fork server a server goes on or refuses; killed then, it leaves nothing half done."""
    for _ in range(8 if SCHEDULED else 1):
        server = box.start()
        box.check()
        box.begin(server, race=["event start", box.dice.randint(2, 8)])
        assert server.wait_for("step") is not None
        end([min(box.below(server))])
        answers = len(box.answers)
        server.wait_for("nothing", seconds=0.4)
        assert len(box.answers) > answers  # it did not hang
        box.kill(server)
    settle(box)


def test_a_second_process_is_refused_meanwhile(box: Box) -> None:
    """While a server works on a workspace nobody else touches what it is at, whoever asks."""
    server = box.start()
    box.check()
    held(box, server, ALL_SYNCED)
    before = left_directories(box)
    for role, code in (("recover", "WORKSPACE_BUSY"), ("serve", "STORE_BUSY")):
        other = box.fork(role, callers=0)
        refused = other.wait_for("refused")
        assert refused is not None
        assert (code, server.pid) == (refused["code"], refused["details"]["pid"])
        other.join()
    assert before == left_directories(box)
    box.kill(server)
    settle(box)
