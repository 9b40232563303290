"""A server that somebody else wrote, as a process under supervision: it runs beneath an init of ours, and not for ever.

keeper      start, serve, bury, start again
process     one run of it, and the proof of its death
warden      the init above it, a program of its own
words       what is started, how long things may take, how it ended
"""

from ztrio.upstream.keeper import Generation, Keeper, KeeperStatistics
from ztrio.upstream.process import STDERR_KEPT, ServerProcess
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
