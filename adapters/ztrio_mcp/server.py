"""The MCP side of a supervisor: tools, calls and resources as handlers of the SDK's lowlevel `Server`.

The SDK speaks both eras on one connection: 2025-11-25 (`initialize`) and 2026-07-28 (an envelope in each request's
`_meta`, `server/discover`); the first request decides. It runs each request in its own task, so reads, pings and
cancels are answered while mutating calls wait or run. Tool calls that need nothing of it come straight from the
transport (`ztrio_mcp.eras`) and are answered alike. Nothing here runs tool code.

A call's arguments, its session and what its `_meta` says under `ztrio/…` go to the supervisor as they came: it refuses
what does not fit, so that a refusal is a job in the audit like any other.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import attrs
import trio
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import (
    SERVER_INFO_META_KEY,
    CallToolRequestParams,
    CallToolResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextResourceContents,
    Tool,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from ztrio.audit import AuditEvent
from ztrio.calls import LOCAL, CallContext, CallResult, ProgressCallback
from ztrio.errors import Outcome, ZtrioError
from ztrio.schema import SESSION_PARAMETER
from ztrio.supervisor import Supervisor
from ztrio_mcp.descriptors import PENDING_DESCRIPTORS, tool
from ztrio_mcp.frames import Call, FrameFilter, InFlight
from ztrio_mcp.jsonrpc import INVALID_PARAMS, RESOURCE_NOT_FOUND
from ztrio_mcp.pending_tools import PENDING_TOOLS, answer_pending
from ztrio_mcp.progress import ProgressPump, Send
from ztrio_mcp.results import (
    IDEMPOTENCY_KEY_META,
    RECONCILES_META,
    TIMEOUT_META,
    error_result,
    plain_result,
    success_result,
)

__all__ = ["AUDIT_URI", "JOBS_URI", "MAX_EVENTS", "McpServer"]

AUDIT_URI: Final = "ztrio://audit/events"
JOBS_URI: Final = "ztrio://jobs/"

MAX_EVENTS: Final = 10_000
"""Events in one reading of the audit resource; the newest."""

_Context = ServerRequestContext[Any, Any]

_INSTRUCTIONS: Final = (
    "Every answer to a tool call carries _meta['ztrio/outcome']: 'committed' means files and session state are as the "
    "tool left them, 'rolled_back' and 'not_started' mean nothing changed, 'unresolved' means nobody can tell: look "
    "before repeating. Calls with the same `session` argument share state and run one after the other. "
    "_meta['ztrio/timeout'] sets a call's time limit in seconds. _meta['ztrio/idempotency_key'] names a call: repeated "
    "under the same key it is not done twice, and gets the first answer. A call that nobody knows the end of is listed "
    "by ztrio_pending_calls; _meta['ztrio/reconciles'] = [call ids] on a read says that you have looked."
)


class McpServer:
    """Answers the requests of one connection out of a supervisor.

    Args:
        supervisor: Runs the calls.
        frames: The connection's table of requests in flight: the client's own ids and the causes of cancellations.
        context: Who is calling.
        version: Version of the server shown to clients.

    """

    def __init__(
        self, supervisor: Supervisor, frames: FrameFilter, *, context: CallContext = LOCAL, version: str = ""
    ) -> None:
        self._supervisor = supervisor
        self._frames = frames
        self._context = attrs.evolve(context, surface="mcp")
        self._describe()
        self._sdk: Server[Any] = Server(
            supervisor.toolbox.name,
            version=version,
            instructions=_INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_resource_templates,
            on_read_resource=self._read_resource,
        )

    def _describe(self) -> None:
        """Find out which tools there are."""
        self._toolbox = self._supervisor.toolbox
        described = self._supervisor.describe_tools()
        self._tools = {each.name: tool(each) for each in described} | dict(PENDING_DESCRIPTORS)
        self._frames.tools = self._tools

    def _current_tools(self) -> dict[str, Tool]:
        if self._toolbox is not self._supervisor.toolbox:  # it was reloaded
            self._describe()
        return self._tools

    async def run(
        self, read_stream: ReadStream[SessionMessage | Exception], write_stream: WriteStream[SessionMessage]
    ) -> None:
        """Serve one connection until its input ends."""
        told = NotificationOptions(tools_changed=True)
        await self._sdk.run(read_stream, write_stream, self._sdk.create_initialization_options(told))

    async def watch_tools(self, tell: Callable[[str], Awaitable[None]]) -> None:
        """Tell the client whenever a reload has changed what is listed. Runs as long as the connection.

        A client of the modern era asks again by itself: it is told with each list that this is not to be kept.

        Args:
            tell: Sends the notification of that name.
        """
        told = self._tools
        while True:
            reloaded = self._supervisor.reloaded
            if self._current_tools() != told:
                told = self._tools
                await tell("notifications/tools/list_changed")
            else:
                await reloaded.wait()

    def undelivered(self, request: InFlight, why: str) -> None:
        """An answer did not reach the client; the audit says so where the call had committed."""
        if request.committed is not None:
            self._supervisor.audit.publish(request.committed.evolved(reason=why))

    # ---- tools

    async def _list_tools(self, _ctx: _Context, _params: PaginatedRequestParams | None) -> ListToolsResult:
        await trio.lowlevel.checkpoint()
        return ListToolsResult(tools=list(self._current_tools().values()))

    async def _call_tool(self, ctx: _Context, params: CallToolRequestParams) -> CallToolResult:
        if params.name not in self._current_tools():
            raise MCPError(code=INVALID_PARAMS, message=f"Unknown tool: {params.name}")
        request = self._frames.get(ctx.request_id)
        assert request is not None  # the SDK has no request that did not come through the table
        result = await self._answer(request, ctx.params or {}, ctx.session.report_progress)
        return CallToolResult.model_validate(result, by_name=False)

    async def call(self, call: Call, report: Send) -> dict[str, Any]:
        """Serve a call beside the SDK; the result as it goes over the wire.

        Args:
            call: The call.
            report: Sends one progress notification.
        """
        result = await self._answer(call.request, call.params, report)
        if call.version in MODERN_PROTOCOL_VERSIONS:
            # What the SDK adds to every result of that era (MCP 2026-07-28, Base Protocol, Responses).
            result["resultType"] = "complete"
            result["_meta"][SERVER_INFO_META_KEY] = self._sdk.server_info_stamp
        return result

    async def _answer(self, request: InFlight, params: Mapping[str, Any], report: Send) -> dict[str, Any]:
        if request.token is None:
            return await self._run(request, params, None)
        pump = ProgressPump(report)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pump.run)
            result = await self._run(request, params, pump.report)
            pump.end()
        return result

    async def _run(
        self, request: InFlight, params: Mapping[str, Any], on_progress: ProgressCallback | None
    ) -> dict[str, Any]:
        arguments = dict(params.get("arguments") or {})
        if params["name"] in PENDING_TOOLS:
            return await self._run_pending(params["name"], request, arguments)
        session = arguments.pop(SESSION_PARAMETER, "default")
        meta = params.get("_meta") or {}
        try:
            answer = await self._supervisor.call(
                params["name"],
                arguments,
                session=session,
                timeout=meta.get(TIMEOUT_META),
                context=self._context_of(request),
                cause=request.cause,
                on_progress=on_progress,
                capped=True,
                idempotency_key=meta.get(IDEMPOTENCY_KEY_META),
                reconciles=meta.get(RECONCILES_META, ()),
            )
        except ZtrioError as error:
            return error_result(error)
        if answer.outcome is Outcome.COMMITTED:
            request.committed = self._commit_unanswered(params["name"], session, request, answer)
        return success_result(answer)

    async def _run_pending(self, name: str, request: InFlight, arguments: dict[str, Any]) -> dict[str, Any]:
        context = self._context_of(request)
        try:
            return plain_result(await answer_pending(name, self._supervisor.pending, context, arguments))
        except ZtrioError as error:
            return error_result(error)

    def _context_of(self, request: InFlight) -> CallContext:
        context = self._context
        return CallContext(context.principal, context.view, context.surface, context.gate_scope, request.audit_id)

    def _commit_unanswered(self, name: str, session: str, request: InFlight, answer: CallResult) -> AuditEvent:
        return AuditEvent(
            event="commit_unanswered",
            execution_job_id=answer.job_id,
            tool=name,
            session=session,
            principal=self._context.principal.id,
            request_id=request.audit_id,
            surface=self._context.surface,
            outcome=answer.outcome,
        )

    # ---- resources

    async def _list_resources(self, _ctx: _Context, _params: PaginatedRequestParams | None) -> ListResourcesResult:
        await trio.lowlevel.checkpoint()
        return ListResourcesResult(
            resources=[
                Resource(
                    uri=AUDIT_URI,
                    name="audit-events",
                    title="Audit events",
                    description=f"What happened to each call, oldest first; the newest {MAX_EVENTS} events.",
                    mime_type="application/json",
                )
            ]
        )

    async def _list_resource_templates(
        self, _ctx: _Context, _params: PaginatedRequestParams | None
    ) -> ListResourceTemplatesResult:
        await trio.lowlevel.checkpoint()
        return ListResourceTemplatesResult(
            resource_templates=[
                ResourceTemplate(
                    uri_template=f"{AUDIT_URI}{{?after}}",
                    name="audit-events-after",
                    title="Audit events after a position",
                    description="Only events whose `log_pos` is greater than `after`.",
                    mime_type="application/json",
                ),
                ResourceTemplate(
                    uri_template=f"{JOBS_URI}{{id}}",
                    name="job",
                    title="A job",
                    description="What became of a call, by the job id in its answer.",
                    mime_type="application/json",
                ),
            ]
        )

    async def _read_resource(self, ctx: _Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        content = await self._resource(params.uri)
        if content is None:
            modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
            raise MCPError(
                code=INVALID_PARAMS if modern else RESOURCE_NOT_FOUND,
                message="Resource not found",
                data={"uri": params.uri},
            )
        text = json.dumps(content, ensure_ascii=False)
        return ReadResourceResult(
            contents=[TextResourceContents(uri=params.uri, mime_type="application/json", text=text)]
        )

    async def _resource(self, uri: str) -> dict[str, Any] | None:
        """The content of a resource; None when there is none of this name, for this principal."""
        try:
            parts = urlsplit(uri)
        except ValueError:
            return None
        place = f"{parts.scheme}://{parts.netloc}{parts.path}"
        if parts.fragment:
            return None
        if place == AUDIT_URI:
            after = _after(parts.query)
            return {"events": await self._supervisor.events(context=self._context, after=after, limit=MAX_EVENTS)}
        job_id = unquote(place.removeprefix(JOBS_URI))
        if place.startswith(JOBS_URI) and job_id and not parts.query:
            return await self._supervisor.job(job_id, context=self._context)
        return None


def _after(query: str) -> int:
    """The position in `after=<n>`, 0 without a query."""
    pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=10)
    text = dict(pairs).get("after", "0")
    if not all(name == "after" for name, _ in pairs) or not (text.isascii() and text.isdecimal()) or len(text) > 20:
        raise MCPError(code=INVALID_PARAMS, message=f"{AUDIT_URI} takes ?after=<the log_pos of the last event seen>")
    return int(text)
