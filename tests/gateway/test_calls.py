"""Calls through a gateway to a real server: what passes, what is named, what is settled."""

import json
from pathlib import Path

import pytest
import trio

from tests.gateway.box import code_of, gateway, pending_of
from ztrio.management import frames


async def test_an_answer_passes_as_it_is(tmp_path: Path) -> None:
    """A client gets the server's result, with the call's id beside it, and the server gets the caller's arguments."""
    given = {"n": 10**30, "f": 1e5, "s": "é\ud800"}
    async with gateway(tmp_path) as box:
        found = await box.call("look", given)
        assert given == found["echo"]
        assert "completed" == found["_meta"]["ztrio/outcome"]
        [frame] = box.received("tools/call")
        assert found["_meta"]["ztrio/call_id"] == frame["params"]["_meta"]["ztrio/call_id"]


async def test_tools_are_listed_with_ours_behind_the_last(tmp_path: Path) -> None:
    """Each page is the server's own, unknown fields and all, and the gateway's tools follow on the last."""
    async with gateway(tmp_path) as box:
        first = (await box.ask("tools/list"))["result"]
        last = (await box.ask("tools/list", {"cursor": first["nextCursor"]}))["result"]
        assert [1e5, 10**30] == first["tools"][0]["x-unknown"]
        names = [tool["name"] for tool in last["tools"]]
        assert ["ztrio_pending_calls", "ztrio_pending_call", "ztrio_cancel_pending_call", "ztrio_batch"] == names[-4:]


@pytest.mark.req("P22", "P23", "P26")
@pytest.mark.case("R18", "R22", "R27", "R29")
async def test_a_call_that_is_late_is_named_watched_and_settled(tmp_path: Path) -> None:
    """A call past its limit is unresolved and nobody waits for it; its late answer settles it and is not passed on."""
    async with gateway(tmp_path, timeout=0.3, late_results=True) as box:
        call = pending_of(await box.call("write", {"delay": 0.8}))
        assert ("unresolved", "deadline_exceeded", True) == (call["state"], call["reason"], call["gating"])
        assert "content" in await box.call("look")
        await box.settled(call["call_id"], "completed_late")
        assert ["written"] == box.ledger
        assert 1 == sum(frame.get("id") == 101 for frame in box.client.frames), "the late answer is not passed on"


@pytest.mark.req("P27")
async def test_a_late_result_is_kept_only_where_that_is_wanted(tmp_path: Path) -> None:
    """By default the outcome of a late answer is noted and its content let go of."""
    async with gateway(tmp_path, timeout=0.2) as box:
        call_id = pending_of(await box.call("write", {"delay": 0.4}))["call_id"]
        await box.settled(call_id, "completed_late")
        found = (await box.call("ztrio_pending_call", {"call_id": call_id}))["structuredContent"]
        assert {"pending_call"} == found.keys()
        assert "success" == found["pending_call"]["late_outcome"]


@pytest.mark.parametrize(("gate", "lines"), [("off", 2), ("warn", 2), ("enforce", 1)])
@pytest.mark.req("P32", "P35")
@pytest.mark.case("R27")
async def test_a_blind_repeat(tmp_path: Path, gate: str, lines: int) -> None:
    """While a write is unresolved, the same again is sent, sent with a warning, or refused before it is sent."""
    async with gateway(tmp_path, timeout=0.2, gate=gate) as box:
        pending_of(await box.call("write", {"delay": 0.5}))
        again = await box.call("write")
        if gate == "enforce":
            assert "PENDING_CALL_UNRESOLVED" == code_of(again)
        else:
            assert (gate == "warn") == ("pending_call_warning" in again["_meta"])
        await trio.sleep(0.6)
        assert lines == len(box.ledger)


@pytest.mark.req("P39")
async def test_a_read_that_looked_settles(tmp_path: Path) -> None:
    """A read that names the call opens its gate, and the server is not told of the name."""
    async with gateway(tmp_path, timeout=0.2, gate="enforce") as box:
        call_id = pending_of(await box.call("silent"))["call_id"]
        await box.call("look", reconciles=[call_id])
        assert "reconciled" == await box.state(call_id)
        assert "content" in await box.call("write")
        assert "ztrio/reconciles" not in json.dumps(box.received("tools/call"))


