"""Tool calls over MCP: results, errors, limits, progress, cancellation, resources. A real server on pipes."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from tests.kit.raw_client import MODERN_META, RawClient

from .conftest import Serving


def structured(answer: dict[str, Any]) -> Any:
    """The structured content of a tool result."""
    return answer["result"]["structuredContent"]


async def call(client: RawClient, request_id: Any, tool: str, arguments: dict[str, Any], **options: Any) -> Any:
    """Call a tool and wait for its answer."""
    await client.call(request_id, tool, arguments, **options)
    return await client.reply(request_id)


async def progress_of(client: RawClient, token: Any) -> dict[str, Any]:
    """The next progress notification under this token: same value and type."""

    def wanted(frame: dict[str, Any]) -> bool:
        told = frame.get("params", {}).get("progressToken")
        return frame.get("method") == "notifications/progress" and type(told) is type(token) and told == token

    params: dict[str, Any] = (await client.take(wanted))["params"]
    return params


async def resource(client: RawClient, uri: str) -> Any:
    """What a resource holds."""
    answer = await client.ask(f"read {uri}", "resources/read", {"uri": uri})
    contents = answer["result"]["contents"]
    assert [(uri, "application/json")] == [(item["uri"], item["mimeType"]) for item in contents]
    return json.loads(contents[0]["text"])


async def test_tools_are_listed_with_schemas_and_hints(serving: Serving) -> None:
    """Each tool comes with title, schemas, and the hints that follow from its capability; session tools are there."""
    async with serving() as served:
        listed = (await served.client.ask(1, "tools/list"))["result"]["tools"]
        tools = {tool["name"]: tool for tool in listed}
        assert {"session_open", "session_list", "session_destroy"} < set(tools)
        assert "Echo" == tools["echo"]["title"]
        assert "session" in tools["put"]["inputSchema"]["properties"]
        assert "object" == tools["put"]["outputSchema"]["type"]
        hints = {name: tools[name]["annotations"] for name in ("echo", "put", "fail")}
        assert {
            "echo": {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True},
            "put": {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": False},
            "fail": {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False},
        } == hints


async def test_results_are_objects(serving: Serving) -> None:
    """A dict is the structured content as it is, None is {}, anything else is wrapped; the text is the same JSON."""
    async with serving() as served:
        cases: list[tuple[Any, dict[str, Any]]] = [
            ({"a": [1, None]}, {"a": [1, None]}),
            (None, {}),
            ("text", {"result": "text"}),
            ([1], {"result": [1]}),
        ]
        for value, expected in cases:
            answer = (await call(served.client, 1, "keep", {"value": value}))["result"]
            assert expected == answer["structuredContent"]
            assert [expected] == [json.loads(item["text"]) for item in answer["content"]]
            assert "committed" == answer["_meta"]["ztrio/outcome"]
            job = await resource(served.client, f"ztrio://jobs/{answer['_meta']['ztrio/job_id']}")
            assert "committed" == job["outcome"]


async def test_a_failed_call_says_what_became_of_its_effects(serving: Serving) -> None:
    """An error carries code, message, job and outcome for the program, and a sentence for the model."""
    async with serving() as served:
        answer = (await call(served.client, 1, "fail", {}))["result"]
        assert answer["isError"] is True
        error = answer["structuredContent"]["error"]
        assert ("TOOL_ERROR", "rolled_back") == (error["code"], error["outcome"])
        assert {"ztrio/job_id": error["job_id"], "ztrio/outcome": "rolled_back"} == answer["_meta"]
        text = answer["content"][0]["text"]
        assert all(word in text for word in ("TOOL_ERROR", "no such luck", "rolled_back", error["job_id"]))
        assert ["allow", "start", "error", "rollback"] == await served.event_names(1)


async def test_a_bad_time_limit_is_refused(serving: Serving) -> None:
    """`ztrio/timeout` must be a number of seconds above 0 and within what the tool allows; else nothing runs."""
    async with serving() as served:
        for number, timeout in enumerate([0, -1, True, "5", 61, 10**400, [], 1e308]):
            answer = await call(served.client, number, "heavy", {"out": "x"}, meta={"ztrio/timeout": timeout})
            error = structured(answer)["error"]
            assert ("INVALID_ARGUMENTS", "not_started") == (error["code"], error["outcome"])
            assert ["deny"] == await served.event_names(number)


async def test_a_time_limit_of_the_caller_holds(serving: Serving) -> None:
    """`ztrio/timeout` stops the call after that many seconds and everything is rolled back."""
    async with serving() as served:
        answer = await call(served.client, 1, "heavy", {"out": "x"}, meta={"ztrio/timeout": 0.3})
        error = structured(answer)["error"]
        assert ("TOOL_TIMEOUT", "rolled_back") == (error["code"], error["outcome"])
        assert not (served.supervisor.workspace / "x").exists()
        assert ["allow", "start", "timeout", "worker_terminated", "rollback"] == await served.event_names(1)


async def test_bad_arguments_are_refused(serving: Serving) -> None:
    """An unknown argument or an unusable session name is refused before anything runs."""
    async with serving() as served:
        wrong: list[dict[str, Any]] = [{"session": 5}, {"session": ""}, {"session": None}, {"nonsense": 1}]
        for arguments in wrong:
            answer = await call(served.client, 1, "keep", {"value": 1, **arguments})
            error = structured(answer)["error"]
            assert ("INVALID_ARGUMENTS", "not_started") == (error["code"], error["outcome"])
            assert "not_started" == answer["result"]["_meta"]["ztrio/outcome"]


async def test_what_does_not_exist_is_an_error_of_the_protocol(serving: Serving) -> None:
    """An unknown tool, method, resource or job is a JSON-RPC error with the protocol's own code."""
    async with serving() as served:
        client = served.client
        assert -32602 == (await call(client, 1, "nonsense", {}))["error"]["code"]
        assert -32601 == (await client.ask(2, "nonsense"))["error"]["code"]
        for number, uri in enumerate(
            ["ztrio://nothing", "ztrio://jobs/", "ztrio://jobs/job_x", "file:///etc/passwd", "ztrio://[", ""]
        ):
            answer = await client.ask(f"u{number}", "resources/read", {"uri": uri})
            assert (-32002, {"uri": uri}) == (answer["error"]["code"], answer["error"]["data"])
        for number, query in enumerate(["after=x", "after=-1", "after", "before=1", "after=" + "9" * 30]):
            answer = await client.ask(f"q{number}", "resources/read", {"uri": f"ztrio://audit/events?{query}"})
            assert -32602 == answer["error"]["code"]


