"""A server that somebody else wrote, as a process under supervision: it runs beneath an init of ours, and not for ever.

keeper      start, serve, bury, start again
generation  one run of it: served, and put down in order
restarts    when it is started again
process     its pipes, what it says, the proof of its death
stderr      the end of what it writes there
warden      the init above it, a program of its own
words       what is started, how long things may take, how it ended
"""

from ztrio.upstream.generation import Generation
from ztrio.upstream.keeper import Keeper, KeeperStatistics
from ztrio.upstream.process import ServerProcess
from ztrio.upstream.stderr import STDERR_KEPT
from ztrio.upstream.words import Command, Death, RestartPolicy, Timing

__all__ = [
    "STDERR_KEPT",
    "Command",
    "Death",
    "Generation",
    "Keeper",
    "KeeperStatistics",
    "RestartPolicy",
    "ServerProcess",
    "Timing",
]
