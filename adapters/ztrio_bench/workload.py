"""The tools that every subject runs: plain functions, the same for all, of the standard library only.

A tool announces itself: each process of it sends a datagram when it is where the case wants it. So nobody has to guess
when the work has begun, and the receiver learns the process id from the kernel and not from the tool, which may live
in another PID namespace. Everything ends by itself after `LIFETIME`, also what a subject leaks.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

__all__ = ["LIFETIME", "announce", "cpu", "daemon", "forking", "holding", "ignoring", "nap", "sleeping", "trivial"]

LIFETIME = 60.0  # seconds

# One call of about a minute in C that neither looks at signals nor comes back to the interpreter.
_ROUNDS = 100_000_000


def announce(place: str, token: str, role: str) -> None:
    """Say "here I am" to whoever listens at the socket `place`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        try:
            sender.sendto(f"{token} {role}".encode(), place)
        except OSError:
            pass  # nobody waits for it any more


def trivial(value: int = 0) -> dict[str, int]:
    """Return at once."""
    return {"value": value}


def nap(seconds: float) -> dict[str, float]:
    """Sleep briefly and return."""
    time.sleep(seconds)
    return {"seconds": seconds}


def sleeping(place: str, token: str, seconds: float = LIFETIME) -> dict[str, str]:
    """Sleep in C until ended."""
    announce(place, token, "tool")
    time.sleep(seconds)
    announce(place, token, "finished")
    return {"token": token}


def cpu(place: str, token: str, gate: str = "", seconds: float = LIFETIME) -> dict[str, str]:
    """Compute in C until ended; with a gate, first wait until a file of that name exists."""
    deadline = time.monotonic() + seconds
    announce(place, token, "tool")
    if gate:
        while not os.path.exists(gate) and time.monotonic() < deadline:
            time.sleep(0.005)
        announce(place, token, "running")
    import hashlib  # noqa: PLC0415 - libcrypto, which every other tool's worker would carry

    hashlib.pbkdf2_hmac("sha256", b"benchmark", b"salt", _ROUNDS)
    announce(place, token, "finished")
    return {"token": token}


def ignoring(place: str, token: str, seconds: float = LIFETIME) -> dict[str, str]:
    """Sleep and ignore every polite signal."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return sleeping(place, token, seconds)


def forking(place: str, token: str, children: int = 3) -> dict[str, str]:
    """Sleep beside three children that sleep too."""
    for _ in range(children):
        if os.fork() == 0:
            announce(place, token, "child")
            time.sleep(LIFETIME)
            os._exit(0)
    return sleeping(place, token)


def daemon(place: str, token: str) -> dict[str, str]:
    """Leave a proper daemon behind (forked twice, its own session, no descriptors of ours), then sleep."""
    first = os.fork()
    if first == 0:
        os.setsid()
        if os.fork() == 0:
            nothing = os.open(os.devnull, os.O_RDWR)
            for number in range(3):
                os.dup2(nothing, number)
            os.closerange(3, 4096)
            announce(place, token, "daemon")
            time.sleep(LIFETIME)
        os._exit(0)
    os.waitpid(first, 0)
    return sleeping(place, token)


def holding(place: str, token: str, size: int) -> dict[str, str]:
    """Sleep with `size` bytes of memory in use."""
    ballast = bytearray(os.urandom(1 << 20) * (size >> 20))
    announce(place, token, "tool")
    time.sleep(LIFETIME)
    return {"token": token, "size": str(len(ballast))}


if __name__ == "__main__":  # how the bare interpreter runs a tool: workload.py TOOL KEY=VALUE…
    _tool, *_pairs = sys.argv[1:]
    _arguments = dict(pair.split("=", 1) for pair in _pairs)
    globals()[_tool](**{key: int(value) if key == "size" else value for key, value in _arguments.items()})