@pytest.mark.req("P41", "P42", "I8")
@pytest.mark.case("R17", "R19", "R23")
async def test_a_cancel_reaches_one_call_once(tmp_path: Path) -> None:
    """Cancelling a pending call sends one frame under the server's own id; asking again sends none; others go on."""
    async with gateway(tmp_path, timeout=0.2) as box:
        call = pending_of(await box.call("silent"))
        first = (await box.call("ztrio_cancel_pending_call", {"call_id": call["call_id"]}))["structuredContent"]
        again = (await box.call("ztrio_cancel_pending_call", {"call_id": call["call_id"]}))["structuredContent"]
        assert ("cancelled", True, "notification") == (first["state"], first["cancel_sent"], first["method"])
        assert "cancelled" == again["state"]
        await box.call("look")
        [told] = box.received("notifications/cancelled")
        wire = [each["id"] for each in box.received("tools/call") if each["params"]["name"] == "silent"]
        assert wire == [told["params"]["requestId"]]


@pytest.mark.parametrize(("policy", "told"), [("never", 0), ("explicit", 1)])
@pytest.mark.req("P42", "P5")
@pytest.mark.case("R17", "R22")
async def test_a_client_that_leaves(tmp_path: Path, policy: str, told: int) -> None:
    """A client's own cancel makes its call unresolved and unanswered; the server hears of it only where that is set."""
    async with gateway(tmp_path, forward_cancel=policy) as box:
        await box.client.call(7, "silent")
        await box.until(lambda: _async(any(each["params"]["name"] == "silent" for each in box.received("tools/call"))))
        await box.client.notify("notifications/cancelled", {"requestId": 7, "reason": "tired"})
        await box.until(lambda: _listed(box))
        [call] = await box.pending()
        assert ("caller_cancelled", "cancelled" if told else "unresolved") == (call["reason"], call["state"])
        await box.call("look")
        assert told == len(box.received("notifications/cancelled"))
        assert not [frame for frame in box.client.frames if frame.get("id") == 7]


async def _async(value: bool) -> bool:
    await trio.lowlevel.checkpoint()
    return value


async def _listed(box: object) -> bool:
    found = await box.pending()  # type: ignore[attr-defined]
    return bool(found) and found[0]["state"] != "sent"


@pytest.mark.case("R47")
async def test_progress_of_this_very_call_resets_the_idle_limit(tmp_path: Path) -> None:
    """Progress under the call's token keeps it going up to the ceiling; another token does nothing."""
    async with gateway(tmp_path, idle=0.3, ceiling=1.5, timeout=0.3) as box:
        found = await box.call("progress", {"every": 0.1, "times": 8}, progressToken="mine")
        assert "done" == found["content"][0]["text"]
        shown = [frame["params"] for frame in box.client.frames if frame.get("method") == "notifications/progress"]
        assert [("mine", step) for step in range(8)] == [(each["progressToken"], each["progress"]) for each in shown]
        before = trio.current_time()
        still = pending_of(await box.call("progress", {"every": 0.1, "times": 50}))
        assert "still_running" == still["reason"]
        assert 1.4 < trio.current_time() - before < 2.2
        before = trio.current_time()
        foreign = pending_of(await box.call("progress", {"every": 0.1, "times": 20, "token": "other"}))
        assert "deadline_exceeded" == foreign["reason"]
        assert trio.current_time() - before < 1.0


@pytest.mark.req("P5")
async def test_a_caller_names_its_own_limit(tmp_path: Path) -> None:
    """`ztrio/timeout` ends the wait sooner, and beyond the ceiling it is refused before anything is sent."""
    async with gateway(tmp_path, timeout=5) as box:
        assert "caller_deadline" == pending_of(await box.call("silent", timeout=0.2))["reason"]
        refused = await box.call("silent", timeout=6)
        assert "INVALID_ARGUMENTS" == code_of(refused)
        assert 1 == len(box.received("tools/call"))


