from __future__ import annotations

import threading
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from octavo.control.request import Request
from octavo.control.structured_output.backends.llguidance import LLGuidanceBackend
from octavo.control.structured_output.grammar import MaskRows
from octavo.control.structured_output.manager import (
    MAX_CACHED_GRAMMARS,
    NoStructuredOutput,
    StructuredOutputManager,
)
from octavo.words.errors import RequestError, UnsupportedError
from octavo.words.messages import SchedulerOutput
from octavo.words.sampling_params import SamplingParams
from octavo.words.structured_outputs import StructuredOutputParams
from tests.control.structured_output.bytes_vocabulary import EOS, Bytes
from tests.fakes import make_message
from tests.waiting import soon


class FixedText:
    """Allows one text, token by token."""

    def __init__(self, text: Sequence[int], taken: int = 0) -> None:
        self.text, self.taken = list(text), taken
        self.error: str | None = None

    @property
    def is_complete(self) -> bool:
        return self.taken == len(self.text)

    def accept(self, token_ids: Sequence[int]) -> bool:
        for token_id in token_ids:
            if self.is_complete or token_id != self.text[self.taken]:
                self.error = "not the text"
                return False
            self.taken += 1
        return True

    def fill(self, rows: MaskRows, draft_token_ids: Sequence[int]) -> None:
        for index in range(len(rows)):
            rows[index] = 0
            if self.taken + index < len(self.text):
                rows[index, 0] = 1 << self.text[self.taken + index]

    def copy(self) -> FixedText:
        return FixedText(self.text, self.taken)


class FixedTexts:
    """``choice`` [text of digits] -> that text; ``refuse`` is refused; compiling waits for ``may_compile``."""

    num_mask_words = 1

    def __init__(self) -> None:
        self.may_compile = threading.Event()
        self.may_compile.set()
        self.num_compiled = 0

    def compile(self, params: StructuredOutputParams) -> FixedText:
        assert self.may_compile.wait(10)
        self.num_compiled += 1
        text = (params.choice or [""])[0]
        if text == "refuse":
            raise RequestError("refused", param="choice")
        return FixedText([int(digit) for digit in text])


def make_request(
    name: str, text: str | None, outputs: Sequence[int] = (), reasoning_end_ids: tuple[int, ...] = ()
) -> Request:
    message = make_message(name, [1, 2], output_token_ids=list(outputs))
    message.sampling = msgspec.structs.replace(message.sampling, reasoning_end_ids=reasoning_end_ids)
    if text is not None:
        message.sampling.params.structured_outputs = StructuredOutputParams(choice=[text])
    return Request(message)


@pytest.fixture
def backend() -> FixedTexts:
    return FixedTexts()


@pytest.fixture
def manager(backend: FixedTexts) -> StructuredOutputManager:
    return StructuredOutputManager(lambda: backend)


def begin(manager: StructuredOutputManager, request: Request) -> Request:
    manager.begin(request)
    assert soon(lambda: not manager.holds(request), 10)
    return request


def test_a_request_waits_while_its_grammar_is_made(backend: FixedTexts, manager: StructuredOutputManager) -> None:
    backend.may_compile.clear()
    request = make_request("a", "34")
    manager.begin(request)
    assert manager.holds(request)
    backend.may_compile.set()
    assert soon(lambda: not manager.holds(request), 10)
    assert request.constraint is not None


def test_an_unconstrained_request_neither_waits_nor_makes_a_backend() -> None:
    def fail() -> FixedTexts:
        raise AssertionError("nobody asked for a grammar")

    manager = StructuredOutputManager(fail)
    request = make_request("a", None)
    manager.begin(request)
    assert not manager.holds(request)
    assert manager.begin_masks(SchedulerOutput(step_id=1, num_scheduled_tokens={"a": 2}), {"a": request}) is None


def test_a_grammar_that_cannot_be_made_fails_its_request_alone(manager: StructuredOutputManager) -> None:
    good, bad = make_request("good", "3"), make_request("bad", "refuse")
    for request in (bad, good):
        manager.begin(request)
    assert soon(lambda: not manager.holds(good), 10)
    assert soon(lambda: manager.holds(bad) and bool(manager._failed), 10)
    assert manager.take_failed() == {"bad": "refused"}


def test_equal_grammars_are_made_once_and_those_unused_for_longest_are_forgotten(
    backend: FixedTexts, manager: StructuredOutputManager
) -> None:
    def num_made_by(number: int) -> int:
        before = backend.num_compiled
        begin(manager, make_request(f"r{number}", f"{number}"))
        return backend.num_compiled - before

    assert [num_made_by(number) for number in range(MAX_CACHED_GRAMMARS)] == [1] * MAX_CACHED_GRAMMARS
    assert num_made_by(0) == 0, "and with that it is the one used last"
    assert num_made_by(MAX_CACHED_GRAMMARS) == 1
    assert len(manager._cache) == MAX_CACHED_GRAMMARS
    assert [num_made_by(number) for number in (0, 2, MAX_CACHED_GRAMMARS, 1)] == [0, 0, 0, 1]
    assert len(manager._cache) == MAX_CACHED_GRAMMARS


