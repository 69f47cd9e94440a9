from __future__ import annotations

from octavo.control.request import Request
from octavo.control.scheduler.quarantine import WITNESS, Accused, Quarantine
from tests.fakes import make_message


def may_run(quarantine: Quarantine) -> list[str]:
    return [name for name in ("a", "b", WITNESS) if not quarantine.holds(Request(make_message(name)))]


def test_without_suspects_nobody_is_held():
    assert may_run(Quarantine()) == ["a", "b", WITNESS]


def test_suspects_run_alone_in_their_order_and_are_free_when_they_were_computed():
    quarantine = Quarantine()
    quarantine.suspect(["b", "a"])
    quarantine.suspect(["b"])
    assert may_run(quarantine) == ["b"]
    assert quarantine.end_trial() is None
    assert may_run(quarantine) == ["a"]
    assert quarantine.end_trial() is None
    assert may_run(quarantine) == ["a", "b", WITNESS]


def test_after_a_suspect_that_failed_the_witness_runs_and_the_next_suspect_only_then():
    quarantine = Quarantine()
    quarantine.suspect(["a", "b"])
    quarantine.accuse("out of order")
    assert may_run(quarantine) == [WITNESS]
    assert quarantine.accused == Accused("a", "out of order")
    assert quarantine.end_trial() == Accused("a", "out of order")
    assert quarantine.accused is None
    assert may_run(quarantine) == ["b"]