@pytest.mark.req("P5")
async def test_waiting_for_a_human_is_said_only_when_it_is_known(tmp_path: Path) -> None:
    """A call whose own question is unanswered says so; the same question answered in time changes nothing."""
    async with gateway(tmp_path, timeout=0.5, capabilities={"elicitation": {}}) as box:
        await box.client.call(5, "ask")
        asked = await box.client.take(lambda frame: frame.get("method") == "elicitation/create")
        assert "waiting_human" == pending_of((await box.client.reply(5))["result"])["reason"]
        await box.client.send_json({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept"}})
        [call] = await box.pending()
        await box.settled(call["call_id"], "completed_late")


async def test_a_client_is_not_asked_what_it_cannot_answer(tmp_path: Path) -> None:
    """A server that asks what its client did not declare gets what such a client would say."""
    async with gateway(tmp_path) as box:
        found = await box.call("ask", {"method": "sampling/createMessage"})
        assert -32601 == json.loads(found["content"][0]["text"])["code"]
        assert "{}" == (await box.call("ask", {"method": "ping"}))["content"][0]["text"]


@pytest.mark.req("P28", "P24")
@pytest.mark.case("R40")
@pytest.mark.parametrize(("kind", "seen"), [("string id", None), ("neither", -32603), ("error", -32000)])
async def test_odd_answers(tmp_path: Path, kind: str, seen: int | None) -> None:
    """An answer under an id of another type is nobody's; one without a result is an error; an error passes whole."""
    async with gateway(tmp_path, timeout=0.3) as box:
        found = await box.call("odd", {"kind": kind})
        if seen is None:
            pending_of(found)
        else:
            assert seen == found["code"]
        if kind == "error":
            assert {"n": 10**30} == found["data"]
        assert "content" in await box.call("look")


@pytest.mark.req("P28")
async def test_a_second_answer_is_dropped(tmp_path: Path) -> None:
    """The first answer counts, whatever comes under its id afterwards; a lone surrogate passes."""
    async with gateway(tmp_path) as box:
        assert "first" == (await box.call("odd", {"kind": "twice"}))["content"][0]["text"]
        assert "\ud800" == (await box.call("odd", {"kind": "surrogate"}))["content"][0]["text"]
        status = (await box.operator(frames.Status()))["ok"]
        assert 1 == status["wire"]["stale"]


@pytest.mark.case("R31", "R32")
async def test_noise_between_the_frames(tmp_path: Path) -> None:
    """Banners, blank lines, lists, bare values and a mebibyte of stderr cost nothing."""
    async with gateway(tmp_path) as box:
        for _ in range(3):
            assert "heard" == (await box.call("noise", {"stderr": 2**20}))["content"][0]["text"]


@pytest.mark.req("P55")
async def test_a_batch_through_the_gateway(tmp_path: Path) -> None:
    """A batch's calls go through the seam, and what is unresolved in it is listed by its ids."""
    async with gateway(tmp_path, timeout=0.3) as box:
        calls = [{"tool": "look"}, {"tool": "silent"}, {"tool": "odd", "arguments": {"kind": "error"}}]
        calls += [{"tool": "ztrio_batch"}]
        found = (await box.call("ztrio_batch", {"calls": calls}))["structuredContent"]
        assert [True, False, False, False] == [each["ok"] for each in found["results"]]
        assert [(await box.pending())[0]["call_id"]] == found["unresolved"]


@pytest.mark.case("R45")
async def test_the_queue_is_bounded(tmp_path: Path) -> None:
    """Of three calls the first runs, the second waits too long and the third finds no room, and both are unsent."""
    async with gateway(tmp_path, concurrency=1, queue=1, queue_timeout=0.3, timeout=1.0) as box:
        for number in (1, 2, 3):
            await box.client.call(number, "silent")
        codes = [code_of((await box.client.reply(number))["result"]) for number in (1, 2, 3)]
        assert ["CALL_UNRESOLVED", "QUEUE_TIMEOUT", "QUEUE_FULL"] == codes
        assert 1 == len(box.received("tools/call"))


async def test_what_is_no_call_is_refused_in_words(tmp_path: Path) -> None:
    """Bad parameters make a result that says so, and odd requests get an error; nothing reaches the server."""
    async with gateway(tmp_path) as box:
        assert "INVALID_ARGUMENTS" == code_of((await box.ask("tools/call", {"name": 3}))["result"])
        assert "INVALID_ARGUMENTS" == code_of(await box.call("ztrio_pending_call", {"other": 1}))
        assert "PENDING_CALL_NOT_FOUND" == code_of(await box.call("ztrio_pending_call", {"call_id": "pc_" + "a" * 16}))
        assert "INVALID_ARGUMENTS" == code_of(await box.call("look", scope="zg_x_local"))
        assert -32601 == (await box.ask("prompts/list"))["error"]["code"]
        assert {} == (await box.ask("ping"))["result"]
        assert not box.received("tools/call")


async def test_a_client_of_the_later_era(tmp_path: Path) -> None:
    """A client that sends envelopes gets a server's own answers, and ours in its era; states of a call are sealed."""
    from tests.kit.raw_client import MODERN_META

    async with gateway(tmp_path, "modern", hello=False, timeout=0.5) as box:
        assert -32600 == (await box.ask("tools/list"))["error"]["code"]
        said = (await box.ask("server/discover", {"_meta": MODERN_META}))["result"]
        assert ["2026-07-28"] == said["supportedVersions"]
        assert {"listChanged": True} == said["capabilities"]["tools"]

        async def call(tool: str, arguments: dict[str, object] | None = None, **more: object) -> dict[str, object]:
            params = {"name": tool, "arguments": arguments or {}, "_meta": MODERN_META, **more}
            answer = await box.ask("tools/call", params)
            found = answer["result"]
            assert isinstance(found, dict)
            return found

        wants = await call("odd", {"kind": "input"})
        assert "input_required" == wants["resultType"]
        assert wants["requestState"] != "state"
        assert "complete" == (await call("look", requestState=wants["requestState"]))["resultType"]
        assert "state" == box.received("tools/call")[-1]["params"]["requestState"]
        forged = await call("look", requestState="zl1.x")
        assert "INVALID_ARGUMENTS" == code_of(forged)
        assert "complete" == forged["resultType"]


async def test_a_server_that_refuses_its_client(tmp_path: Path) -> None:
    """What the server says against the handshake is what the client is told."""
    async with gateway(tmp_path, "refuse", hello=False, start_timeout=5) as box:
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "r", "version": "0"}}
        answer = await box.ask("initialize", params)
        assert "not today" in answer["error"]["message"]


