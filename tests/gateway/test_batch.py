"""Several calls in one: each ends on its own, and the list of what nobody knows is complete."""

from typing import Any

import pytest
import trio

from ztrio.calls import LOCAL, CallContext
from ztrio.errors import InvalidArguments, NotSent, Unresolved
from ztrio_mcp.gateway.batch import Batch, BatchError
from ztrio_mcp.gateway.wire import CallParams


def pending(call_id: str) -> Unresolved:
    error = Unresolved("nobody knows", reason="deadline_exceeded", call_id=call_id)
    error.details["pending_call"] = {"call_id": call_id, "state": "unresolved"}
    return error


async def answer(params: CallParams, context: CallContext) -> dict[str, Any]:
    """A server of which each tool's name says what it does."""
    await trio.sleep(float(params.timeout or 0.0))
    assert "batch" == context.surface
    if params.tool == "lost":
        raise pending("pc_" + "a" * 16)
    if params.tool == "unsent":
        raise NotSent("not sent", phase="queue")
    if params.tool == "broken":
        raise BatchError({"code": -32000, "message": "no"})
    return {"content": [], "isError": params.tool == "fails"}


@pytest.mark.req("P54", "P55")
async def test_each_call_says_what_became_of_it() -> None:
    """Results stand in the order of the calls, and what nobody knows is listed once more by its ids."""
    calls = [{"tool": name} for name in ("works", "fails", "lost", "unsent", "broken")]
    found = await Batch(answer).run({"calls": calls}, LOCAL)
    assert [True, False, False, False, False] == [each["ok"] for each in found["results"]]
    codes = [each.get("error", {}).get("code") for each in found["results"]]
    assert [None, None, "CALL_UNRESOLVED", "NOT_SENT", "JSONRPC_ERROR"] == codes
    assert ["pc_" + "a" * 16] == found["unresolved"]
    assert "pending_call" in found["results"][2]["error"]


async def test_calls_run_at_once(autojump_clock: trio.testing.MockClock) -> None:
    """Ten calls of a second each take a second."""
    before = trio.current_time()
    await Batch(answer).run({"calls": [{"tool": "works", "timeout": 1}] * 10}, LOCAL)
    assert pytest.approx(1.0) == trio.current_time() - before


@pytest.mark.req("P55")
async def test_a_batch_that_is_left_waits_for_what_its_calls_publish(autojump_clock: trio.testing.MockClock) -> None:
    """A cancellation reaches every call, and leaves only when each has said on its way out what it became."""
    published: list[str] = []
    leave = trio.Event()

    async def call(params: CallParams, _context: CallContext) -> dict[str, Any]:
        try:
            await trio.sleep(3600)
        finally:
            if params.tool == "slow":
                with trio.CancelScope(shield=True), trio.move_on_after(5):
                    await leave.wait()
            published.append(params.tool)
        return {}

    async with trio.open_nursery() as nursery:
        ended = trio.Event()

        async def run() -> None:
            try:
                await Batch(call).run({"calls": [{"tool": "slow"}, {"tool": "quick"}]}, LOCAL)
            finally:
                ended.set()

        nursery.start_soon(run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked()
            assert ["quick"] == published
            assert not ended.is_set()
            leave.set()
            await ended.wait()
    assert ["quick", "slow"] == published


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"calls": []},
        {"calls": "x"},
        {"calls": [{"tool": "t"}], "more": 1},
        {"calls": [{"tool": "t"}] * 65},
        {"calls": [3]},
        {"calls": [{"tool": "t", "name": "x"}]},
        {"calls": [{"arguments": {}}]},
        {"calls": [{"tool": "t", "arguments": [1]}]},
        {"calls": [{"tool": "t", "timeout": -1}]},
        {"calls": [{"tool": "t", "reconciles": ["x"]}]},
    ],
)
async def test_a_list_that_is_none_sends_nothing(arguments: dict[str, Any]) -> None:
    """One bad item refuses the whole batch before anything is sent."""

    async def call(_params: CallParams, _context: CallContext) -> dict[str, Any]:
        raise AssertionError("sent")

    with pytest.raises(InvalidArguments, match=r"Nothing (was sent|ran)"):
        await Batch(call).run(arguments, LOCAL)