def test_a_grammar_that_was_made_keeps_nobody_waiting(backend: FixedTexts, manager: StructuredOutputManager) -> None:
    begin(manager, make_request("first", "12"))
    backend.may_compile.clear()
    other, again = make_request("other", "3"), make_request("again", "12")
    manager.begin(other)
    manager.begin(again)
    assert manager.holds(other) and not manager.holds(again)
    backend.may_compile.set()


def test_masks_are_for_constrained_requests_that_end_their_step_with_a_token(manager: StructuredOutputManager) -> None:
    requests = {name: make_request(name, text) for name, text in (("a", "34"), ("b", None), ("c", "5"))}
    for request in requests.values():
        begin(manager, request)
    requests["a"].num_computed_tokens = requests["b"].num_computed_tokens = 2
    requests["c"].num_computed_tokens = 1  # its prompt is not through
    step = SchedulerOutput(step_id=1, num_scheduled_tokens={"a": 2, "b": 2, "c": 1})
    coming = manager.begin_masks(step, requests)
    assert coming is not None
    masks = coming.result(10)
    assert masks.rows == {"a": (0, 1)}
    assert np.frombuffer(masks.bitmask, dtype=np.int32).tolist() == [1 << 3]
    assert manager.num_masks == 1


def test_each_draft_has_a_row_more(manager: StructuredOutputManager) -> None:
    request = begin(manager, make_request("a", "345"))
    request.num_computed_tokens = 4
    step = SchedulerOutput(step_id=1, num_scheduled_tokens={"a": 3}, draft_token_ids={"a": [3, 4]})
    coming = manager.begin_masks(step, {"a": request})
    assert coming is not None
    assert coming.result(10).rows == {"a": (0, 3)}


def test_a_request_that_comes_back_goes_on_where_it_was(manager: StructuredOutputManager) -> None:
    request = begin(manager, make_request("a", "345", outputs=[3, 4]))
    assert request.constraint is not None
    assert request.constraint.take(5), "the text is complete"


def test_json_closes_at_the_same_token_in_a_request_that_comes_back() -> None:
    manager = StructuredOutputManager(lambda: LLGuidanceBackend(Bytes(), [EOS]))
    schema = StructuredOutputParams(json={"type": "array", "items": {"type": "string"}})
    text = list(b'["this is too long for it')

    def closes(outputs: Sequence[int]) -> bool:
        """Whether a request that said this may not go on as it likes."""
        message = make_message("a", [1, 2], output_token_ids=list(outputs), max_tokens=30)
        message.sampling.params.structured_outputs = schema
        request = begin(manager, Request(message))
        request.num_computed_tokens = request.num_tokens
        coming = manager.begin_masks(SchedulerOutput(step_id=1, num_scheduled_tokens={"a": 1}), {"a": request})
        assert coming is not None
        return not np.frombuffer(coming.result(10).bitmask, dtype=np.int32)[ord("x") // 32] >> ord("x") % 32 & 1

    assert [closes(text[:number]) for number in (2, 12, 18, 23, 24)] == [False, False, False, True, True]
    manager.shutdown()


def test_a_grammar_can_begin_after_reasoning(manager: StructuredOutputManager) -> None:
    request = begin(manager, make_request("a", "34", reasoning_end_ids=(7, 8)))
    assert request.constraint is not None
    request.num_computed_tokens = 2
    step = SchedulerOutput(step_id=1, num_scheduled_tokens={"a": 2})
    for token_id in (3, 7, 7, 8):
        assert manager.begin_masks(step, {"a": request}) is None
        assert not request.constraint.take(token_id)
    assert manager.begin_masks(step, {"a": request}) is not None


def test_an_engine_without_a_vocabulary_refuses() -> None:
    with pytest.raises(UnsupportedError, match="tokenizer"):
        NoStructuredOutput().begin(make_request("a", "3"))
    NoStructuredOutput().begin(make_request("a", None))


def test_structured_outputs_must_be_of_their_type() -> None:
    with pytest.raises(RequestError, match="structured_outputs"):
        SamplingParams(structured_outputs={"regex": "a"})  # type: ignore[arg-type]


def test_the_grammar_holds_from_the_draft_that_ends_reasoning_on(manager: StructuredOutputManager) -> None:
    request = begin(manager, make_request("a", "34", reasoning_end_ids=(7, 8)))
    assert request.constraint is not None
    request.constraint.take(7)
    request.num_computed_tokens = 6
    step = SchedulerOutput(step_id=1, num_scheduled_tokens={"a": 4}, draft_token_ids={"a": [5, 7, 8]})
    coming = manager.begin_masks(step, {"a": request})
    assert coming is not None
    assert np.frombuffer(coming.result(10).bitmask, dtype=np.int32).tolist() == [-1, -1, -1, 1 << 3]
    step = SchedulerOutput(step_id=2, num_scheduled_tokens={"a": 4}, draft_token_ids={"a": [8, 3, 7]})
    coming = manager.begin_masks(step, {"a": request})
    assert coming is not None
    assert np.frombuffer(coming.result(10).bitmask, dtype=np.int32).tolist() == [-1, 1 << 3, 1 << 4, 0]
    step = SchedulerOutput(step_id=3, num_scheduled_tokens={"a": 2}, draft_token_ids={"a": [7]})
    assert manager.begin_masks(step, {"a": request}) is None
