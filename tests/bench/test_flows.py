"""The steps of a round with subjects that misbehave, under trio and asyncio: each ends and says what happened."""

import asyncio  # noqa: TID251 - the drivers of peers run on it
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from ztrio_bench import workload
from ztrio_bench.drivers import flow_asyncio, flow_trio
from ztrio_bench.drivers.kit import Samples

REQUEST = {
    "case": "cancel",
    "variant": "sleeping",
    "load": 0,
    "count": 1,
    "seconds": 0.1,
    "patience": 0.3,
    "linger": 0.2,
    "start_bound": 0.3,
}


def tool_process(arguments: dict[str, Any]) -> None:
    """Run a tool in a process, until that ends."""
    tool = "cpu" if "gate" in arguments else "sleeping"
    words = [f"{name}={value}" for name, value in arguments.items()]
    subprocess.run([sys.executable, "-I", "-S", workload.__file__, tool, *words], check=False)


async def on_trio(kind: str, arguments: dict[str, Any]) -> None:
    """A subject of this kind under trio."""
    await trio.lowlevel.checkpoint()
    if kind == "failing":
        raise RuntimeError("no")
    if kind == "early":
        workload.announce(arguments["place"], arguments["token"], "tool")
    elif kind == "silent":
        await trio.sleep_forever()
    elif kind == "stubborn":
        await trio.to_thread.run_sync(tool_process, arguments)


async def on_asyncio(kind: str, arguments: dict[str, Any]) -> None:
    """The same under asyncio."""
    if kind == "failing":
        raise RuntimeError("no")
    if kind == "early":
        workload.announce(arguments["place"], arguments["token"], "tool")
    elif kind == "silent":
        await asyncio.sleep(600)
    elif kind == "stubborn":
        running = asyncio.get_running_loop().run_in_executor(None, tool_process, arguments)
        while not running.done():
            try:
                await asyncio.wait([running])
            except asyncio.CancelledError:  # which is what is wrong with it
                continue


class Subject:
    """Misbehaves in one way, whatever it is called for."""

    def __init__(self, kind: str, call: Callable[[str, dict[str, Any]], Any]) -> None:
        self.kind = kind
        self.inner = call

    async def call(self, tool: str, arguments: dict[str, Any], *, session: str = "s") -> Any:
        await self.inner(self.kind, arguments)

    async def run_out(self, tool: str, arguments: dict[str, Any], limit: float) -> tuple[int, int]:
        return 0, int(limit * 1e9) + 5

    async def finish(self, samples: Samples) -> None:
        samples.facts["kind"] = self.kind


@asynccontextmanager
async def opened(subject: Subject) -> AsyncIterator[Any]:
    yield subject


def one_round(loop: str, kind: str, folder: Path, **options: Any) -> dict[str, Any]:
    """A round of such a subject."""
    request = {**REQUEST, "folder": str(folder), **options}
    if loop == "trio":
        return trio.run(flow_trio.run_round, opened(Subject(kind, on_trio)), request)
    return asyncio.run(flow_asyncio.run_round(opened(Subject(kind, on_asyncio)), request))


pytestmark = pytest.mark.parametrize("loop", ["trio", "asyncio"])


@pytest.mark.parametrize(("kind", "reason"), [("silent", "no announcement"), ("failing", "RuntimeError: no")])
def test_a_tool_that_does_not_start_is_a_dropped_sample(loop: str, kind: str, reason: str, tmp_path: Path) -> None:
    """What never started cannot be cancelled: no figure, and the reason is kept."""
    found = one_round(loop, kind, tmp_path)
    assert ({"dropped": 1}, {}) == (found["counts"], found["values"])
    assert [f"the tool did not start: {reason}"] == found["notes"]
    assert {"kind": kind} == found["facts"]


def test_a_tool_that_ends_by_itself_is_told(loop: str, tmp_path: Path) -> None:
    """A call that had ended before its cancel is no cancel, and a note says so."""
    found = one_round(loop, "early", tmp_path)
    assert ["instead of being cancelled: it ended by itself"] == found["notes"]


def test_a_caller_that_hangs_is_freed_and_counted(loop: str, tmp_path: Path) -> None:
    """Past the patience the tool is killed, and the sample stays what it was."""
    found = one_round(loop, "stubborn", tmp_path, start_bound=20.0)
    assert {"hung": 1, "alive": 0, "survivors": 0} == found["counts"]
    assert found["values"]["resume"][0] >= 0.3e9


def test_a_load_that_hangs_is_freed_and_counted(loop: str, tmp_path: Path) -> None:
    """The same for many at once."""
    found = one_round(loop, "stubborn", tmp_path, load=2, start_bound=20.0)
    assert {"dropped": 0, "hung": 2, "alive": 0, "survivors": 0} == found["counts"]
    assert 2 == len(found["values"]["resume"])


def test_a_load_that_cannot_start_is_told(loop: str, tmp_path: Path) -> None:
    """Where none of many calls starts there is no figure, and the note says how many did."""
    found = one_round(loop, "silent", tmp_path, load=3)
    assert {"dropped": 3, "hung": 0, "alive": 0, "survivors": 0} == found["counts"]
    assert ["0 of 3 calls could be started at once"] == found["notes"]
    assert "last" not in found["values"]


def test_memory_of_what_does_not_start_is_dropped(loop: str, tmp_path: Path) -> None:
    """A worker that is not there has no size."""
    found = one_round(loop, "silent", tmp_path, case="memory", variant="1")
    assert ({"dropped": 1, "hung": 0}, {}) == (found["counts"], found["values"])


def test_every_case_takes_its_samples(loop: str, tmp_path: Path) -> None:
    """Latency, throughput, timeout and stall give their metrics."""
    for case, variant, metric in (
        ("call", "file", "latency"),
        ("throughput", "2", "rate"),
        ("timeout", "sleeping", "overshoot"),
        ("stall", "2", "late"),
    ):
        found = one_round(loop, "quick", tmp_path, case=case, variant=variant)
        assert {} == found["counts"] or "survivors" in found["counts"]
        assert case == "stall" or found["values"][metric]
