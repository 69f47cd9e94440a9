"""LLM: prompts in, texts out. A loop over LLMEngine.

with LLM("smollm2-135m") as llm:
    for output in llm.generate(["Hello", "The sky is"], SamplingParams(max_tokens=16)):
        print(output.outputs[0].text)
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar, cast

from octavo.config.flat import EngineArgs, flat
from octavo.engine.info import EngineInfo
from octavo.engine.metric import Metric
from octavo.frontend.beam_search import beam_search_output
from octavo.frontend.input_processor import PreparedRequest, own_params
from octavo.frontend.llm_engine import LLMEngine
from octavo.frontend.pooling import Scoring, text_pairs
from octavo.frontend.progress import progress_bar
from octavo.tokenizer.chat_template import check_template_options
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.util.spans import Span
from octavo.words.beam_search import BeamSearch, BeamSearchOutput, BeamSearchParams
from octavo.words.errors import EngineError, RequestError
from octavo.words.inputs import PromptType, TokensPrompt
from octavo.words.lora import LoRARequest
from octavo.words.outputs import PoolingRequestOutput, RequestOutput
from octavo.words.pooling_params import PoolingParams
from octavo.words.sampling_params import RequestOutputKind, SamplingParams

Message: TypeAlias = Mapping[str, Any]
Conversation: TypeAlias = Sequence[Message]
T = TypeVar("T")


class LLM:
    """A model that answers batches of prompts.

    ``model`` is a catalogue name, a folder, a ``.gguf`` file or a hub id; ``options`` are those of EngineArgs. The
    engine runs in this process, whose torch settings it leaves alone, or with ``multiprocess=True`` in a background
    process, which needs no main guard in a script. One caller at a time. Raises ModelNotFoundError, CheckpointError,
    ConfigError and their kin; from a background process EngineStartError with the root cause as its last line.
    """

    def __init__(self, model: str | None = None, *, multiprocess: bool = False, **options: Any) -> None:
        self._request_ids = itertools.count()
        self._engine = LLMEngine.from_engine_args(EngineArgs(model, **options), multiprocess=multiprocess)

    @classmethod
    def from_engine_args(cls, args: EngineArgs, *, multiprocess: bool = False) -> Self:
        """An LLM from options that are already together."""
        return cls(multiprocess=multiprocess, **flat(args.create_engine_config()))

    @property
    def info(self) -> EngineInfo:
        """What was decided and learnt at start-up, with the seconds of every phase."""
        return self._engine.info

    def generate(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: int | Sequence[int] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[RequestOutput]:
        """Answer prompts (text, token ids, or a dict with either and a cache_salt), in the order they were given.

        ``sampling_params``, ``priority`` and ``lora_request`` (an adapter to answer with) are one for all or a list
        with one each; None takes the model's own defaults, and no adapter. Raises RequestError for a prompt that cannot
        be served, before any runs, naming its index. A choice that fails while it runs has finish_reason "error" and
        its reason in ``error``; it harms no other.
        """
        listed = _as_list(prompts)
        named = "prompts" if listed is prompts else None
        return self._run(
            listed,
            _one_each("sampling_params", sampling_params, len(listed)),
            _one_each("priority", priority, len(listed)),
            _one_each("lora_request", lora_request, len(listed)),
            named=named,
            use_tqdm=use_tqdm,
        )

    def chat(  # noqa: PLR0913 - vLLM's, so that its users' scripts run
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or a list of them, each a list of ``{"role": ..., "content": ...}``.

        ``continue_final_message`` goes on with the last message instead of opening an answer, so it excludes
        ``add_generation_prompt``. ``chat_template`` is Jinja text in place of the model's template, and
        ``chat_template_kwargs`` are variables of it. Otherwise as ``generate``.
        """
        if add_generation_prompt and continue_final_message:
            raise RequestError(
                "continue_final_message goes on with the last message; give add_generation_prompt=False with it.",
                param="add_generation_prompt",
            )
        if not _is_list(messages):
            raise RequestError(
                f"messages is a conversation (a list of messages) or a list of them, got {type(messages).__name__}.",
                param="messages",
            )
        one = bool(messages) and isinstance(messages[0], Mapping)
        conversations = cast("Sequence[Conversation]", [messages] if one else messages)
        options = {
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            **check_template_options(chat_template_kwargs or {}, {}),
        }
        tokenizer = self._engine.tokenizer
        if chat_template is not None:
            tokenizer = tokenizer.with_chat_template(chat_template)
        prompts = []
        for index, conversation in enumerate(conversations):
            with _naming(None if one else "messages", index):
                prompts.append(_chat_prompt(tokenizer, conversation, options))
        params = _one_each("sampling_params", sampling_params, len(prompts))
        adapters = _one_each("lora_request", lora_request, len(prompts))
        return self._run(
            prompts,
            params,
            [None] * len(prompts),
            adapters,
            named=None if one else "messages",
            use_tqdm=use_tqdm,
        )

    def beam_search(
        self,
        prompts: PromptType | Sequence[PromptType],
        params: BeamSearchParams,
        *,
        use_tqdm: bool = False,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """The ``beam_width`` likeliest answers to each prompt, best first, as Transformers' beam search finds them.

        At most ``concurrency_limit`` prompts are worked on at once (None: as many as the engine has room for). Raises
        RequestError before any runs, naming the index of a bad prompt.
        """
        if concurrency_limit is not None and concurrency_limit < 1:
            name = "concurrency_limit"
            raise RequestError(f"{name} must be at least 1, or None for no limit, got {concurrency_limit}.", param=name)
        search = BeamSearch(
            width=params.beam_width, length_penalty=params.length_penalty, early_stopping=params.early_stopping
        )
        sampling = SamplingParams(
            n=search.width,
            beam_search=search,
            max_tokens=params.max_tokens,
            min_tokens=params.min_tokens,
            ignore_eos=params.ignore_eos,
            logprobs=0,
        )
        listed = _as_list(prompts)
        outputs = self._run(
            listed,
            [sampling] * len(listed),
            [None] * len(listed),
            _one_each("lora_request", lora_request, len(listed)),
            named="prompts" if listed is prompts else None,
            use_tqdm=use_tqdm,
            at_once=concurrency_limit,
        )
        return [beam_search_output(output, search, self.get_tokenizer()) for output in outputs]

    def encode(
        self,
        prompts: PromptType | Sequence[PromptType],
        pooling_params: PoolingParams | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[PoolingRequestOutput]:
        """Pool texts into numbers, in the order they were given; see PoolingParams for what can be asked.

        For models that embed or classify. Raises RequestError before any runs, naming the index of a bad prompt.
        """
        listed = _as_list(prompts)
        return self._pool(listed, pooling_params or PoolingParams(), "prompts" if listed is prompts else None, use_tqdm)

    def embed(
        self,
        prompts: PromptType | Sequence[PromptType],
        *,
        dimensions: int | None = None,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool = True,
    ) -> list[PoolingRequestOutput]:
        """One vector per text."""
        params = PoolingParams(dimensions=dimensions, truncate_prompt_tokens=truncate_prompt_tokens)
        return self.encode(prompts, params, use_tqdm=use_tqdm)

    def classify(
        self,
        prompts: PromptType | Sequence[PromptType],
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool = True,
    ) -> list[PoolingRequestOutput]:
        """A probability for each label of the model."""
        params = PoolingParams(task="classify", truncate_prompt_tokens=truncate_prompt_tokens)
        return self.encode(prompts, params, use_tqdm=use_tqdm)

    def score(
        self,
        first: str | Sequence[str],
        second: str | Sequence[str],
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool = True,
    ) -> list[PoolingRequestOutput]:
        """How well texts go together, one number per pair: one first text with each second, or first i with second i.

        A model with a classifier reads both texts at once; any other compares their vectors by the cosine.
        """
        num_labels = self.info.facts.num_labels
        scoring = Scoring(text_pairs(first, second), num_labels=num_labels, truncate=truncate_prompt_tokens)
        return scoring.scores(self._pool(scoring.prompts, scoring.params, "pairs" if num_labels else "texts", use_tqdm))

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What ``sampling_params=None`` stands for: ours, with what the model's generation_config changes."""
        return self._engine.default_sampling_params

    def get_metrics(self) -> list[Metric]:
        """Counters and gauges of this moment, under vLLM's names."""
        return self._engine.get_metrics()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, and nothing is done, while a request holds blocks."""
        return self._engine.reset_prefix_cache()

    def start_profile(self, *, with_ops: bool = False) -> None:
        """Take note from now on of what the engine does when; ``with_ops`` of every op of captured steps too."""
        self._engine.start_profile(with_ops=with_ops)

    def stop_profile(self) -> list[Span]:
        """What it did since ``start_profile``; no more notes are taken."""
        return self._engine.stop_profile()

    def collective_rpc(self, name: str, *args: Any) -> list[Any]:
        """Call a method of every worker (``extension.NAME`` for one of a worker extension); one result per worker."""
        return self._engine.collective_rpc(name, *args)

    def close(self) -> None:
        """Stop the engine and free everything; harmless when called again."""
        self._engine.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if "_engine" in self.__dict__:  # the start may have failed
            with contextlib.suppress(Exception):
                self.close()

    def _run(
        self,
        prompts: Sequence[PromptType],
        sampling_params: Sequence[SamplingParams | None],
        priorities: Sequence[int | None],
        lora_requests: Sequence[LoRARequest | None],
        *,
        named: str | None,
        use_tqdm: bool,
        at_once: int | None = None,
    ) -> list[RequestOutput]:
        prepared = []
        asked = zip(prompts, sampling_params, priorities, lora_requests, strict=True)
        for index, (prompt, params, priority, lora_request) in enumerate(asked):
            with _naming(named, index):
                prepared.append(self._prepare(prompt, params, priority, lora_request))
        size = at_once or max(len(prepared), 1)
        batches = [prepared[start : start + size] for start in range(0, len(prepared), size)]
        return [output for batch in batches for output in self._answer(batch, use_tqdm)]

    def _answer(self, prepared: Sequence[PreparedRequest], use_tqdm: bool) -> list[Any]:
        """Run prepared requests; their outputs in the same order."""
        try:
            for request in prepared:
                self._engine.add_prepared(request)
            return self._finish(prepared, use_tqdm)
        except BaseException:
            # Also after Ctrl-C: nothing of this call may run on.
            with contextlib.suppress(EngineError):
                self._engine.abort_request([request.request_id for request in prepared])
            raise

    def _pool(
        self,
        prompts: Sequence[PromptType | tuple[str, str]],
        params: PoolingParams,
        named: str | None,
        use_tqdm: bool,
    ) -> list[PoolingRequestOutput]:
        prepared = []
        for index, prompt in enumerate(prompts):
            with _naming(named, index):
                prepared.append(self._engine.prepare_pooling(str(next(self._request_ids)), prompt, params))
        return self._answer(prepared, use_tqdm)

    def _prepare(
        self,
        prompt: PromptType,
        params: SamplingParams | None,
        priority: int | None,
        lora_request: LoRARequest | None,
    ) -> PreparedRequest:
        params = self.get_default_sampling_params() if params is None else params
        final = own_params(params, output_kind=RequestOutputKind.FINAL_ONLY)
        request_id = str(next(self._request_ids))
        return self._engine.prepare(request_id, prompt, final, priority=priority, lora_request=lora_request)

    def _finish(self, requests: Sequence[PreparedRequest], use_tqdm: bool) -> list[Any]:
        done: dict[str, RequestOutput | PoolingRequestOutput] = {}
        with progress_bar(len(requests), enabled=use_tqdm) as bar:
            while self._engine.has_unfinished_requests():
                for output in self._engine.step():
                    if output.finished:
                        done[output.request_id] = output
                        bar.add(output)
        return [done[request.request_id] for request in requests]


def _chat_prompt(tokenizer: Tokenizer, conversation: Conversation, options: Mapping[str, Any]) -> TokensPrompt:
    return {
        "prompt": tokenizer.render_chat_template(conversation, **options),
        "prompt_token_ids": tokenizer.apply_chat_template(conversation, **options),
    }


def _as_list(prompts: PromptType | Sequence[PromptType]) -> Sequence[PromptType]:
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if not _is_list(prompts):
        raise RequestError(f"prompts is one prompt or a list of them, got {type(prompts).__name__}.", param="prompts")
    is_one = bool(prompts) and all(isinstance(part, Integral) for part in prompts)
    return cast("Sequence[PromptType]", [prompts] if is_one else prompts)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _one_each(name: str, given: T | Sequence[T | None] | None, number: int) -> Sequence[T | None]:
    if not isinstance(given, Sequence) or isinstance(given, str):
        return [given] * number
    if len(given) != number:
        raise RequestError(
            f"{name} has {len(given)} entries for {number} prompts; give one for all, or a list with one for each.",
            param=name,
        )
    return given


@contextlib.contextmanager
def _naming(name: str | None, index: int) -> Iterator[None]:
    """Say which one of a list is wrong."""
    try:
        yield
    except RequestError as error:
        if name is None:
            raise
        raise RequestError(f"{name}[{index}]: {error}", param=error.param) from error
