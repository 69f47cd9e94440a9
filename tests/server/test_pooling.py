"""Embeddings, scores and ranks over HTTP, of a random tiny encoder."""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
from safetensors.torch import load_file, save_file

from tests.server.conftest import MODEL, RunningServer, serving
from tests.tiny_encoders import make_encoder
from tests.waiting import soon

TEXTS = ["the cat sits", "a dog sat"]
SLACK_S = 10.0
"""What takes longer hangs: the cases say 1 s, on a machine of one's own."""


def break_embedding_of(model: Path, word: str) -> None:
    """Make a word's row of the embedding table NaN."""
    file, name = model / "model.safetensors", "embeddings.word_embeddings.weight"
    weights = load_file(file)
    weights[name][json.loads((model / "tokenizer.json").read_text())["model"]["vocab"][word]] = math.nan
    save_file(weights, file, metadata={"format": "pt"})


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("encoder")
    model = make_encoder(folder / "bert")
    break_embedding_of(model, "runs")
    with serving(model, folder / "log", "--max-model-len", "48", "--max-num-queued-reqs", "1") as server:
        yield server


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("classifier")
    with serving(make_encoder(folder / "bert", num_labels=1), folder / "log", "--max-model-len", "48") as server:
        yield server


def post(server: RunningServer, path: str, **fields: Any) -> Any:
    answer = server.client.post(path, json={"model": MODEL, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def vectors(server: RunningServer, given: Any, **fields: Any) -> list[list[float]]:
    data = post(server, "/v1/embeddings", input=given, **fields)["data"]
    assert [item["index"] for item in data] == list(range(len(data)))
    return [item["embedding"] for item in data]


def assert_is_unharmed(server: RunningServer, before: list[list[float]]) -> None:
    """It is healthy, and its vectors are those that it had."""
    assert server.client.get("/health", timeout=SLACK_S).status_code == 200
    assert vectors(server, TEXTS) == [pytest.approx(vector, abs=1e-5) for vector in before]


def test_all_forms_of_input_come_to_the_same_vectors(encoder: RunningServer) -> None:  # EM04
    (one,) = vectors(encoder, TEXTS[0])
    both = vectors(encoder, TEXTS)
    assert one == pytest.approx(both[0], abs=1e-5)
    ids = [post(encoder, "/tokenize", prompt=text)["tokens"] for text in TEXTS]
    assert vectors(encoder, ids[0])[0] == pytest.approx(one, abs=1e-5)
    for found, expected in zip(vectors(encoder, ids), both, strict=True):
        assert found == pytest.approx(expected, abs=1e-5)
    usage = post(encoder, "/v1/embeddings", input=TEXTS)["usage"]
    assert usage["prompt_tokens"] == usage["total_tokens"] == sum(map(len, ids))


def test_base64_is_little_endian_float32_as_openais_client_reads_it(encoder: RunningServer) -> None:
    (numbers,) = vectors(encoder, TEXTS[0])
    (text,) = vectors(encoder, TEXTS[0], encoding_format="base64")
    assert struct.unpack(f"<{len(numbers)}f", base64.b64decode(str(text))) == pytest.approx(numbers, abs=1e-6)
    with openai.OpenAI(base_url=f"{encoder.url}/v1", api_key="none", max_retries=0) as client:
        assert client.embeddings.create(model=MODEL, input=TEXTS[0]).data[0].embedding == pytest.approx(numbers)


def test_shortened_vectors_have_length_one(encoder: RunningServer) -> None:  # EM03
    (vector,) = vectors(encoder, TEXTS[0], dimensions=5)
    assert len(vector) == 5 and math.hypot(*vector) == pytest.approx(1.0, abs=1e-5)


def test_vectors_are_shortened_only_where_the_model_is_made_for_it(classifier: RunningServer) -> None:  # EM03
    answer = classifier.client.post("/v1/embeddings", json={"model": MODEL, "input": "a", "dimensions": 5})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "dimensions")
    assert "matryoshka" in answer.json()["error"]["message"]


def test_a_vector_of_no_numbers_is_an_error_object(encoder: RunningServer) -> None:  # EM06
    before = vectors(encoder, TEXTS)
    for path in ("/v1/embeddings", "/pooling"):
        for form in ("float", "base64"):
            body = {"model": MODEL, "input": [TEXTS[0], "the dog runs"], "encoding_format": form}
            answer = encoder.client.post(path, json=body, timeout=SLACK_S)
            assert answer.status_code == 500, answer.text
            assert json.loads(answer.text, parse_constant=pytest.fail).keys() == {"error"}
            assert answer.json()["error"]["type"] == "server_error"
    assert_is_unharmed(encoder, before)


def test_texts_of_one_request_join_the_queue_together(encoder: RunningServer) -> None:
    assert len(vectors(encoder, TEXTS * 20)) == 40  # where one may wait; see the fixture


def test_texts_that_wait_count_for_the_queue(encoder: RunningServer) -> None:
    def status_of_another() -> int:
        body = {"model": MODEL, "input": TEXTS[1], "request_timeout": 0.2}
        return encoder.client.post("/v1/embeddings", json=body).status_code

    children = psutil.Process(encoder.process.pid).children()
    (core,) = [each for each in children if "octavo.engine.core_proc" in each.cmdline()]
    core.suspend()
    try:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(vectors, encoder, TEXTS[0])
            assert soon(lambda: encoder.client.get("/load").json()["server_load"] > 0, 10)
            assert soon(lambda: status_of_another() == 503, 10)
            core.resume()
            assert len(waiting.result(30)) == 1
    finally:
        core.resume()
    assert soon(lambda: status_of_another() == 200, 10)


@pytest.mark.parametrize(
    "fields",
    [
        {"input": ""}, {"input": []}, {"input": [[]]}, {"input": [""]}, {"input": 7}, {"input": ["a", 7]},  # EM04
        {"input": [1, True]}, {"input": [9999]}, {"input": "a", "dimensions": 0}, {"input": "a", "dimensions": 4096},
        {"input": "a", "encoding_format": "hex"}, {"input": "z " * 100}, {},
    ],
)  # fmt: skip
def test_what_cannot_be_embedded_is_said(encoder: RunningServer, fields: dict[str, Any]) -> None:  # EM03 EM04
    answer = encoder.client.post("/v1/embeddings", json={"model": MODEL, **fields})
    assert answer.status_code == 400 and answer.json()["error"]["message"], answer.text


def test_scores_are_cosines_and_rank_the_documents(encoder: RunningServer) -> None:
    one, other = vectors(encoder, TEXTS)
    cosine = sum(a * b for a, b in zip(one, other, strict=True))
    data = post(encoder, "/v1/score", text_1=TEXTS[0], text_2=TEXTS)["data"]
    assert [item["score"] for item in data] == pytest.approx([1.0, cosine], abs=1e-5)
    documents = [TEXTS[1], TEXTS[0]]
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        best, rest = post(encoder, path, query=TEXTS[0], documents=documents)["results"]
        assert (best["index"], best["document"]["text"], rest["index"]) == (1, TEXTS[0], 0)
        assert best["relevance_score"] >= rest["relevance_score"]
    (only,) = post(encoder, "/rerank", query=TEXTS[0], documents=documents, top_n=1, return_documents=False)["results"]
    assert only["index"] == 1 and "document" not in only


def test_texts_of_two_lists_are_scored_pair_by_pair(encoder: RunningServer, classifier: RunningServer) -> None:
    first, second = [*TEXTS, "the cat"], ["the dog", "sits", TEXTS[0]]
    for server in (encoder, classifier):
        for path in ("/score", "/v1/score"):
            pairs = post(server, path, text_1=first, text_2=second)["data"]
            alone = [
                post(server, path, text_1=one, text_2=other)["data"][0]["score"]
                for one, other in zip(first, second, strict=True)
            ]
            assert [pair["index"] for pair in pairs] == [0, 1, 2] and len(set(alone)) == 3
            assert [pair["score"] for pair in pairs] == pytest.approx(alone, abs=1e-5)
        answer = server.client.post("/score", json={"model": MODEL, "text_1": first[:2], "text_2": second})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "text_1"


def test_pooling_gives_vectors_or_one_per_token(encoder: RunningServer) -> None:
    (vector,) = vectors(encoder, TEXTS[0])
    assert post(encoder, "/pooling", input=TEXTS[0])["data"][0]["data"] == pytest.approx(vector)
    tokens = post(encoder, "/pooling", input=TEXTS[0], task="token_embed")
    assert len(tokens["data"][0]["data"]) == len(vector) * tokens["usage"]["prompt_tokens"]


def test_a_cross_encoder_reads_pairs_and_labels_texts(classifier: RunningServer) -> None:
    (item,) = post(classifier, "/score", text_1=TEXTS[0], text_2=TEXTS[1])["data"]
    (best,) = post(classifier, "/rerank", query=TEXTS[0], documents=[TEXTS[1]])["results"]
    assert best["relevance_score"] == pytest.approx(item["score"], abs=1e-5)
    (labelled,) = post(classifier, "/classify", input=TEXTS[0])["data"]
    assert (labelled["num_classes"], labelled["label"]) == (1, "LABEL_0") and len(labelled["probs"]) == 1


MESSAGES = [{"role": "user", "content": "A"}]
GENERATING: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "a"},
    "/v1/responses": {"input": "a"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 4},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", GENERATING)
