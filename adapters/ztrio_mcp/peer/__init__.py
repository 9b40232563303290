"""One side of a JSON-RPC connection over two file descriptors, which passes on what it carries byte for byte.

    peer        `Peer`: what is sent, and the end of a connection
    exchanges   who gets which message
    writer      the one writer: a queue, claims, a limit for standing still
    reader      the one reader
    envelope    one line to one message, values left raw
    splitter    bytes to lines of bounded length
    messages    what is said about messages: exchanges, responses, the end, errors

Why not the SDK's transports and sessions: they decode and encode each value anew, so what a model does not know is lost
and a large integer is rounded; ids `7` and `"7"` are one to them; and nobody can tell whether a frame has reached the
pipe, which is what decides whether a call may have happened (P3).

What is sent goes out with a system call of the sender's own as long as the pipe takes it, and what is received is
given to callbacks by the reader itself: an exchange costs no task and no turn of the event loop of its own.
"""

from ztrio_mcp.peer.messages import (
    Ending,
    Exchange,
    Handler,
    Id,
    Outgoing,
    PeerClosed,
    PeerQueueFull,
    PeerStatistics,
    Reason,
    Response,
)
from ztrio_mcp.peer.peer import LINE_LIMIT, QUEUE_LIMIT, WRITE_STALL, Peer

__all__ = [
    "LINE_LIMIT",
    "QUEUE_LIMIT",
    "WRITE_STALL",
    "Ending",
    "Exchange",
    "Handler",
    "Id",
    "Outgoing",
    "Peer",
    "PeerClosed",
    "PeerQueueFull",
    "PeerStatistics",
    "Reason",
    "Response",
]
