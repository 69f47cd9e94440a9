"""A load against a running server that speaks OpenAI's API, whoever's it is: throughput, latencies, goodput."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from octavo.bench.serving.datasets import DATASETS, DatasetOptions, load_prompts
from octavo.bench.serving.figures import VALUES, details, figures, table
from octavo.bench.serving.http import Connections, HttpError, Server
from octavo.bench.serving.load import Answer, Prompt, Rates, Target, send, send_all
from octavo.bench.serving.plot import check_plot, plot
from octavo.words.errors import ConfigError, OctavoError

ENGINE_OPTIONS = False
ENDPOINTS = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}
READY_POLL_S = 0.5
SAMPLING = {
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "frequency_penalty": float,
    "presence_penalty": float,
    "repetition_penalty": float,
}
"""Fields that are flags too, as in ``vllm bench serve``."""


logger = logging.getLogger(__name__)


class LoadError(OctavoError):
    """The server could not be reached, or answered nothing."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Names and defaults as in ``vllm bench serve``."""
    _add_server_arguments(parser.add_argument_group("server"))
    _add_dataset_arguments(parser.add_argument_group("data set"))
    _add_load_arguments(parser.add_argument_group("load"))
    _add_result_arguments(parser.add_argument_group("results"))


def _add_server_arguments(group: Any) -> None:
    group.add_argument("--backend", choices=sorted(ENDPOINTS), default="openai", help="kind of endpoint [openai]")
    group.add_argument("--base-url", metavar="URL", help="address of the server (default: from --host and --port)")
    group.add_argument("--host", default="127.0.0.1", help="where the server is [127.0.0.1]")
    group.add_argument("--port", type=int, default=8000, help="and its port [8000]")
    group.add_argument("--endpoint", metavar="PATH", help="path of the endpoint (default: the backend's)")
    group.add_argument("--model", metavar="NAME", help="model to ask for (default: the first the server lists)")
    group.add_argument("--served-model-name", metavar="NAME", help="its name in requests, where it differs")
    group.add_argument("--tokenizer", metavar="MODEL", help="whose tokenizer counts prompts (default: the model's)")
    group.add_argument("--header", action="append", default=[], metavar="KEY=VALUE", help="a header for every request")
    group.add_argument("--api-key", metavar="KEY", help="sent as Authorization: Bearer KEY")
    group.add_argument(
        "--ready-check-timeout-sec",
        type=float,
        default=600,
        metavar="S",
        help="how long the server is waited for [600]",
    )


def _add_dataset_arguments(group: Any) -> None:
    group.add_argument(
        "--dataset-name", choices=sorted(DATASETS), default="random", help="where prompts are from [random]"
    )
    group.add_argument("--dataset-path", type=Path, metavar="FILE", help="file of custom or sharegpt")
    group.add_argument("--num-prompts", type=int, default=1000, metavar="N", help="requests [1000]")
    group.add_argument("--random-input-len", type=int, default=1024, metavar="L", help="tokens of a prompt [1024]")
    group.add_argument("--random-output-len", type=int, default=128, metavar="L", help="and of an answer [128]")
    group.add_argument("--random-range-ratio", type=float, default=0.0, metavar="R", help="both vary by this share [0]")
    group.add_argument(
        "--random-prefix-len", type=int, default=0, metavar="L", help="tokens that all prompts begin with [0]"
    )
    group.add_argument(
        "--sharegpt-output-len", type=int, metavar="L", help="tokens of an answer (default: as in the file)"
    )
    group.add_argument("--custom-output-len", type=int, default=256, metavar="L", help="tokens of an answer [256]")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of prompts and arrivals [0]")


def _add_load_arguments(group: Any) -> None:
    group.add_argument(
        "--request-rate", type=float, default=float("inf"), metavar="RPS", help="requests a second [inf: all at once]"
    )
    group.add_argument("--burstiness", type=float, default=1.0, metavar="B", help="1: Poisson; less: burstier [1]")
    group.add_argument("--max-concurrency", type=int, metavar="N", help="most requests at once (default: any number)")
    group.add_argument("--ramp-up-strategy", choices=("linear", "exponential"), help="let the rate grow")
    group.add_argument("--ramp-up-start-rps", type=float, metavar="RPS", help="from here")
    group.add_argument("--ramp-up-end-rps", type=float, metavar="RPS", help="to there")
    group.add_argument("--num-warmups", type=int, default=0, metavar="N", help="requests before the timed ones [0]")
    group.add_argument("--ignore-eos", action="store_true", help="answers go on to their length")
    group.add_argument("--temperature", type=float, default=0.0, metavar="T", help="of sampling [0]")
    for name, kind in SAMPLING.items():
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="X", help="sent where given")
    group.add_argument("--logprobs", type=int, metavar="N", help="log-probabilities for each token")
    group.add_argument("--extra-body", type=json.loads, default={}, metavar="JSON", help="more fields of the body")