def test_em06_a_model_that_pools_generates_nothing(encoder: RunningServer, path: str, stream: bool) -> None:
    before = vectors(encoder, TEXTS)
    body = {"model": MODEL, **GENERATING[path], "stream": stream}
    answer = encoder.client.post(path, json=body, timeout=SLACK_S)
    assert answer.status_code in (400, 404) and "embed" in answer.json()["error"]["message"], answer.text
    assert_is_unharmed(encoder, before)


def test_em06_a_model_without_a_classifier_labels_nothing(encoder: RunningServer) -> None:
    before = vectors(encoder, TEXTS)
    answer = encoder.client.post("/classify", json={"model": MODEL, "input": "a"}, timeout=SLACK_S)
    assert answer.status_code == 400 and "no classifier" in answer.json()["error"]["message"], answer.text
    assert_is_unharmed(encoder, before)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/embeddings", {"input": "a"}),
        ("/pooling", {"input": "a"}),
        ("/classify", {"input": "a"}),
        ("/score", {"text_1": "a", "text_2": "b"}),
        ("/rerank", {"query": "a", "documents": ["b"]}),
    ],
)
def test_em06_a_model_that_generates_pools_nothing(server: RunningServer, path: str, fields: dict[str, Any]) -> None:
    answer = server.client.post(path, json={"model": MODEL, **fields}, timeout=SLACK_S)
    assert answer.status_code == 400 and "runner" in answer.json()["error"]["message"], answer.text
    assert server.is_alive()