async def test_sessions_are_an_ordinary_argument(serving: Serving) -> None:
    """`session` chooses the state a call uses; a minted handle works until it is destroyed."""
    async with serving() as served:
        client = served.client
        handle = structured(await call(client, 1, "session_open", {}))["session"]
        for expected in (1, 2):
            answer = structured(await call(client, 2, "put", {"text": "x", "out": "a.txt", "session": handle}))
            assert expected == answer["writes"]
        assert 1 == structured(await call(client, 3, "put", {"text": "x", "out": "a.txt"}))["writes"]
        names = {row["name"] for row in structured(await call(client, 4, "session_list", {}))["sessions"]}
        assert {handle, "default"} == names
        assert {"destroyed": handle} == structured(await call(client, 5, "session_destroy", {"session": handle}))
        answer = structured(await call(client, 6, "put", {"text": "x", "out": "a.txt", "session": handle}))
        assert "SESSION_DESTROYED" == answer["error"]["code"]


async def test_the_audit_is_a_resource(serving: Serving) -> None:
    """The audit lists events oldest first with the client's own ids, and `after` continues where a reader stopped."""
    async with serving() as served:
        await call(served.client, "7", "keep", {"value": 1})
        events = (await resource(served.client, "ztrio://audit/events"))["events"]
        assert ["allow", "start", "commit"] == [event["event"] for event in events]
        assert {"7"} == {event["request_id"] for event in events}
        assert {"keep"} == {event["tool"] for event in events}
        last = events[-1]["log_pos"]
        await call(served.client, 7, "fail", {})
        later = (await resource(served.client, f"ztrio://audit/events?after={last}"))["events"]
        assert {7} == {event["request_id"] for event in later}
        assert ["ztrio://audit/events"] == [
            item["uri"] for item in (await served.client.ask(1, "resources/list"))["result"]["resources"]
        ]
        templates = (await served.client.ask(2, "resources/templates/list"))["result"]["resourceTemplates"]
        assert ["ztrio://audit/events{?after}", "ztrio://jobs/{id}"] == [item["uriTemplate"] for item in templates]


