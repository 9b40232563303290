"""For tests of ztrio and of programs that embed it: scripted workers, faults on demand, and a probe for leaks."""

from ztrio.testing.faults import FaultyOps
from ztrio.testing.faulty_store import FaultyStore
from ztrio.testing.leaks import LeakProbe, host_pid
from ztrio.testing.scripted import ScriptedBackend, ScriptedCall, inline, open_scripted_supervisor

__all__ = [
    "FaultyOps",
    "FaultyStore",
    "LeakProbe",
    "ScriptedBackend",
    "ScriptedCall",
    "host_pid",
    "inline",
    "open_scripted_supervisor",
]
