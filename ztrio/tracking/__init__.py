"""Pending calls under trio: the registry of `ztrio.pending` with a clock, an audit, a store, and people who ask.

    restoring               what an earlier process left
    own_calls, desk         our own tools at the gate; what surfaces ask
    cancelling              telling an upstream
    tracker                 commands and what follows from them; expiry
    callers, recording      whose calls; what of them is in the store
    journal, journalled     sent writes in a file; a store that has its journal there
    journal_format          the lines of that file
    writing, telling        write-behind; the words of audit, log and store
    notices                 what a log is told, and how often

The registry decides, in one step and without a checkpoint. What it decided is published on the audit bus, in order,
and written to the store behind it. Nothing here waits between a decision and its publication, so whoever sees an event
finds the registry, and the gate, already past it.
"""