@pytest.mark.case("R59")
async def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    """A missing program is named to the client, once it has been tried for as long as a start may take."""
    async with gateway(tmp_path, hello=False, start_timeout=1, command=("no-such-program",)) as box:
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "r", "version": "0"}}
        answer = await box.ask("initialize", params)
        assert "No such file" in answer["error"]["message"]
        status = (await box.operator(frames.Status()))["ok"]
        assert "could not be started" in status["last_death"]["how"]


@pytest.mark.case("R31", "R34", "R35", "R40")
async def test_lines_of_the_client_that_are_no_messages(tmp_path: Path) -> None:
    """Each bad line gets an error under the id null, and the next good line works; a request in flight is safe."""
    async with gateway(tmp_path) as box:
        bad = [b"no json", b"\xff\xfe", b"[]", b"3", b'{"jsonrpc":"2.0","id":true,"method":"ping"}', b'{"id":1}']
        await box.client.send(b"\n".join(bad) + b"\n\n\xef\xbb\xbf" + b'{"jsonrpc":"2.0","id":77,"method":"ping"}\r\n')
        assert {} == (await box.client.reply(77))["result"]
        errors = [frame["error"]["code"] for frame in box.client.frames if frame.get("id", 0) is None]
        assert [-32700, -32700, -32600, -32600, -32600] == errors[:5]
        for _ in range(2):
            await box.client.call("same", "progress", {"every": 0.2, "times": 1})
        again = await box.client.take(lambda frame: frame.get("id", 0) is None and "same" in frame["error"]["message"])
        assert -32600 == again["error"]["code"]
        assert "done" == (await box.client.reply("same"))["result"]["content"][0]["text"]
        for odd in ({}, {"requestId": 5}, {"requestId": None}, {"requestId": "same"}):
            await box.client.notify("notifications/cancelled", odd)
        await box.client.notify("notifications/roots/list_changed")
        await box.call("look")
        assert 1 == len(box.received("notifications/roots/list_changed"))
        status = (await box.operator(frames.Status()))["ok"]
        assert 4 == status["client"]["unmatched"]


async def test_a_request_that_is_no_call_can_be_left(tmp_path: Path) -> None:
    """Progress and cancel of any other request are translated, too, and the server's own error passes."""
    async with gateway(tmp_path) as box:
        await box.client.call(1, "block", {"seconds": 0.5})
        params = {"ref": {}, "_meta": {"progressToken": "t"}}
        await box.client.request(2, "completion/complete", params)
        await box.client.notify("notifications/cancelled", {"requestId": 2})
        await box.client.reply(1)
        assert {"contents": [{"uri": "a:b", "text": "r"}]} == (await box.ask("resources/read", {"uri": "a:b"}))[
            "result"
        ]
        [asked] = box.received("completion/complete")
        [told] = box.received("notifications/cancelled")
        assert asked["id"] == told["params"]["requestId"]
        assert asked["id"] == asked["params"]["_meta"]["progressToken"]


async def test_a_question_that_nobody_answers_any_more(tmp_path: Path) -> None:
    """When the server is gone, its client is told to drop the question."""
    async with gateway(tmp_path, capabilities={"roots": {}}) as box:
        await box.client.call(5, "ask", {"method": "roots/list"})
        asked = await box.client.take(lambda frame: frame.get("method") == "roots/list")
        await box.call("die")
        told = await box.client.take(lambda frame: frame.get("method") == "notifications/cancelled")
        assert asked["id"] == told["params"]["requestId"]
