"""What a server asks its client: under which id, who is asked at all, and when a human is known to be waited for."""

from typing import Any

import pytest

from tests.gateway.fakes import FakeClient, FakeWire, raw
from ztrio_mcp.gateway.asking import Asking
from ztrio_mcp.objects import fields_of

ELICIT = {"message": "sure?"}


class Question:
    """A server that may ask, and a client."""

    def __init__(self, *able: str, only: str | None = "pc_1") -> None:
        self.client, self.wire = FakeClient(), FakeWire()
        self.only = only
        capabilities = fields_of(raw({name: {} for name in able}))
        self.asking = Asking(self.client, capabilities, lambda: self.only)  # type: ignore[arg-type]
        self.asking.peer = self.wire  # type: ignore[assignment]

    def ask(self, number: Any = "q", method: str = "elicitation/create") -> None:
        self.asking.request(number, method, raw(ELICIT))

    @property
    def codes(self) -> list[int]:
        return [each["error"]["code"] for each in self.wire.responses]


def test_a_ping_is_answered_here() -> None:
    """The server learns that somebody is there, and the client is not bothered."""
    question = Question()
    question.ask(1, "ping")
    assert [{"id": 1, "result": {}, "error": None}] == question.wire.responses
    assert [] == question.client.wire.sent


@pytest.mark.case("R23")
@pytest.mark.parametrize("number", [1, "1", "", 2**53 + 1])
def test_a_question_has_an_id_of_its_own_on_each_side(number: Any) -> None:
    """The client sees an id of its connection, the server its own again, with its type."""
    question = Question("elicitation")
    question.ask(number)
    [asked] = question.client.wire.sent
    assert (500, ELICIT) == (asked.exchange.id, asked.params)
    question.client.wire.answer("elicitation/create", {"action": "accept"})
    assert [{"id": number, "result": {"action": "accept"}, "error": None}] == question.wire.responses
    assert type(number) is type(question.wire.responses[0]["id"])


def test_the_clients_refusal_is_the_servers_answer() -> None:
    """An error of the client's passes as it came."""
    question = Question("sampling")
    question.ask("q", "sampling/createMessage")
    question.client.wire.answer("sampling/createMessage", error={"code": -1, "message": "no", "data": [1]})
    assert {"code": -1, "message": "no", "data": [1]} == question.wire.responses[0]["error"]


@pytest.mark.parametrize("method", ["elicitation/create", "sampling/createMessage", "roots/list", "tasks/list", "x/y"])
def test_a_client_is_asked_only_what_it_can_do(method: str) -> None:
    """What a client did not declare gets the answer that such a client gives."""
    question = Question()
    question.ask("q", method)
    assert ([-32601], []) == (question.codes, question.client.wire.sent)


def test_a_question_in_flight_keeps_its_id() -> None:
    """A second question under an id in flight is refused, and the first is answered."""
    question = Question("elicitation")
    question.ask("q")
    question.ask("q")
    assert [-32600] == question.codes
    question.client.wire.answer("elicitation/create", {"action": "accept"})
    assert {"action": "accept"} == question.wire.responses[1]["result"]


@pytest.mark.case("R23")
def test_a_question_that_is_withdrawn_is_withdrawn_from_the_client() -> None:
    """The server's cancel reaches the client under the client's id; a late answer goes nowhere."""
    question = Question("elicitation")
    question.ask("q")
    question.asking.cancelled(raw({"requestId": "other"}))
    question.asking.cancelled(raw({"requestId": "q"}))
    question.asking.cancelled(raw({"requestId": "q"}))
    question.asking.cancelled(raw([]))
    assert [500] == question.client.withdrawn
    assert [] == question.wire.responses


def test_questions_end_with_the_connection() -> None:
    """When the server has gone the client is not to answer its questions any more."""
    question = Question("elicitation", "roots")
    question.ask("a")
    question.ask("b", "roots/list")
    question.asking.end()
    assert [500, 501] == sorted(question.client.withdrawn)
    assert not question.asking.waits_for_human("pc_1")


@pytest.mark.req("P5")
def test_a_human_is_waited_for_only_where_it_is_known() -> None:
    """One call under way and a question to the human: it is that call's, until it is answered. Otherwise nobody's."""
    question = Question("elicitation", "roots")
    question.ask("files", "roots/list")
    assert not question.asking.waits_for_human("pc_1"), "that is no question to a human"
    question.only = None
    question.ask("whose")
    question.only = "pc_1"
    assert not question.asking.waits_for_human("pc_1"), "two calls were under way when it came"
    question.ask("mine")
    assert question.asking.waits_for_human("pc_1")
    assert not question.asking.waits_for_human("pc_2")
    question.client.wire.answer("elicitation/create", {"action": "decline"})
    assert not question.asking.waits_for_human("pc_1")


@pytest.mark.parametrize("side", ["client", "server"])
def test_a_side_that_is_gone_breaks_nothing(side: str) -> None:
    """A question to a client that is gone, or an answer to a server that is, goes nowhere."""
    question = Question("elicitation")
    if side == "client":
        question.client.wire.closed = True
    question.ask("q")
    question.wire.closed = side == "server"
    question.client.wire.end()
    if side == "server":
        question.ask("r", "ping")
    assert [] == question.wire.responses
    assert not question.asking.waits_for_human("pc_1")
