"""The promises of each scene as pure functions of what was observed, so that a broken one can be shown to be noticed.

Each check says in a sentence what was promised, whether the facts bear it out, and what it looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ztrio_cli.demo.client import Answer
from ztrio_cli.demo.facts import CHART_PROGRAM, TERMINAL, Facts, Promise, sequences

__all__ = ["PROMISES", "check"]

Check = Callable[[Facts], Promise]


def check(facts: Facts) -> tuple[Promise, ...]:
    """Every promise of the scene."""
    return tuple(promise(facts) for promise in PROMISES[facts.scene])


def _answers(*expected: str) -> Check:
    def promise(facts: Facts) -> Promise:
        got = [answer.code or str(answer.outcome) for answer in facts.answers]
        return Promise(
            f"the client is told {' and '.join(expected)}", got == list(expected), ", ".join(got) or "nothing"
        )

    return promise


def _outcome(expected: str) -> Check:
    def promise(facts: Facts) -> Promise:
        got = [answer.outcome for answer in facts.answers]
        return Promise(f"the outcome is {expected}", got == [expected] * len(got), ", ".join(map(str, got)))

    return promise


def _audit(*expected: str) -> Check:
    def promise(facts: Facts) -> Promise:
        got = [" → ".join(names) for names in sequences(facts.events).values()]
        wanted = list(expected)
        return Promise(
            f"the audit reads {' and '.join(wanted)}", sorted(got) == sorted(wanted), "; ".join(got) or "nothing"
        )

    return promise


def _in_time(facts: Facts) -> Promise:
    evidence = f"{facts.seconds:.2f} s"
    return Promise(f"it takes at most {facts.limit:g} s", facts.seconds <= facts.limit, evidence)


def _untouched(facts: Facts) -> Promise:
    changed = sorted(path for path in {*facts.before, *facts.after} if facts.before.get(path) != facts.after.get(path))
    kept = not changed and bool(facts.before)
    return Promise("every file is bit for bit as before", kept, ", ".join(changed) or f"{len(facts.before)} files")


def _never_seen_changed(facts: Facts) -> Promise:
    kept = len(facts.sightings) == 1 and facts.sightings[0] == facts.before
    evidence = f"{len(facts.sightings)} different sightings"
    return Promise("a reader that looks all the time sees the old files only", kept, evidence)


def _half_written(facts: Facts) -> Promise:
    staged = [path for path in facts.half_written if ".ztrio-job-" in path]
    visible = [path for path in facts.half_written if ".ztrio-job-" not in path]
    evidence = f"{len(staged)} in staging, {len(visible)} visible"
    return Promise("a file was half written, in staging and nowhere else", bool(staged) and not visible, evidence)


def _processes_gone(facts: Facts) -> Promise:
    text = "the worker's child process was seen at work, and every process of the call is gone"
    chart = [process.pid for process in facts.seen if CHART_PROGRAM in process.command]
    alive = ", ".join(f"{process.pid} ({process.command[:40]})" for process in facts.alive)
    evidence = (
        f"still alive: {alive}"
        if alive
        else f"{[process.pid for process in facts.seen]} gone, chart program {chart or 'not seen'}"
    )
    return Promise(text, bool(chart) and not facts.alive, evidence)


def _proof(facts: Facts) -> Promise:
    text = "the audit carries the proof of death of each worker that ran"
    ran = {event["execution_job_id"] for event in facts.events if event["event"] == "start"}
    proven = {
        event["execution_job_id"]: event["proof"]["pid"]
        for event in facts.events
        if event.get("termination_confirmed") and isinstance(event.get("proof"), dict)
    }
    return Promise(text, bool(ran) and ran == proven.keys(), f"workers {sorted(proven.values())}")


def _no_leftovers(facts: Facts) -> Promise:
    return Promise("no staging folder is left", not facts.leftovers, ", ".join(facts.leftovers) or "none")


def _cause(start: str) -> Check:
    def promise(facts: Facts) -> Promise:
        causes = [str(event["cause"]) for event in facts.events if event.get("cause")]
        kept = bool(causes) and all(cause.startswith(start) for cause in causes)
        return Promise(f"the audit says why: {start}", kept, "; ".join(dict.fromkeys(causes)) or "no cause")

    return promise


def _site_whole(facts: Facts) -> Promise:
    missing = sorted(set(facts.extra["expected_files"]) - set(facts.after))
    broken = facts.extra["unfinished"]
    evidence = f"missing {missing}, unfinished {broken}" if missing or broken else f"{len(facts.after)} files"
    return Promise("the new site is there and whole", not missing and not broken, evidence)


def _public_paths(facts: Facts) -> Promise:
    value = facts.answers[0].value
    kept = value.get("site") == facts.extra["target"]
    return Promise("the result names the public path, not the staging folder", kept, str(value.get("site")))


def _history(expected: Mapping[str, int]) -> Check:
    def promise(facts: Facts) -> Promise:
        got = facts.extra["history"]
        return Promise(f"session state counts what was committed: {dict(expected)}", got == expected, str(got))

    return promise


def _names_the_fault(facts: Facts) -> Promise:
    error = facts.answers[0].error or {}
    text = f"{error.get('message', '')} {error.get('exception_type', '')}"
    return Promise("the error names exception, file and line", "BadTable" in text and "line 4" in text, text.strip())


def _serialised(facts: Facts) -> Promise:
    text = "one call ran after the other: the second started when the first had committed"
    spans = [
        [event["monotonic"] for event in facts.events if event["execution_job_id"] == job and event["event"] in names]
        for job in sequences(facts.events)
        for names in (("start",), ("commit",))
    ]
    if [len(span) for span in spans] != [1, 1, 1, 1]:
        return Promise(text, False, "not two calls with start and commit")
    (first_start,), (first_commit,), (second_start,), (second_commit,) = spans
    if second_start < first_start:
        first_commit, second_start = second_commit, first_start
    return Promise(text, first_commit <= second_start, f"{second_start - first_commit:+.4f} s between them")


def _last_wins_whole(facts: Facts) -> Promise:
    commits = [event["session"] for event in facts.events if event["event"] == "commit"]
    # `monotonic` and not `seq` decides who was last: a terminal event takes its number before its transaction.
    last = max(
        (event for event in facts.events if event["event"] == "commit"), key=lambda e: e["monotonic"], default={}
    )
    titles = facts.extra["titles"]
    kept = len(commits) > 1 and set(titles) == {last.get("session")}
    return Promise(
        "every page is of the site committed last", kept, f"committed {commits}, pages of {sorted(set(titles))}"
    )


def _reader_never_misses(facts: Facts) -> Promise:
    allowed = {*facts.extra["whole_versions"]}
    strange = [sighting for sighting in facts.sightings if sighting not in allowed]
    evidence = f"{len(facts.sightings)} versions seen, {len(strange)} of them broken or missing"
    return Promise("a reader always finds a whole page", bool(facts.sightings) and not strange, evidence)


def _refused(text: str, key: str) -> Check:
    def promise(facts: Facts) -> Promise:
        answer: Answer = facts.extra[key]
        kept = answer.code == "SESSION_DESTROYED"
        return Promise(text, kept, answer.code or f"it was answered: {answer.value}")

    return promise


def _server_gone(facts: Facts) -> Promise:
    seconds, status = facts.extra["ended_after"], facts.extra["status"]
    evidence = "it still runs" if seconds is None else f"after {seconds:.2f} s with status {status}"
    return Promise("end of input ends the server in 5 s with status 0", seconds is not None and status == 0, evidence)


def _one_terminal_event(facts: Facts) -> Promise:
    """From the store: every accepted call of the whole demo has exactly one terminal event."""
    recorded = sequences(facts.extra["recorded"])
    reads = {event["execution_job_id"] for event in facts.extra["recorded"] if event.get("capability") == "read"}
    odd = {
        job: names
        for job, names in recorded.items()
        if job and sum(name in TERMINAL or (name == "error" and job in reads) for name in names) != 1
    }
    evidence = f"{len(recorded)} calls, {odd or 'all with one'}"
    return Promise("in the audit log every call of this demo has exactly one end", bool(recorded) and not odd, evidence)


def _old_or_new(facts: Facts) -> Promise:
    text = "after the crash every file is as before, or every file is as the call left it"
    new = facts.extra["rebuilt"]
    found = "as before" if facts.after == facts.before else "as the call left them" if facts.after == new else "mixed"
    return Promise(text, found != "mixed" and facts.before != new, found)


def _crash_told(facts: Facts) -> Promise:
    text = "the audit has one terminal event for the killed call, and files and session state agree with it"
    jobs = {event["execution_job_id"] for event in facts.events}
    ends = [str(event.get("outcome")) for event in facts.events if event["event"] in TERMINAL]
    state = "committed" if facts.extra["history_found"] else "rolled_back"
    files = "rolled_back" if facts.after == facts.before else "committed"
    evidence = f"{len(jobs)} call, audit {ends}, files {files}, state {state}"
    return Promise(text, len(jobs) == 1 and ends == [state] == [files], evidence)


def _nothing_runs(facts: Facts) -> Promise:
    alive = ", ".join(str(process.pid) for process in facts.alive)
    text = "whatever the killed server ran is gone"
    return Promise(text, bool(facts.seen) and not alive, alive or f"{[process.pid for process in facts.seen]} gone")


_DISCARDED = (_untouched, _no_leftovers, _proof)
_KILLED = (_half_written, _processes_gone, _never_seen_changed, *_DISCARDED)

PROMISES: Mapping[str, tuple[Check, ...]] = {
    "commit": (
        _answers("committed"),
        _audit("allow → start → commit"),
        _site_whole,
        _public_paths,
        _processes_gone,
        _proof,
        _history({"default": 1}),
        _no_leftovers,
        _in_time,
    ),
    "timeout": (
        _answers("TOOL_TIMEOUT"),
        _outcome("rolled_back"),
        _audit("allow → start → timeout → worker_terminated → rollback"),
        *_KILLED,
        _history({"default": 1}),
        _in_time,
    ),
    "client cancels": (
        _answers(),
        _audit("allow → start → cancel → worker_terminated → rollback"),
        _cause("cancelled by client"),
        *_KILLED,
        _history({"default": 1}),
        _in_time,
    ),
    "tool error": (
        _answers("TOOL_ERROR"),
        _outcome("rolled_back"),
        _audit("allow → start → error → rollback"),
        _names_the_fault,
        *_DISCARDED,
        _in_time,
    ),
    "two sessions, one target": (
        _answers("committed", "committed"),
        _audit("allow → start → commit", "allow → start → commit"),
        _serialised,
        _last_wins_whole,
        _reader_never_misses,
        _history({"morning": 1, "evening": 1}),
        _processes_gone,
        _proof,
        _no_leftovers,
        _in_time,
    ),
    "destroyed session": (
        _answers("SESSION_DESTROYED"),
        _outcome("not_started"),
        _refused("its state cannot be read again", "read"),
        _untouched,
        _no_leftovers,
        _in_time,
    ),
    "client vanishes": (
        _answers(),
        _audit("allow → start → cancel → worker_terminated → rollback"),
        _cause("client_gone"),
        *_KILLED,
        _server_gone,
        _one_terminal_event,
        _in_time,
    ),
    "server killed": (
        _answers("committed"),
        _old_or_new,
        _crash_told,
        _nothing_runs,
        _no_leftovers,
        _history({"crash": 1}),
        _in_time,
    ),
}
