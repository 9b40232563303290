"""Benchmarks of ztrio and of what does the same job, side by side in one run; `ztrio bench` is their front.

Each subject (ztrio itself, a peer, the bare system calls) runs in a *driver*: a process of its own that does one round
of one case when told to over a small JSON protocol. So subjects do not share an interpreter, an event loop or a
library version, peers may need another Python, and one that hangs can be ended without ending the run.

    runner, check                       rounds in turn, and the gate
    process, subjects, venvs            starting drivers, with what they need
    table, plots, headline, documents   what people look at
    report, statistics, environment     what is kept
    gateway                             `ztrio wrap` beside other proxies of MCP, measured from one raw client
    drivers                             the other side of the protocol; without ztrio's libraries, except one
    cases, workload                     what is done; standard library only
"""