def _add_result_arguments(group: Any) -> None:
    group.add_argument(
        "--goodput",
        nargs="+",
        default=[],
        metavar="METRIC:MS",
        help="count requests within these limits, such as ttft:500 tpot:50",
    )
    group.add_argument(
        "--percentile-metrics", default="ttft,tpot,itl", metavar="METRIC,...", help="which are shown [ttft,tpot,itl]"
    )
    group.add_argument("--metric-percentiles", default="99", metavar="P,...", help="and at which percentiles [99]")
    group.add_argument("--save-result", action="store_true", help="write the figures as JSON")
    group.add_argument("--save-detailed", action="store_true", help="and every request's")
    group.add_argument("--append-result", action="store_true", help="add a line to the file instead")
    group.add_argument("--result-dir", type=Path, default=Path(), metavar="DIR", help="folder of the file [.]")
    group.add_argument("--result-filename", metavar="FILE", help="its name (default: of label, rate, model and time)")
    group.add_argument("--metadata", nargs="*", default=[], metavar="KEY=VALUE", help="more keys of the JSON")
    group.add_argument("--label", metavar="TEXT", help="prefix of the file's name")
    group.add_argument("--plot", type=Path, metavar="FILE", help="write a picture of the run (PNG)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Keys as in the JSON of ``vllm bench serve``. Raises LoadError where nothing came back."""
    checked = Checked(args)
    return asyncio.run(_run(args, checked))


class Checked:
    """The options that need a look before anything runs."""

    def __init__(self, args: argparse.Namespace) -> None:
        if args.num_prompts < 1:
            raise ConfigError(f"--num-prompts must be at least 1, got {args.num_prompts}.")
        if args.plot is not None:
            check_plot(args.plot)
        self.metrics = _metrics("--percentile-metrics", args.percentile_metrics.split(","))
        self.percentiles = [_number("--metric-percentiles", text) for text in args.metric_percentiles.split(",")]
        self.goodput = dict(_pair("--goodput", text, ":") for text in args.goodput)
        _metrics("--goodput", list(self.goodput))
        self.goodput_ms = {name: _number("--goodput", text) for name, text in self.goodput.items()}
        self.metadata = dict(_pair("--metadata", text, "=") for text in args.metadata)
        self.rates = _rates(args)
        headers = dict(_pair("--header", text, "=") for text in args.header)
        if args.api_key:
            headers["Authorization"] = f"Bearer {args.api_key}"
        self.server = Server.at(args.base_url or f"http://{args.host}:{args.port}", headers)


async def _run(args: argparse.Namespace, checked: Checked) -> dict[str, Any]:
    connections = Connections(checked.server)
    try:
        listed = await _wait_until_ready(connections, args.ready_check_timeout_sec)
        model = args.model or listed
        prompts = load_prompts(_dataset_options(args), _tokenizer(args.tokenizer or model))
        target = _target(args, args.served_model_name or model)
        await _check(connections, target, prompts[0])
        await asyncio.gather(*(send(connections, target, prompt) for prompt in prompts[: args.num_warmups]))
        times = checked.rates.times(len(prompts), args.seed)
        began = time.perf_counter()
        answers, duration_s = await send_all(connections, target, prompts, times, args.max_concurrency)
    finally:
        connections.close()
    return _finish(args, checked, model, answers, began, duration_s)


async def _wait_until_ready(connections: Connections, timeout_s: float) -> str:
    """The first model the server lists, once it lists any."""
    deadline = time.monotonic() + timeout_s
    waits = False
    while True:
        try:
            return str((await connections.get("/v1/models"))["data"][0]["id"])
        except (OSError, HttpError, EOFError, ValueError, LookupError) as error:
            if time.monotonic() >= deadline:
                raise LoadError(f"no server that lists models within {timeout_s:g} s: {error}") from None
            if not waits:
                logger.warning("No server that lists models yet (%s); waiting up to %g s for it", error, timeout_s)
            waits = True
        await asyncio.sleep(READY_POLL_S)


async def _check(connections: Connections, target: Target, prompt: Prompt) -> None:
    """One request before all others, so that what is wrong with all of them is told once."""
    answer = await send(connections, target, prompt)
    if not answer.success:
        raise LoadError(f"the first request failed: {answer.error}")


def _finish(
    args: argparse.Namespace,
    checked: Checked,
    model: str,
    answers: Sequence[Answer],
    began: float,
    duration_s: float,
) -> dict[str, Any]:
    result = {
        "date": datetime.now().strftime("%Y%m%d-%H%M%S"),
        "backend": args.backend,
        "endpoint_type": args.backend,
        "label": args.label,
        "model_id": model,
        "tokenizer_id": args.tokenizer or model,
        "num_prompts": args.num_prompts,
        **checked.metadata,
        "request_rate": args.request_rate if args.request_rate < float("inf") else "inf",
        "burstiness": args.burstiness,
        "max_concurrency": args.max_concurrency,
        **_ramp(args),
        **figures(
            answers,
            duration_s,
            percentiles=checked.percentiles,
            metrics=checked.metrics,
            goodput=checked.goodput_ms or None,
        ),
    }
    print(table(result, metrics=checked.metrics, percentiles=checked.percentiles))
    for error in sorted({answer.error for answer in answers if not answer.success})[:5]:
        print(f"failed: {error}")
    if args.save_result or args.append_result or args.save_detailed:
        _save(args, result | (details(answers, began) if args.save_detailed else {}))
    if args.plot is not None:
        plot(args.plot, answers, f"{model}, {args.dataset_name}, {args.num_prompts} requests")
    return result


def print_result(result: dict[str, Any]) -> None:
    """The table was printed as soon as there was one: saving and drawing come after it."""


def _save(args: argparse.Namespace, result: dict[str, Any]) -> None:
    concurrency = f"-concurrency{args.max_concurrency}" if args.max_concurrency else ""
    name = f"{args.label or args.backend}-{args.request_rate}qps{concurrency}-{result['model_id'].split('/')[-1]}"
    path = args.result_dir / (args.result_filename or f"{name}-{result['date']}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a" if args.append_result else "w", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")


def _dataset_options(args: argparse.Namespace) -> DatasetOptions:
    return DatasetOptions(
        name=args.dataset_name,
        path=args.dataset_path,
        num_prompts=args.num_prompts,
        seed=args.seed,
        random_input_len=args.random_input_len,
        random_output_len=args.random_output_len,
        random_range_ratio=args.random_range_ratio,
        random_prefix_len=args.random_prefix_len,
        sharegpt_output_len=args.sharegpt_output_len,
        custom_output_len=args.custom_output_len,
    )


def _tokenizer(name: str) -> Any:
    from octavo.checkpoint.resolve import resolve_model
    from octavo.frontend.load_tokenizer import load_tokenizer

    try:
        return load_tokenizer(resolve_model(name))
    except OctavoError as error:
        raise ConfigError(
            f"prompts are counted with the model's tokenizer: name one with --tokenizer ({error})"
        ) from None


def _target(args: argparse.Namespace, model: str) -> Target:
    is_chat = args.backend == "openai-chat"
    given = {name: value for name in SAMPLING if (value := getattr(args, name)) is not None}
    fields = {"model": model, "temperature": args.temperature, **given}
    if args.logprobs is not None:
        fields |= {"logprobs": True, "top_logprobs": args.logprobs} if is_chat else {"logprobs": args.logprobs}
    if args.ignore_eos:
        fields["ignore_eos"] = True
    endpoint = args.endpoint or ENDPOINTS[args.backend]
    return Target(endpoint=endpoint, is_chat=is_chat, fields=fields | args.extra_body)


def _rates(args: argparse.Namespace) -> Rates:
    if args.request_rate <= 0 or args.burstiness <= 0:
        raise ConfigError("--request-rate and --burstiness must be above 0.")
    if args.ramp_up_strategy is None:
        return Rates(request_rate=args.request_rate, burstiness=args.burstiness)
    start, end = args.ramp_up_start_rps, args.ramp_up_end_rps
    if not start or not end or min(start, end) <= 0:
        raise ConfigError("--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps above 0.")
    if args.request_rate < float("inf"):
        raise ConfigError("--request-rate and --ramp-up-strategy exclude each other: the ramp gives the rate.")
    return Rates(
        burstiness=args.burstiness,
        ramp_up_strategy=args.ramp_up_strategy,
        ramp_up_start_rps=start,
        ramp_up_end_rps=end,
    )


def _ramp(args: argparse.Namespace) -> dict[str, Any]:
    names = ("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps")
    return {name: getattr(args, name) for name in names} if args.ramp_up_strategy else {}


def _metrics(flag: str, names: Sequence[str]) -> list[str]:
    for name in names:
        if name not in VALUES:
            raise ConfigError(f"{flag}: no metric {name!r}; there are {', '.join(VALUES)}")
    return list(names)


def _pair(flag: str, text: str, separator: str) -> tuple[str, str]:
    name, found, value = text.partition(separator)
    if not found:
        raise ConfigError(f"{flag} {text!r}: give NAME{separator}VALUE")
    return name, value


def _number(flag: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{flag}: {text!r} is no number") from None