@pytest.mark.case("R64")
async def test_reads_pass_waiting_mutators(serving: Serving) -> None:
    """While one mutating call runs and others wait for its session, reads and pings are answered."""
    async with serving() as served:
        await served.client.call(1, "heavy", {"out": "x"}, meta={"progressToken": 1})
        await progress_of(served.client, 1)
        await served.client.call(2, "put", {"text": "x", "out": "a.txt"})
        assert {"result": 3} == structured(await call(served.client, 3, "echo", {"value": 3}))
        assert {} == (await served.client.ask(4, "ping"))["result"]
        assert ["allow"] == await served.event_names(2)
        await served.client.notify("notifications/cancelled", {"requestId": 1})
        assert 1 == structured(await served.client.reply(2))["writes"]


async def test_progress_is_growing_bounded_and_over_with_the_answer(serving: Serving) -> None:
    """Progress carries the client's token, only grows, is thinned out, ends with the last report, and then stops."""
    async with serving() as served:
        await served.client.call("a", "steps", {"count": 3000}, meta={"progressToken": "1"})
        await served.client.call("b", "steps", {"count": 3, "pause": 0.1}, meta={"progressToken": 1})
        await served.client.reply("a")
        await served.client.reply("b")
        await served.client.ask("c", "ping")
        frames = served.client.frames
        for request_id, token, count in (("a", "1", 3000), ("b", 1, 3)):
            end = next(index for index, frame in enumerate(frames) if frame.get("id") == request_id)
            told = [
                (index, frame["params"])
                for index, frame in enumerate(frames)
                if frame.get("method") == "notifications/progress"
                and type(frame["params"]["progressToken"]) is type(token)
                and frame["params"]["progressToken"] == token
            ]
            values = [params["progress"] for _, params in told]
            assert values == sorted(set(values))
            assert 0 < len(told) < 200
            if count == 3:
                last = {"progressToken": token, "progress": 3, "total": 3, "message": "step 3"}
                assert last == told[-1][1]
            assert all(index < end for index, _ in told)


async def test_no_progress_without_a_token(serving: Serving) -> None:
    """A client that did not ask for progress gets none."""
    async with serving() as served:
        await call(served.client, 1, "steps", {"count": 5})
        assert not [frame for frame in served.client.frames if frame.get("method") == "notifications/progress"]


@pytest.mark.case("R22")
async def test_a_cancelled_call_is_rolled_back_and_never_answered(serving: Serving) -> None:
    """After a cancel that was honoured no message with that id comes; the audit has the client's reason."""
    async with serving() as served:
        await served.client.call("7", "heavy", {"out": "x"}, meta={"progressToken": "7"})
        await progress_of(served.client, "7")
        await served.client.call(7, "nap", {"seconds": 0.5})
        async with served.supervisor.audit.subscribe() as events:
            await served.client.notify("notifications/cancelled", {"requestId": "7", "reason": "too slow"})
            with trio.fail_after(30):
                async for event in events:
                    if event.event == "rollback":
                        break
        assert "cancelled by client: too slow" == event.cause
        assert ["allow", "start", "cancel", "worker_terminated", "rollback"] == await served.event_names("7")
        assert {"slept": 0.5} == structured(await served.client.reply(7))
        assert not [frame for frame in served.client.frames if frame.get("id") == "7"]
        assert not (served.supervisor.workspace / "x").exists()
        assert {"result": 1} == structured(await call(served.client, "7", "keep", {"value": 1}))


