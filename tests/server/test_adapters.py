"""LoRA adapters over HTTP: models of their own, loaded from one folder and from nowhere else."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.cli.serve import add_arguments
from octavo.config.flat import options_in
from octavo.config.server import ServeConfig
from octavo.server.adapters import folder_below, parse_modules
from octavo.server.api_error import ApiError
from octavo.words.errors import ConfigError
from tests.server.conftest import MODEL, RunningServer, serving
from tests.tiny_adapters import save_tiny_adapter

PROMPT = "ABCDEFGHIJ"


@pytest.fixture(scope="module")
def root(succ: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The allowed folder, beside one that is not allowed and a link to that."""
    folder = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(("one", "two", "three", "broken")):
        save_tiny_adapter(folder / "allowed" / name, succ, seed=seed, size=0.4)
    save_tiny_adapter(folder / "allowed" / "endless", succ, size=float("nan"))
    weights = folder / "allowed" / "broken" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    save_tiny_adapter(folder / "secret", succ, seed=9)
    (folder / "allowed" / "link").symlink_to(folder / "secret")
    (folder / "allowed" / "linked files").mkdir()
    for file in (folder / "secret").iterdir():
        (folder / "allowed" / "linked files" / file.name).symlink_to(file)
    return folder / "allowed"


@pytest.fixture(scope="module")
def adapted(succ: Path, root: Path) -> Iterator[RunningServer]:
    modules = f"one={root / 'one'}"
    flags = ("--enable-lora", "--max-loras", "2", "--lora-folder", str(root), "--lora-modules", modules)
    with serving(succ, root.parent / "server.log", *flags) as running:
        yield running
        assert running.is_alive() and running.becomes_idle()


_WATCHED = threading.local()


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and (opened := getattr(_WATCHED, "opened", None)) is not None:
        opened.append(str(arguments[0]))


sys.addaudithook(_note)


@contextmanager
def opened_files() -> Iterator[list[str]]:
    """What this thread opens meanwhile."""
    _WATCHED.opened = opened = []
    try:
        yield opened
    finally:
        _WATCHED.opened = None


def load(server: RunningServer, name: Any, path: Any, **more: Any) -> httpx.Response:
    return server.client.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": path, **more})


def unload(server: RunningServer, name: str) -> httpx.Response:
    return server.client.post("/v1/unload_lora_adapter", json={"lora_name": name})


def text(server: RunningServer, model: str) -> str:
    answer = server.complete(PROMPT, model=model, max_tokens=12, ignore_eos=True)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == model
    return str(answer.json()["choices"][0]["text"])


def models(server: RunningServer) -> dict[str, Any]:
    return {card["id"]: card for card in server.client.get("/v1/models").json()["data"]}


def test_an_adapter_is_a_model_from_its_loading_to_its_unloading(adapted: RunningServer) -> None:
    assert models(adapted).keys() == {MODEL, "one"}
    assert models(adapted)["one"]["parent"] == MODEL and models(adapted)["one"]["root"] == "one"
    assert load(adapted, "team/two", "two").status_code == 200
    assert models(adapted).keys() == {MODEL, "one", "team/two"}
    assert adapted.client.get("/v1/models/team/two").json()["parent"] == MODEL
    assert len({text(adapted, name) for name in (MODEL, "one", "team/two")}) == 3
    assert unload(adapted, "team/two").status_code == 200
    assert adapted.complete(PROMPT, model="team/two").status_code == 404
    assert unload(adapted, "team/two").status_code == 404
    assert models(adapted).keys() == {MODEL, "one"}


def test_every_api_answers_with_the_adapter(adapted: RunningServer) -> None:
    """The same prompt, the same adapter, the same text; and another than the base model's."""
    messages = [{"role": "user", "content": PROMPT}]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": messages, "max_tokens": 8},
        "/v1/messages": {"messages": messages, "max_tokens": 8},
        "/v1/responses": {"input": PROMPT, "max_output_tokens": 8},
    }
    for path, body in bodies.items():
        answers = [
            adapted.client.post(path, json={**body, "model": name, "temperature": 0}) for name in (MODEL, "one", "one")
        ]
        assert [answer.status_code for answer in answers] == [200] * 3, answers[1].text
        told = [
            str(answer.json().get("choices") or answer.json().get("content") or answer.json()["output"][0]["content"])
            for answer in answers
        ]
        assert told[1] == told[2] != told[0]


def test_adapters_side_by_side_answer_as_alone(adapted: RunningServer) -> None:
    """LO05, with one adapter more than there are slots."""
    for name in ("two", "three"):
        assert load(adapted, name, name).status_code == 200
    names = [MODEL, "one", "two", "three"] * 2
    alone = {name: text(adapted, name) for name in names}
    with ThreadPoolExecutor(len(names)) as pool:
        assert list(pool.map(lambda name: text(adapted, name), names)) == [alone[name] for name in names]
    page = adapted.client.get("/metrics").text
    (gauge,) = (line for line in page.splitlines() if line.startswith("vllm:lora_requests_info{"))
    assert 'max_lora="2"' in gauge and 'running_lora_adapters=""' in gauge
    assert float(gauge.rsplit(" ", 1)[1]) > 1e9
    for name in ("two", "three"):
        assert unload(adapted, name).status_code == 200


