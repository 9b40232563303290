"""The gateway beside other proxies of MCP: what a hop costs, and what becomes of the answers that nobody waited for.

`benchmarks/bench_gateway.py` is its front. It is no case of `ztrio bench`, whose subjects are drivers that run tools of
their own: here the servers are the same for all, and what stands between them and the client is measured.

    ways, servers       what is run: servers, and what can stand in front of them
    client              the raw client that everything is measured with
    trips, late, seam   the measurements
    record              what is kept, and what is promised of it
    table               what people look at
"""