@pytest.mark.case("R22")
async def test_a_cancel_in_the_queue(serving: Serving) -> None:
    """A call cancelled while it waits never starts; its audit is allow, cancel."""
    async with serving() as served:
        await served.client.call(1, "heavy", {"out": "x"}, meta={"progressToken": 1})
        await progress_of(served.client, 1)
        await served.client.call(2, "put", {"text": "x", "out": "y"})
        await served.client.ask(3, "ping")
        async with served.supervisor.audit.subscribe() as events:
            await served.client.notify("notifications/cancelled", {"requestId": 2})
            with trio.fail_after(30):
                async for event in events:
                    if event.event == "cancel":
                        break
        assert (2, "cancelled by client", "not_started") == (event.request_id, event.cause, event.outcome)
        assert ["allow", "cancel"] == await served.event_names(2)


async def test_the_modern_era(serving: Serving) -> None:
    """Protocol 2026-07-28: discover, list, call and read with an envelope per request; `initialize` is refused."""
    async with serving(handshake=False) as served:
        client = served.client
        found = (await client.ask(1, "server/discover", {"_meta": MODERN_META}))["result"]
        assert "2026-07-28" in found["supportedVersions"]
        assert "tools" in (await client.ask(2, "tools/list", {"_meta": MODERN_META}))["result"]
        answer = (await call(client, "3", "keep", {"value": 10**30}, meta={**MODERN_META, "ztrio/timeout": 9}))[
            "result"
        ]
        assert ({"result": 10**30}, "complete") == (answer["structuredContent"], answer["resultType"])
        assert "committed" == answer["_meta"]["ztrio/outcome"]
        missing = await client.ask(4, "resources/read", {"uri": "ztrio://nothing", "_meta": MODERN_META})
        assert -32602 == missing["error"]["code"]
        refused = await client.ask(5, "initialize", {"protocolVersion": "2025-11-25"})
        assert -32022 == refused["error"]["code"]
        await client.call(6, "heavy", {"out": "x"}, meta={**MODERN_META, "progressToken": "six"})
        await progress_of(client, "six")
        async with served.supervisor.audit.subscribe() as events:
            await client.notify("notifications/cancelled", {"requestId": 6, "reason": "enough"})
            with trio.fail_after(30):
                async for event in events:
                    if event.event == "rollback":
                        break
        assert "cancelled by client: enough" == event.cause


async def test_a_repeated_call_gets_the_first_answer(serving: Serving) -> None:
    """Under one key a call is done once: the same value, job and outcome again; other arguments are refused."""
    async with serving() as served:
        meta = {"ztrio/idempotency_key": "k"}
        first = (await call(served.client, 1, "keep", {"value": [1]}, meta=meta))["result"]
        again = (await call(served.client, 2, "keep", {"value": [1]}, meta=meta))["result"]
        assert ("committed", first) == (first["_meta"]["ztrio/outcome"], again)
        other = (await call(served.client, 3, "keep", {"value": [2]}, meta=meta))["result"]
        error = other["structuredContent"]["error"]
        assert ("IDEMPOTENCY_CONFLICT", "not_started") == (error["code"], other["_meta"]["ztrio/outcome"])
        job = await resource(served.client, f"ztrio://jobs/{first['_meta']['ztrio/job_id']}")
        assert ("committed", "k") == (job["outcome"], job["idempotency_key"])
        assert ["allow", "start", "commit"] == await served.event_names(1)
        assert [] == await served.event_names(2)


@pytest.mark.parametrize("key", ["", 7, "\ud800", ["k"], "x" * 257])
async def test_what_is_no_key(serving: Serving, key: Any) -> None:
    """A key that is none is a wrong argument, answered like any other; null stands for no key."""
    async with serving() as served:
        answer = await call(served.client, 1, "keep", {"value": 1}, meta={"ztrio/idempotency_key": key})
        assert "INVALID_ARGUMENTS" == answer["result"]["structuredContent"]["error"]["code"]
        answer = await call(served.client, 2, "keep", {"value": 1}, meta={"ztrio/idempotency_key": None})
        assert "committed" == answer["result"]["_meta"]["ztrio/outcome"]
