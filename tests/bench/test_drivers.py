"""What drivers are made of, one by one: start markers, and the raw client of stdio servers."""

import shutil
import sys
from pathlib import Path

import pytest

from ztrio_bench import workload
from ztrio_bench.drivers import stdio
from ztrio_bench.drivers.kit import Listener, Unsupported, supported, version_of

REQUEST = {"count": 1, "seconds": 0.1, "patience": 0.3, "start_bound": 5.0}


def test_a_raw_server_is_spoken_to_with_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer, an error, a failed tool and a closed pipe each end the round with a sentence."""
    library = tmp_path / "lib"
    library.mkdir()
    shutil.copyfile(workload.__file__, library / "bench_tools.py")
    monkeypatch.setenv("PYTHONPATH", str(library))
    command = [sys.executable, str(Path(__file__).with_name("raw_server.py"))]
    request = {**REQUEST, "folder": str(tmp_path)}
    with stdio.Server(command, str(tmp_path)) as server:
        for name, sentence in (("mute", "no answer"), ("wrong", "wrong"), ("gone", "closed its output")):
            with pytest.raises(RuntimeError, match=sentence):
                server.ask("tools/call", {"name": name}, within=0.3)
    with pytest.raises(RuntimeError, match="the tool failed"):
        stdio.round_trips(command, request)
    limited = stdio.timeouts(command, request, limit=0.05, seconds=0.2)
    assert ({"survivors": 1}, 1) == (limited["counts"], len(limited["values"]["overshoot"]))
    ended = stdio.cancels(command, request, seconds=0.2)
    assert ({"survivors": 1}, 1) == (ended["counts"], len(ended["values"]["resume"]))
    with pytest.raises((RuntimeError, BrokenPipeError)), stdio.Server([sys.executable, "-c", ""], str(tmp_path)):
        pass


def test_announcements_of_nobody_and_cases_of_nobody(tmp_path: Path) -> None:
    """A datagram with an unknown token is ignored, a tool outlives its listener, and unknown cases are refused."""
    listener = Listener(str(tmp_path))
    workload.announce(listener.place, "stranger", "tool")
    listener.drain()
    assert {} == listener.trees
    listener.forget("stranger")
    listener.close()
    workload.announce(listener.place, "late", "tool")
    with pytest.raises(Unsupported, match="corresponds to stall"):
        supported({"case": "stall"}, ["call"])
    assert "source tree" == version_of("no-such-distribution")
