from __future__ import annotations

import os
import signal
import threading

import pytest

from octavo.engine.interrupts import deferred_interrupts


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_body_ends_before_ctrl_c_takes_place() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), deferred_interrupts():
        press_ctrl_c()
        done.append("the rest of the body")
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_does_not_wait() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), deferred_interrupts():
        press_ctrl_c()
        press_ctrl_c()
        done.append("the rest of the body")
    assert not done


def test_an_error_of_the_body_goes_before() -> None:
    with pytest.raises(ZeroDivisionError), deferred_interrupts():
        press_ctrl_c()
        _ = 1 / 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_programs_own_handler_is_called_once_at_the_end() -> None:
    seen: list[int] = []

    def note(signal_number: int, frame: object) -> None:
        seen.append(signal_number)

    before = signal.signal(signal.SIGINT, note)
    try:
        with deferred_interrupts():
            press_ctrl_c()
            assert seen == []
        assert seen == [signal.SIGINT]
        assert signal.getsignal(signal.SIGINT) is note
    finally:
        signal.signal(signal.SIGINT, before)


def test_where_the_program_ignores_ctrl_c_nothing_changes() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with deferred_interrupts():
            press_ctrl_c()
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_leave_signals_alone() -> None:
    seen = []

    def look() -> None:
        with deferred_interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
