"""AsyncLLM: the engine for asyncio. Every request is an async generator; closing it ends the request.

llm = AsyncLLM.from_engine_args(EngineArgs("smollm2-135m"))
async for output in llm.generate("The capital of France is", SamplingParams(max_tokens=8)):
    print(output.outputs[0].text)
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Any, Literal, Self, TypeVar

import msgspec

from octavo.config.engine_config import EngineConfig
from octavo.config.flat import EngineArgs
from octavo.engine.client import EngineCoreClient, make_supervised_client
from octavo.engine.info import EngineInfo
from octavo.engine.metric import Metric
from octavo.engine.request_stats import RequestStats
from octavo.engine.stats import Statistics, StatLogger, cache_metrics
from octavo.frontend.admission import Admission
from octavo.frontend.input_processor import InputProcessor, PreparedRequest
from octavo.frontend.output_processor import OpenRequest, OutputProcessor
from octavo.frontend.output_slot import OutputSlot
from octavo.frontend.prompt_reader import prompt_text
from octavo.frontend.sampling_resolver import OperatingSystemSeeds
from octavo.frontend.start import default_stat_loggers, start_front_end
from octavo.frontend.tracing import NoTracer, RequestTracer, make_tracer
from octavo.tokenizer.reasoning_style import ReasoningStyle
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.words.errors import EngineDeadError, EngineError, RequestError, RequestTimeoutError
from octavo.words.inputs import PromptType
from octavo.words.lora import LoRARequest
from octavo.words.messages import EngineCoreOutputs, FinishReason
from octavo.words.outputs import PoolingRequestOutput, RequestOutput
from octavo.words.pooling_params import PoolingParams
from octavo.words.sampling_params import SamplingParams

LONG_TEXT_CHARACTERS = 16_384
"""Work on a text of more characters is done in a thread, so that the event loop goes on meanwhile."""

PauseMode = Literal["abort", "wait"]
T = TypeVar("T")


class AsyncLLM:
    """An engine core with a front end, for any number of concurrent callers on one event loop.

    The loop is the one that first calls ``generate``. The parts are handed in and are then its own;
    ``from_engine_args`` makes them from options, with the core in a background process.
    """

    def __init__(
        self,
        client: EngineCoreClient,
        tokenizer: Tokenizer,
        input_processor: InputProcessor,
        output_processor: OutputProcessor,
        *,
        admission: Admission | None = None,
        request_timeout_s: float | None = None,
        stat_loggers: Sequence[StatLogger] = (),
        tracer: RequestTracer | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._client = client
        self._inputs = input_processor
        self._outputs = output_processor
        self._admission = admission or Admission()
        self._request_timeout_s = request_timeout_s
        self._statistics = Statistics(
            RequestStats(client.info.max_model_len, max_loras=client.info.plan.max_loras), stat_loggers
        )
        self._tracer = tracer or NoTracer()
        self._slots: dict[OpenRequest, OutputSlot] = {}
        self._request_ids = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unpaused = asyncio.Event()
        self._unpaused.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._death: EngineDeadError | None = None
        threading.Thread(target=self._read, name="octavo-outputs", daemon=True).start()

    @classmethod
    def from_engine_args(
        cls,
        args: EngineArgs,
        *,
        make_client: Callable[[EngineConfig], EngineCoreClient] | None = None,
        stat_loggers: Sequence[StatLogger] = (),
    ) -> Self:
        """Start an engine from options; returns when it is ready. ``make_client`` starts its core; None: a
        supervised background process.

        Raises EngineStartError with the root cause as its last line, ConfigError and their kin.
        """
        config = args.create_engine_config()
        tracer = make_tracer(config)
        parts = start_front_end(config, make_client or make_supervised_client, seeds=OperatingSystemSeeds())
        limits = config.scheduler
        return cls(
            *parts,
            admission=Admission(max_requests=limits.max_num_queued_reqs, max_tokens=limits.max_num_queued_tokens),
            request_timeout_s=limits.request_timeout,
            stat_loggers=(*default_stat_loggers(config, parts.client.info), *stat_loggers),
            tracer=tracer,
        )

    @property
    def info(self) -> EngineInfo:
        """What was decided and learnt at start-up."""
        return self._client.info

    @property
    def client(self) -> EngineCoreClient:
        """The client of the core."""
        return self._client

    @property
    def default_sampling_params(self) -> SamplingParams:
        """What a request without parameters gets: a copy, yours to change."""
        return self._inputs.default_sampling_params()

    # Requests

    async def generate(
        self,
        prompt: PromptType,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int | None = None,
        timeout_s: float | None = None,
        lora_request: LoRARequest | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answer one prompt: yield outputs as they come, the last one ``finished``.

        A caller that is slower than the engine gets fewer and larger outputs. Closing the generator, or cancelling
        who waits for it, aborts the request within one step. Raises RequestError for a prompt that cannot be served,
        OverloadedError where too many wait, RequestTimeoutError after ``timeout_s`` (None: that of the engine), and
        EngineDeadError when the core fails.
        """
        prepared = await self.prepare(prompt, sampling_params, request_id, priority=priority, lora_request=lora_request)
        async with contextlib.aclosing(self.run(prepared, timeout_s=timeout_s)) as outputs:
            async for output in outputs:
                yield output

    async def prepare(
        self,
        prompt: PromptType,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int | None = None,
        reasoning_end_ids: tuple[int, ...] = (),
        lora_request: LoRARequest | None = None,
        reasoning_style: ReasoningStyle | None = None,
    ) -> PreparedRequest:
        """Check a request, turn it into tokens and see whether it may join the queue; nothing runs yet.

        A grammar holds from the first time that the output ends with ``reasoning_end_ids``; from its begin if empty.
        ``reasoning_style`` (None: that of the chat template) says between which tags a budget of thoughts holds.
        """
        request_id = str(next(self._request_ids)) if request_id is None else request_id
        prepared = await self.work_on(
            len(prompt_text(prompt) or "") + _constraint_size(sampling_params),
            partial(
                self._inputs.prepare,
                request_id,
                prompt,
                sampling_params,
                priority=priority,
                arrival_time=time.time(),
                reasoning_end_ids=reasoning_end_ids,
                lora_request=lora_request,
                reasoning_style=reasoning_style,
            ),
        )
        self.check_admission(prepared)
        return prepared

    async def add_lora(self, lora_request: LoRARequest) -> None:
        """Check an adapter and have it in memory before the first request. Raises RequestError, EngineError."""
        adapter = await asyncio.to_thread(self._inputs.find_adapter, lora_request)
        try:
            await self.call("load_adapter", adapter)
        except EngineError:
            await asyncio.to_thread(self._inputs.find_adapter, lora_request)  # which says what broke meanwhile
            raise

    async def encode(
        self,
        prompt: PromptType | tuple[str, str],
        params: PoolingParams,
        request_id: str,
        *,
        timeout_s: float | None = None,
    ) -> PoolingRequestOutput:
        """Pool one text (or a pair, as a tuple) into numbers; see ``prepare_pooling`` and ``pool``."""
        return await self.pool(await self.prepare_pooling(prompt, params, request_id), timeout_s=timeout_s)

    async def prepare_pooling(
        self, prompt: PromptType | tuple[str, str], params: PoolingParams, request_id: str
    ) -> PreparedRequest:
        """Check a request for numbers, turn it into tokens and see whether it may join the queue; nothing runs yet.

        Raises RequestError and OverloadedError.
        """
        texts = prompt if isinstance(prompt, tuple) else (prompt_text(prompt) or "",)
        arrival_time = time.time()
        work = partial(self._inputs.prepare_pooling, request_id, prompt, params, arrival_time=arrival_time)
        prepared = await self.work_on(sum(map(len, texts)), work)
        self.check_admission(prepared)
        return prepared

    async def pool(self, prepared: PreparedRequest, *, timeout_s: float | None = None) -> PoolingRequestOutput:
        """The numbers of a prepared request; cancelling it aborts the request."""
        async for output in self._outputs_of(prepared, timeout_s):
            found: PoolingRequestOutput = output
        return found

    def run(self, prepared: PreparedRequest, *, timeout_s: float | None = None) -> AsyncGenerator[RequestOutput, None]:
        """Answer a prepared request; see ``generate``."""
        return self._outputs_of(prepared, timeout_s)

    async def _outputs_of(self, prepared: PreparedRequest, timeout_s: float | None) -> AsyncGenerator[Any, None]:
        """RequestOutputs, or the one PoolingRequestOutput of what was prepared for pooling."""
        await self._unpaused.wait()
        request, slot = self._open(prepared, timeout_s)
        span, error = self._tracer.begin(prepared), None
        try:
            while not request.finished or slot.is_ready:
                await slot.wait()
                output = request.take_output()
                if output is not None:
                    span.take(output)
                    yield output
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._close(request)
            span.end(request.metrics, error)

    async def abort(self, request_ids: str | Sequence[str]) -> None:
        """End requests by their ids; who waits for them gets a last output with finish_reason "abort"."""
        listed = [request_ids] if isinstance(request_ids, str) else list(request_ids)
        for request in self._outputs.find_requests(listed):
            self._end(request)

    def check_admission(self, prepared: PreparedRequest) -> None:
        """Return if the request may join the queue now; else raise OverloadedError."""
        self._admission.check(len(prepared.choices), len(prepared.choices[0].prompt_token_ids))

    def check_generates(self) -> None:
        """Raise RequestError where the engine answers with numbers only."""
        self._inputs.check_generates()

    def check_text_length(self, num_characters: int) -> None:
        """Raise RequestError for a text that no tokenizer need look at, being too long whatever its tokens are."""
        self._inputs.check_text_length(num_characters)

    async def work_on(self, num_characters: int, work: Callable[[], T]) -> T:
        """Do ``work`` on a text of that length; on a thread if it is long."""
        if num_characters <= LONG_TEXT_CHARACTERS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(None, work)

    # Pausing

    async def pause_generation(self, *, mode: PauseMode = "abort") -> None:
        """Hold back requests that come from now on; those that run are aborted, or waited for. Returns when all is
        still."""
        if mode not in ("abort", "wait"):
            raise RequestError(f"mode must be abort or wait, got {mode!r}.", param="mode")
        self._unpaused.clear()
        if mode == "abort":
            for request in list(self._slots):
                self._end(request)
        await self._idle.wait()

    async def resume_generation(self) -> None:
        """Let the requests that were held back run."""
        self._unpaused.set()

    @property
    def is_paused(self) -> bool:
        """Whether new requests are held back."""
        return not self._unpaused.is_set()

    # State

    @property
    def num_unfinished_requests(self) -> int:
        """Requests that run or wait."""
        return len(self._slots)

    @property
    def problem(self) -> str | None:
        """Why the core cannot answer just now, None if it can; it may come back. Answers at once."""
        return self._client.problem

    @property
    def errored(self) -> bool:
        """Whether the core has failed; it answers no more requests then."""
        return self._death is not None

    @property
    def dead_error(self) -> EngineDeadError | None:
        """Why the core failed."""
        return self._death

    async def check_health(self) -> None:
        """Return if the core and its workers are well. Raises EngineDeadError or EngineError."""
        await self.call("check_health")

    async def is_healthy(self) -> bool:
        """Whether ``check_health`` finds nothing wrong."""
        with contextlib.suppress(EngineError):
            await self.check_health()
            return True
        return False

    async def call(self, name: str, *args: Any) -> Any:
        """Ask the core a question by name (CALL_RESULTS), on a thread: the core answers between steps."""
        return await asyncio.to_thread(self._client.call, name, *args)

    async def get_metrics(self) -> list[Metric]:
        """Counters, gauges and histograms of this moment, under vLLM's names.

        Answers at once also while the core is busy, hangs or is being restarted.
        """
        scheduler = self._statistics.newest
        if not self._slots:  # an idle core answers at once, and nothing else tells that what was aborted is gone
            with contextlib.suppress(EngineError):
                scheduler = await self.call("stats")
        more = [*cache_metrics(self.info), *self._client.metrics()]
        return self._statistics.snapshot(scheduler, more)

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, and nothing is done, while a request holds blocks."""
        return bool(await self.call("reset_prefix_cache"))

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.tokenizer

    def shutdown(self) -> None:
        """Stop the core and free everything; harmless when called again. Blocks for as long as the core takes."""
        self._client.shutdown()
        self._tracer.shutdown()

    # Inside the loop

    def _open(self, prepared: PreparedRequest, timeout_s: float | None) -> tuple[OpenRequest, OutputSlot]:
        if self._death is not None:
            raise self._death
        self._enter_loop()
        request = self._outputs.add_request(prepared.request_id, prepared.prompt, prepared.choices)
        slot = self._slots[request] = OutputSlot()
        self._idle.clear()
        self._admission.add(request)
        self._statistics.begin(prepared.choices)
        try:
            for choice in prepared.for_core:
                self._client.add_request(choice)
        except BaseException:
            self._close(request)
            raise
        self._set_deadline(request, slot, prepared.choices[0].arrival_time, timeout_s)
        return request, slot

    def _set_deadline(
        self, request: OpenRequest, slot: OutputSlot, arrival_time: float, timeout_s: float | None
    ) -> None:
        limits = [limit for limit in (timeout_s, self._request_timeout_s) if limit is not None]
        if limits:
            left_s = arrival_time + min(limits) - time.time()
            error = RequestTimeoutError(f"the request was not done within {min(limits):g} s and was ended.")
            slot.deadline = asyncio.get_running_loop().call_later(left_s, self._expire, request, slot, error)

    def _expire(self, request: OpenRequest, slot: OutputSlot, error: RequestTimeoutError) -> None:
        if not request.finished:  # else its reader is late, not the engine
            slot.fail(error)

    def _close(self, request: OpenRequest) -> None:
        """Forget a request; what of it still runs is aborted."""
        slot = self._slots.pop(request, None)
        if slot is not None and slot.deadline is not None:
            slot.deadline.cancel()
        self._abort(request)
        if not self._slots:
            self._idle.set()

    def _end(self, request: OpenRequest) -> None:
        """Abort a request; its reader gets the last output."""
        slot = self._slots.get(request)
        self._abort(request)
        if slot is not None:
            slot.wake()

    def _abort(self, request: OpenRequest) -> None:
        self._admission.remove(request)
        core_ids = self._outputs.end_request(request, FinishReason.ABORT)
        if core_ids and self._death is None:
            self._statistics.end(core_ids, FinishReason.ABORT)
            with contextlib.suppress(EngineError):  # the thread that reads tells of a death
                self._client.abort_requests(core_ids)

    def _take(self, outputs: EngineCoreOutputs) -> None:
        """A step's outputs reach their requests, and wake who waits."""
        taken = self._outputs.take(outputs)
        for request in taken.moved:
            self._admission.remove(request)
            if request.has_output:
                self._slots[request].wake()
        if taken.to_abort:  # a stop string was found, which the core knows nothing of
            with contextlib.suppress(EngineError):
                self._client.abort_requests(taken.to_abort)
        self._statistics.record(outputs, taken.to_abort)

    def _fail(self, error: EngineDeadError) -> None:
        for slot in self._slots.values():
            slot.fail(error)

    def _enter_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError("an AsyncLLM serves one event loop, the one that called generate first")

    # The thread that waits for the core

    def _read(self) -> None:
        try:
            while True:
                self._call_in_loop(self._take, self._client.get_output())
        except EngineDeadError as error:
            self._death = error
            self._call_in_loop(self._fail, error)

    def _call_in_loop(self, function: Callable[[Any], None], argument: Any) -> None:
        """Nobody waits where there is no loop, or none any more."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(function, argument)


def _constraint_size(params: SamplingParams | None) -> int:
    """Bytes of what an answer is constrained by: a large grammar takes its time to be checked."""
    constraint = None if params is None else params.structured_outputs
    return 0 if constraint is None else len(msgspec.json.encode(constraint))
