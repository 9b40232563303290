"""Servers killed from outside, at each step and at any instant, and what the next one makes of it.

All servers of a test live in one workspace, one after another: each puts right what the one before it left, answers
calls of several clients at once, and is killed. `ZTRIO_CRASH_PROFILE=scheduled` kills more than three hundred.
"""

import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.box import SCHEDULED, Box, seed

pytestmark = [pytest.mark.timeout(1800 if SCHEDULED else 120)]

# Every kind of step that a call makes, and how often until it is done with two publications, one failure, a timeout, a
# change of the session alone, and a read.
SCRIPT = ["publish", "publish", "fail", "linger", "count", "look"]
DAY = 86_400.0


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path, callers=6, dice=random.Random(seed())) as box:
        yield box


def trace(box: Box) -> list[str]:
    """The steps of one caller's script in the order in which they were made; the server ends in peace."""
    server = box.start(record=True)
    box.begin(server, script=SCRIPT, callers=1)
    done = server.wait_for("done")
    assert done is not None
    assert server.wait_for("closed") is not None
    server.join()
    assert {"committed": 3, "rolled_back": 2, "completed": 1} == box.check().outcomes()
    return list(done["names"])


@pytest.mark.case("R53")
@pytest.mark.case("R11")
def test_at_every_kind_of_step_under_load(box: Box) -> None:
    """Before and after each kind of step, with six callers at work: all old or all new, and the audit says which."""
    counts = Counter(trace(box))
    names = sorted(counts) * 4
    if not SCHEDULED:  # before or after, as it comes
        names = [box.dice.choice([name, f"{name} done"]) for name in counts if not name.endswith(" done")]
        names = [name if name in counts else name.removesuffix(" done") for name in names]
    for name in names:
        server = box.start()
        box.check()
        # With six callers at work there are at least as many steps of a kind as with one.
        nth = box.dice.randint(1, counts[name])
        box.begin(server, hold=[name, nth])
        assert server.wait_for("step") is not None, (name, nth)
        box.kill(server)
    server = box.start()
    seen = box.check()
    box.kill(server)
    assert len(names) < box.kills
    assert sum(event["event"] == "recovered" for event in seen.events) > len(names)
    assert {"committed", "rolled_back"} <= seen.outcomes().keys()


def test_at_every_step_of_a_call(box: Box) -> None:
    """One step further each time, through publications, a failure, a timeout, a change of state and a read."""
    names = trace(box)
    for index in range(1, len(names)) if SCHEDULED else sorted(box.dice.sample(range(1, len(names)), 3)):
        server = box.start()
        box.check()
        box.begin(server, script=SCRIPT, callers=1, hold=["*", index])
        assert server.wait_for("step", "done") is not None
        box.kill(server)
    server = box.start()
    box.check()
    box.kill(server)


def test_in_the_middle_of_a_step(box: Box) -> None:
    """The kill falls into a COMMIT, an fsync or a rename that is on its way, not before and not after it."""
    for into in ["COMMIT", "sync_data", "sync_directory", "exchange", "move_new"] * (12 if SCHEDULED else 1):
        server = box.start()
        box.check()
        box.begin(server, race=[into, box.dice.randint(1, 12)])
        assert server.wait_for("step") is not None
        time.sleep(box.dice.random() * 0.0015)
        box.kill(server)
    server = box.start()
    box.check()
    box.kill(server)


def test_at_any_instant(box: Box) -> None:
    """At instants that nobody chose; between the lives the clock jumps, an hour back or weeks ahead."""
    for _ in range(120 if SCHEDULED else 6):
        server = box.start(clock=box.dice.choice([0.0, 0.0, -3600.0, 40 * DAY]))
        box.check()
        box.begin(server)
        time.sleep(box.dice.random() * 0.6)
        box.kill(server)
    server = box.start()
    seen = box.check()
    box.kill(server)
    assert {"committed", "rolled_back"} <= seen.outcomes().keys()


def test_while_it_starts(box: Box) -> None:
    """Killed while it opens the store, starts its workers and puts right what the one before it left."""
    for _ in range(20 if SCHEDULED else 1):
        server = box.start()
        box.check()
        box.begin(server)
        time.sleep(0.1 + box.dice.random() * 0.3)
        box.kill(server)
        for _ in range(2):
            starting = box.fork("serve", callers=0, from_start=True, hold=["*", box.dice.randint(1, 60)])
            starting.wait_for("step", "up")
            box.kill(starting)
    server = box.start()
    box.check()
    box.kill(server)
