from __future__ import annotations

from octavo.bench.profile import chrome_trace
from octavo.util.spans import Span


def test_spans_become_complete_events_on_a_line_per_track() -> None:
    spans = [Span("forward", "worker", 5_000, 2_000, {}), Span("schedule", "core", 3_000, 1_000, {"step": 4})]
    events = chrome_trace(spans)["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    first, second = (event for event in events if event["ph"] == "X")
    assert (first["name"], first["ts"], first["dur"], first["args"]) == ("schedule", 0.0, 1.0, {"step": 4})
    assert (second["name"], second["ts"], second["dur"]) == ("forward", 2.0, 2.0)
    assert (names[first["tid"]], names[second["tid"]]) == ("core", "worker")


def test_nothing_that_happened_is_an_empty_trace() -> None:
    assert chrome_trace([])["traceEvents"] == []
