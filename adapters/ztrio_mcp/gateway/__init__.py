"""The gateway: what stands between one MCP client and one stdio server that nobody here wrote.

Its modules, each using those below it only:

    running                        one gateway as a program: store, journal, signals
    gateway                        who is told what, and in which order everything begins and ends
    subject                        what operators see and do
    calls                          the surface: a client's `tools/call`
    own_tools                      the tools that the gateway adds
    batch, held                    calls in one; results that came late
    seam, story, passage, flights  the one way of a call to a server (they know one another)
    passing                        requests that are no calls
    catalogue, listening           the server's tools; what it tells by itself
    asking, health, proving        its questions; whether it lives; what it can prove
    upstream                       its connections, one after another
    crossing                       a server of the other era, seen as one of the client's own
    legacy_server, modern_server   what one era does with requests and the other with a stream
    translated                     what both directions have in common
    handshake                      meeting a server in its client's name
    asks, eras, settings, wire     a question of our own; the two eras; the operator's wishes; a call on the wire
"""