PATHS_OUT = ["../secret", "../../etc", "/etc", "/nonexistent", "nonexistent", "https://example.com/a", "", ".", "link"]
PATHS_OUT += ["linked files", "one/../../secret", "a\0b", "x" * 5000, "one/adapter_model.safetensors"]


@pytest.mark.parametrize("path", PATHS_OUT)
def test_no_path_leads_out_of_the_folder(adapted: RunningServer, path: str) -> None:
    """LO04; and the answer tells nothing of what lies there."""
    answer = load(adapted, "x", path)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == "lora_path"
    assert answer.json() == load(adapted, "x", "/nonexistent").json()


@pytest.mark.parametrize("path", PATHS_OUT)
def test_nothing_out_of_the_folder_is_opened(root: Path, path: str) -> None:
    """LO04: what Python tells of files and folders that are opened while a path is judged."""
    with opened_files() as opened:
        (root / "one" / "adapter_config.json").read_bytes()
        with pytest.raises(ApiError):
            folder_below(root, path)
    assert opened == [str(root / "one" / "adapter_config.json")]


@pytest.mark.parametrize("name", ["../x", "/x", "x/../y", "", MODEL, "one", "a" * 201, "a b", "x/", "."])
def test_no_name_is_odd_or_taken(adapted: RunningServer, name: str) -> None:
    """LO04: above all the base model's is not."""
    answer = load(adapted, name, "two")
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == "lora_name"
    assert models(adapted).keys() == {MODEL, "one"}


def test_a_name_may_be_given_to_another_adapter_on_request(adapted: RunningServer) -> None:
    before = text(adapted, "one")
    assert load(adapted, "one", "two", load_inplace=True).status_code == 200
    assert text(adapted, "one") != before
    assert load(adapted, "one", "one", load_inplace=True).status_code == 200
    assert text(adapted, "one") == before


def test_a_broken_adapter_is_told_by_file_and_tensor(adapted: RunningServer) -> None:
    answer = load(adapted, "broken", "broken")
    assert answer.status_code == 400
    assert "truncated" in answer.json()["error"]["message"] and "lora_" in answer.json()["error"]["message"]
    assert models(adapted).keys() == {MODEL, "one"}


def test_an_adapter_that_is_not_finite_is_told_by_its_tensor(adapted: RunningServer) -> None:
    answer = load(adapted, "endless", "endless")
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert "lora_A.weight': holds NaN or infinity" in message and "\n" not in message
    assert models(adapted).keys() == {MODEL, "one"}


def test_a_body_that_names_nothing_is_refused(adapted: RunningServer) -> None:
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        assert adapted.client.post(path, json={}).status_code == 400
    assert load(adapted, 7, "two").status_code == 400


def test_without_a_folder_there_are_no_such_routes(server: RunningServer) -> None:
    """LO04: off by default."""
    assert load(server, "x", "/etc").status_code == 404
    assert unload(server, "x").status_code == 404


def test_an_unknown_model_is_not_the_base_model(adapted: RunningServer) -> None:
    """LO03."""
    assert adapted.complete(PROMPT, model="nobody").status_code == 404


def test_folders_are_compared_where_links_lead(root: Path, tmp_path: Path) -> None:
    linked_root = tmp_path / "root"
    linked_root.symlink_to(root)
    assert folder_below(linked_root, "one") == root / "one"
    assert folder_below(root, str(linked_root / "one")) == root / "one"
    with pytest.raises(ApiError):
        folder_below(root, str(root.parent / "secret"))


def test_modules_are_names_and_paths() -> None:
    assert parse_modules(None) == {}
    assert parse_modules("a=/x, b = y/z,") == {"a": Path("/x"), "b": Path("y/z")}
    one = '{"name": "a", "path": "/x, y", "base_model_name": "m"}'
    assert parse_modules(one) == {"a": Path("/x, y")}
    assert parse_modules(one + ',{"path": "z", "name": "b"}') == {"a": Path("/x, y"), "b": Path("z")}
    for wrong in ("a", "a=", "=b", "a=b,a=c", '{"name": "a"}', '{"name": "a", "path": 1}', "{", f"{one},{one}"):
        with pytest.raises(ConfigError, match="name=path"):
            parse_modules(wrong)


def test_modules_may_be_several_words_of_a_command_line() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for words in (["a=/x", "b=/y"], ["a=/x,b=/y"], ['{"name": "a", "path": "/x"}', '{"name": "b", "path": "/y"}']):
        given = options_in(parser.parse_args(["m", "--lora-modules", *words, "--port", "1"]), ServeConfig)
        assert parse_modules(given["lora_modules"]) == {"a": Path("/x"), "b": Path("/y")}
