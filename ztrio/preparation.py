"""What a call needs before its worker starts: the session as it is, a place for its outputs, and the request.

`prepare` blocks and does all of it in one turn in a thread: whatever a call waits for there, it waits for once.
"""

from __future__ import annotations

from ztrio.errors import SessionDestroyedError, StoreUnavailable
from ztrio.jobs import Job, Runtime
from ztrio.loading import known_ref
from ztrio.plain import encode
from ztrio.publication.staging import Staging
from ztrio.sessions import HANDLE_PREFIX
from ztrio.store import EMPTY_STATE, SessionRow
from ztrio.workers.backend import Worker
from ztrio.workers.wire import Request

__all__ = ["prepare", "request", "store_failed"]


def prepare(runtime: Runtime, job: Job, worker: Worker) -> tuple[SessionRow | None, Staging]:
    """Read the call's session and make its staging area. Blocks; only while the call has its tickets.

    Args:
        runtime: What the calls share.
        job: The call.
        worker: Its worker, for the note in the job directory.

    Returns:
        The session, None where there is none yet, and the staging area.

    Raises:
        StoreUnavailable: the session cannot be read.
        SessionDestroyedError: the session is a handle that is burnt.
        OutputRefused: a target cannot be published to.
        LimitExceeded: a target is too big to be copied in.
        OSError: staging could not be made. In every case nothing is left behind.
    """
    principal = job.context.principal.id
    try:
        session = runtime.store.read_session(principal, job.session)
    except Exception as error:
        raise store_failed(error) from error
    if session is None and job.session.startswith(HANDLE_PREFIX):
        raise SessionDestroyedError(f"Session {job.session!r} was destroyed. Nothing ran; open a new session.")
    label = {
        "tool": job.tool.name,
        "session": job.session,
        "principal": principal,
        "external": job.tool.effects == "external",
        "worker_pid": worker.pid,
        "worker_started_at": worker.started_at,
    }
    # That its worker may run is written before it gets the request, so that one note does for both phases.
    return session, runtime.publisher.prepare(job.id, job.targets, label=label, phase="worker_running")


def request(runtime: Runtime, job: Job, session: SessionRow | None, staging: Staging) -> Request:
    """The call as its worker gets it."""
    ref = known_ref(job.tool.function)
    workspace = str(runtime.workspace)
    return Request(
        job_id=job.id,
        tool=job.tool.name,
        module=(ref.module.name, ref.module.file),
        function=ref.name,
        arguments=encode({**job.arguments, **staging.paths}),
        session=EMPTY_STATE if session is None else session.state,
        session_name=job.session,
        principal=job.context.principal.id,
        request_id=encode(job.context.request_id),
        workspace=workspace,
        tmp=str(staging.tmp),
        env={**runtime.sandbox.environment, **job.tool.environment()},
        read_only=job.reads_only,
        max_result=runtime.settings.max_result,
        max_state=runtime.settings.max_state,
        init=job.tool.init,
        sandbox=runtime.sandbox.policy(
            workspace=workspace,
            staging=staging.writable,
            writes=job.tool.writes,
            limits=job.tool.limits,
        ),
    )


def store_failed(error: Exception) -> StoreUnavailable:
    """The refusal of a call whose store failed before its tool ran."""
    return StoreUnavailable(
        f"The store failed ({type(error).__name__}: {error}). Nothing was published; repeat when it works."
    )
