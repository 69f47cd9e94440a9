"""/tokenize, /detokenize, /tokenizer_info and the model list."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.server.conftest import MODEL, RunningServer


def test_text_becomes_ids_and_text_again(server: RunningServer) -> None:
    answer = server.client.post("/tokenize", json={"prompt": "AB", "return_token_strs": True}).json()
    assert answer == {"count": 2, "max_model_len": 1024, "tokens": [65, 66], "token_strs": ["A", "B"]}
    assert server.client.post("/detokenize", json={"tokens": [65, 66, 257]}).json() == {"prompt": "AB<eos>"}


def test_a_million_ids_become_text_while_others_are_answered(server: RunningServer) -> None:
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(server.client.post, "/detokenize", json={"tokens": [65] * 1_000_000})
        answers = 0
        while not reading.done():
            answers += server.client.get("/live").status_code == 200
        assert reading.result().json() == {"prompt": "A" * 1_000_000}
    assert answers > 3


def test_a_conversation_becomes_ids(server: RunningServer) -> None:
    body = {"messages": [{"role": "user", "content": "AB"}]}
    assert server.client.post("/tokenize", json=body).json()["tokens"] == [65, 66]


def test_wrong_requests_are_refused(server: RunningServer) -> None:
    for path, body in (
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "A", "messages": []}),
        ("/tokenize", {"prompt": "A", "truncate_prompt_tokens": 0}),
        ("/tokenize", {"prompt": "A" * 5_000_000}),
        ("/detokenize", {"tokens": [400]}),
        ("/detokenize", {"tokens": "A"}),
    ):
        assert server.client.post(path, json=body).status_code == 400
    assert server.is_alive()


def test_what_a_client_needs_to_tokenise_itself(server: RunningServer) -> None:
    info = server.client.get("/tokenizer_info").json()
    assert (info["eos_token"], info["eos_token_id"], info["model_max_length"]) == ("<eos>", 257, 1024)
    assert "{%" in info["chat_template"]


def test_the_model_has_a_card(server: RunningServer) -> None:
    (card,) = server.client.get("/v1/models").json()["data"]
    assert (card["id"], card["object"], card["owned_by"], card["max_model_len"]) == (MODEL, "model", "octavo", 1024)
    assert server.client.get(f"/v1/models/{MODEL}").json() == card
    assert server.client.get("/v1/models/nope").json()["error"]["code"] == "model_not_found"
