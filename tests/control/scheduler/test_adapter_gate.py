"""No more different adapters run than there are slots; who is held keeps nobody else from running."""

from __future__ import annotations

from octavo.control.request import Request, RequestStatus
from octavo.control.scheduler.adapter_gate import AdapterGate
from octavo.words.lora import Adapter
from tests.fakes import make_message


def request(number: int, adapter: str | None) -> Request:
    message = make_message(request_id=str(number))
    message.adapter = None if adapter is None else Adapter(adapter, "", adapter)
    return Request(message)


def start(gate: AdapterGate, one: Request) -> bool:
    """Let it run if the gate does."""
    if gate.holds(one):
        return False
    one.status = RequestStatus.RUNNING
    return True


def test_as_many_adapters_run_as_there_are_slots() -> None:
    gate = AdapterGate(2)
    started = [start(gate, request(i, name)) for i, name in enumerate(("a", "b", "a", "c", None, "b", "c"))]
    assert started == [True, True, True, False, True, True, False]


def test_an_adapter_leaves_with_the_last_that_used_it() -> None:
    gate = AdapterGate(1)
    users = [request(0, "a"), request(1, "a")]
    other = request(2, "b")
    assert all(start(gate, user) for user in users)
    users[0].status = RequestStatus.FINISHED_STOPPED
    assert gate.holds(other)
    users[1].status = RequestStatus.PREEMPTED
    assert start(gate, other)
    assert gate.holds(users[1])


def test_one_that_was_let_pass_and_found_no_room_holds_nobody() -> None:
    gate = AdapterGate(1)
    assert not gate.holds(request(0, "a"))
    assert not gate.holds(request(1, "b"))


def test_requests_without_adapters_are_never_held() -> None:
    gate = AdapterGate(0)
    assert not gate.holds(request(0, None))
    assert gate.holds(request(1, "a"))
