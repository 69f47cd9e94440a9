from __future__ import annotations

from octavo.control.request import Request
from octavo.control.scheduler.gates import Gates
from tests.fakes import ControlPlane, FakeGate, ids, make_message, scheduled


def test_one_gate_is_enough_to_hold_a_request():
    request = Request(make_message("a"))
    assert not Gates().holds(request)
    assert not Gates([FakeGate("b"), FakeGate("c")]).holds(request)
    assert Gates([FakeGate("b"), FakeGate("a")]).holds(request)


def test_a_held_request_is_skipped_and_keeps_its_place():
    gate = FakeGate("a", "c")
    plane = ControlPlane(gates=[gate], max_num_seqs=3)
    for request_id in "abcdef":
        plane.add(request_id, 4)
    assert list(scheduled(plane.step())) == ["b", "d", "e"]
    assert ids(plane.scheduler.waiting) == ["a", "c", "f"]
    gate.held.clear()
    plane.scheduler.abort_requests("bde")
    assert list(scheduled(plane.step())) == ["a", "c", "f"]


def test_held_requests_do_not_make_a_long_prefill_share():
    plane = ControlPlane(gates=[FakeGate("a")], long_prefill_token_threshold=8)
    plane.add("a", 4)
    plane.add("b", 40)
    assert scheduled(plane.step()) == {"b": 40}
