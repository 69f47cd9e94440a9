from __future__ import annotations

from octavo.util.spans import NO_SPANS, Span, SpanRecorder


def test_a_block_becomes_a_span_with_what_it_said() -> None:
    spans = SpanRecorder("core")
    with spans.span("schedule") as span:
        span.facts["step"] = 7
        with spans.span("inner"):
            pass
    inner, outer = spans.take()
    assert (outer.name, outer.track, outer.facts) == ("schedule", "core", {"step": 7})
    assert outer.start_ns <= inner.start_ns
    assert inner.start_ns + inner.duration_ns <= outer.start_ns + outer.duration_ns
    assert spans.take() == []


def test_a_block_that_raises_is_told_too() -> None:
    spans = SpanRecorder("core")
    try:
        with spans.span("sample"):
            raise ValueError
    except ValueError:
        pass
    assert [span.name for span in spans.take()] == ["sample"]


def test_spans_that_were_timed_elsewhere_are_taken_too() -> None:
    spans, elsewhere = SpanRecorder("worker", detailed=True), Span("linear", "ops", 3, 4)
    assert spans.detailed and not NO_SPANS.detailed
    spans.extend([elsewhere])
    NO_SPANS.extend([elsewhere])
    assert spans.take() == [elsewhere]


def test_where_nobody_listens_blocks_run_and_nothing_is_kept() -> None:
    with NO_SPANS.span("schedule") as span:
        assert span is None
    assert NO_SPANS.take() == []
