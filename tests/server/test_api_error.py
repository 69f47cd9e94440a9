"""What clients are told of what went wrong."""

from __future__ import annotations

import pytest
from starlette.requests import ClientDisconnect

from octavo.server.api_error import as_api_error, failed_choice
from octavo.server.field_names import field_of
from octavo.words.errors import EngineDeadError, OverloadedError, RequestError, RequestTimeoutError


@pytest.mark.parametrize(
    ("error", "status", "code", "headers"),
    [
        (RequestError("no", param="stop"), 400, None, {}),
        (RecursionError(), 400, None, {}),
        (ClientDisconnect(), 499, None, {}),
        (OverloadedError("busy", retry_after_s=2.5), 503, "overloaded", {"retry-after": "3"}),
        (RequestTimeoutError("late"), 504, "timeout", {"x-should-retry": "false"}),
        (EngineDeadError("gone"), 503, None, {"retry-after": "1"}),
        (KeyError("secret"), 500, None, {}),
    ],
)
def test_each_error_has_its_status(error: Exception, status: int, code: str | None, headers: dict[str, str]) -> None:
    found = as_api_error(error)
    assert (found.status, found.code, found.headers) == (status, code, headers)
    assert "secret" not in found.message


def test_a_request_that_failed_in_the_engine_is_not_sent_again_by_itself() -> None:
    """It may be what ended the core."""
    assert failed_choice("the engine ended twice").headers == {"x-should-retry": "false"}


def test_places_in_the_file_system_are_left_out_and_routes_are_not() -> None:
    found = as_api_error(RequestError("use /v1/completions, not /root/model/secret.py or 0x7fffdeadbeef"))
    assert found.message == "use /v1/completions, not ... or ..."


def test_a_field_is_named_as_its_route_knows_it() -> None:
    error = RequestError("too long", param="prompt")
    params = [as_api_error(error, path).param for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses")]
    assert params == ["prompt", "messages", "input"]
    assert field_of("/nowhere", "seed") == "seed"
    assert field_of("/v1/score", "prompt") is None


@pytest.mark.parametrize(
    ("path", "param", "message", "told"),
    [
        ("/v1/messages", "stop", "stop must hold text.", "stop_sequences must hold text."),
        ("/v1/responses", "max_tokens", "max_tokens must be 1.", "max_output_tokens must be 1."),
        ("/v1/completions", "stop", "stop must hold text.", "stop must hold text."),
        ("/v1/messages", "stop", "stopping is wrong.", "stopping is wrong."),
        ("/v1/score", "prompt", "prompt is empty.", "prompt is empty."),
    ],
)
def test_a_message_speaks_of_the_routes_own_field(path: str, param: str, message: str, told: str) -> None:
    assert as_api_error(RequestError(message, param=param), path).message == told
