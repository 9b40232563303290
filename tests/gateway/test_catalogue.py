"""The server's tools: whole or not at all, remembered while it is busy or gone, and ours behind the last."""

from typing import Any

import pytest
import trio
import trio.testing

from tests.gateway.fakes import FakeWire, client_hello, connected, plain, raw, upstream_hello
from ztrio_mcp.gateway.catalogue import Catalogue

OWN = {"ztrio_x": b'{"name":"ztrio_x","ours":true}'}
FIRST = (
    b'{ "name": "a", "inputSchema": { }, "annotations": {"readOnlyHint":true}, '
    b'"x-unknown": [ 1e5, 1000000000000000000000 ] }'
)
SECOND = b'{"name":"b","inputSchema":{}}'


def page(*tools: bytes, cursor: str | None = None, **more: Any) -> bytes:
    """One page of a list."""
    rest = {**more, **({} if cursor is None else {"nextCursor": cursor})}
    return b'{"tools":[%b]%b}' % (b",".join(tools), b"".join(b",%b:%b" % (raw(k), raw(v)) for k, v in rest.items()))


class Box:
    """A catalogue and its server."""

    def __init__(self, era: str = "legacy") -> None:
        self.wire = FakeWire()
        self.client = client_hello(era)
        self.connection = connected(self.wire, upstream_hello(era), self.client)
        self.seen: list[dict[str, Any]] = []
        self.catalogue = Catalogue(OWN, lambda tools: self.seen.append(dict(tools)))

    async def refresh(self, *pages: bytes | dict[str, Any]) -> bool:
        """Refresh, with these answers."""
        found: list[bool] = []

        async def run() -> None:
            found.append(await self.catalogue.refresh(self.connection, self.client.envelope))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            for each in pages:
                await trio.testing.wait_all_tasks_blocked()
                error = None if isinstance(each, bytes) else each
                self.wire.answer("tools/list", each if isinstance(each, bytes) else None, error=error)
        return found[0]

    def names(self) -> list[str] | None:
        remembered = self.catalogue.remembered()
        return None if remembered is None else [tool["name"] for tool in plain(remembered)["tools"]]


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_list_is_taken_over_all_its_pages(era: str) -> None:
    """Every page is asked for, in the client's era, and what a tool is said to do is known before any can be called."""
    box = Box(era)
    assert box.names() is None
    assert await box.refresh(page(FIRST, cursor="2"), page(SECOND, kept=[1]))
    assert ["a", "b", "ztrio_x"] == box.names()
    assert [1] == plain(box.catalogue.remembered() or b"")["kept"]
    assert [{"a": {"readOnlyHint": True}, "b": None}] == box.seen
    asked = [each.params for each in box.wire.sent]
    envelope = {} if era == "legacy" else plain(box.client.params)
    assert [envelope, {**envelope, "cursor": "2"}] == asked
    assert ["a", "b"] == box.catalogue.names()
    assert (box.catalogue.tool("a") or {})["inputSchema"] == {}


@pytest.mark.case("R20")
@pytest.mark.parametrize(
    "answers",
    [
        [{"code": -1, "message": "busy"}],
        [page(SECOND, cursor="2"), {"code": -1, "message": "busy"}],
        [b"[]"],
        [b'{"tools":7}'],
        [page(SECOND, cursor="2"), b"null"],
        [],
    ],
)
async def test_a_list_that_fails_leaves_the_last_good_one(
    answers: list[Any], autojump_clock: trio.testing.MockClock
) -> None:
    """Half a list, nonsense, an error or silence change nothing but that the list counts as stale."""
    del autojump_clock
    box = Box()
    assert await box.refresh(page(FIRST))
    before = box.catalogue.remembered()
    assert not await box.refresh(*answers)
    assert box.catalogue.stale
    assert before == box.catalogue.remembered()
    assert 1 == len(box.seen)


@pytest.mark.case("R20")
async def test_a_stale_list_is_asked_for_until_it_is_good(autojump_clock: trio.testing.MockClock) -> None:
    """Later refreshes heal, after longer and longer waits."""
    del autojump_clock
    box = Box()
    assert await box.refresh(page(FIRST))
    box.catalogue.changed()
    began, times = trio.current_time(), []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(box.catalogue.keep_good, box.connection, None)
        for count in range(2, 6):
            while len(box.wire.sent) < count:
                await trio.sleep(0.1)
            times.append(trio.current_time() - began)
            last = count == 5
            box.wire.answer("tools/list", page(SECOND) if last else None, error=None if last else {"code": 0})
    assert pytest.approx([1, 6, 36, 66], abs=1) == times
    assert ["b", "ztrio_x"] == box.names()
    assert not box.catalogue.stale


def test_pages_pass_as_they_are() -> None:
    """A page that is not the last is the server's to the byte; the last has ours behind its own, each byte kept."""
    box = Box()
    first = raw(page(FIRST, cursor="2"))
    assert first is box.catalogue.passed(first)
    last = bytes(box.catalogue.passed(raw(page(FIRST, SECOND, more={"n": 10**30}))))
    assert b"[%b,%b,%b]" % (FIRST, SECOND, OWN["ztrio_x"]) in last
    assert {"n": 10**30} == plain(last)["more"]
    assert b"%b" % OWN["ztrio_x"] in bytes(box.catalogue.passed(raw(b"{}")))


async def test_ours_win_over_a_tool_of_the_same_name(capsys: pytest.CaptureFixture[str]) -> None:
    """A server's tool that has the name of one of ours is left out of every page, and that is said once."""
    del capsys
    box = Box()
    theirs = b'{"name":"ztrio_x","theirs":true}'
    both = [plain(box.catalogue.passed(raw(page(theirs, SECOND, cursor=cursor))))["tools"] for cursor in ("2", None)]
    assert [["b"], ["b", "ztrio_x"]] == [[tool["name"] for tool in tools] for tools in both]
    assert both[1][1]["ours"]
    assert await box.refresh(page(theirs, SECOND))
    assert ["b", "ztrio_x"] == box.names()
    assert {"ztrio_x"} == box.catalogue._shadowed


@pytest.mark.parametrize("data", [b"[]", b"7", b'{"tools":7}', b'{"tools":null}'])
def test_nonsense_passes(data: bytes) -> None:
    """What is no list is shown to the client as it is."""
    box = Box()
    assert data == bytes(box.catalogue.passed(raw(data)))


def test_odd_tools_break_nothing() -> None:
    """Tools without a name, and hints that cannot be held, are passed on and believed nothing of."""
    box = Box()
    odd = [b"7", b'{"name":3}', b'{"name":"c","annotations":{"readOnlyHint":1e999}}', b'{"name":"d","annotations":[]}']
    passed = bytes(box.catalogue.passed(raw(page(*odd))))
    assert b",".join(odd) in passed
    assert [{"c": None, "d": None}] == box.seen


async def test_cursors_that_go_in_a_circle_are_not_followed_for_ever() -> None:
    """After 256 pages a list counts as not to be had."""
    box = Box()
    assert not await box.refresh(*[page(FIRST, cursor="again")] * 256)
    assert 256 == len(box.wire.sent)
