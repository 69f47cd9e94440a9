"""/v1/embeddings, /pooling, /classify, /score and /rerank: texts as numbers."""

from __future__ import annotations

import asyncio
import base64
import math
import struct
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.frontend.async_llm import AsyncLLM
from octavo.frontend.pooling import Scoring, text_pairs
from octavo.server.api_error import ApiError, failed_choice
from octavo.server.context import ServerContext, request_id_of
from octavo.server.openai.generation import check_timeout
from octavo.server.responses import json_response, unless_gone
from octavo.words.inputs import PromptType
from octavo.words.outputs import PoolingRequestOutput
from octavo.words.pooling_params import PoolingParams


class PooledRequest(msgspec.Struct, kw_only=True):
    """Fields of all these requests."""

    model: str | None = None
    user: str | None = None
    truncate_prompt_tokens: int | None = None
    request_timeout: float | None = None


class EmbeddingRequest(PooledRequest, kw_only=True):
    """``input``: a text, token ids, or a list of either; ``base64`` is of float32, little end first."""

    input: Any
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None


class PoolingRequest(EmbeddingRequest, kw_only=True):
    """``task``: embed, classify or token_embed."""

    task: Literal["embed", "classify", "token_embed"] = "embed"


class ClassifyRequest(PooledRequest, kw_only=True):
    """Texts to be labelled."""

    input: Any


class ScoreRequest(PooledRequest, kw_only=True):
    """One first text, or as many as second ones."""

    text_1: str | list[str]
    text_2: str | list[str]


class RerankRequest(PooledRequest, kw_only=True):
    """Documents to be put in the order of how well they answer a query; ``top_n`` of them come back."""

    query: str
    documents: list[str]
    top_n: int | None = None
    return_documents: bool = True


class PoolingUsage(msgspec.Struct, kw_only=True):
    """Token counts."""

    prompt_tokens: int
    total_tokens: int


class PooledItem(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What one input came to, under the name that its route gives it."""

    index: int
    object: str
    embedding: list[float] | str | msgspec.UnsetType = msgspec.UNSET
    data: list[float] | str | msgspec.UnsetType = msgspec.UNSET
    probs: list[float] | msgspec.UnsetType = msgspec.UNSET
    label: str | msgspec.UnsetType = msgspec.UNSET
    num_classes: int | msgspec.UnsetType = msgspec.UNSET
    score: float | msgspec.UnsetType = msgspec.UNSET


class PooledList(msgspec.Struct, kw_only=True):
    """One item per input, in order."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: list[PooledItem]
    usage: PoolingUsage


class RankedDocument(msgspec.Struct, kw_only=True):
    """A document, by its place among those of the request."""

    index: int
    relevance_score: float
    document: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class RerankAnswer(msgspec.Struct, kw_only=True):
    """The best document first."""

    id: str
    model: str
    results: list[RankedDocument]
    usage: PoolingUsage


class Pooling:
    """The routes."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def embeddings(self, request: Request) -> Response:
        """A vector for each input."""
        body = await self._context.bodies.read(request, EmbeddingRequest)
        params = PoolingParams(dimensions=body.dimensions, truncate_prompt_tokens=body.truncate_prompt_tokens)
        outputs = await self._pool(request, body, inputs_of(body.input), params)
        items = [
            PooledItem(index=index, object="embedding", embedding=written(output, body.encoding_format))
            for index, output in enumerate(outputs)
        ]
        return self._listed(request, body, items, outputs)

    async def pooling(self, request: Request) -> Response:
        """What the model pools each input to, for any task."""
        body = await self._context.bodies.read(request, PoolingRequest)
        params = PoolingParams(
            task=body.task, dimensions=body.dimensions, truncate_prompt_tokens=body.truncate_prompt_tokens
        )
        outputs = await self._pool(request, body, inputs_of(body.input), params)
        items = [
            PooledItem(index=index, object="pooling", data=written(output, body.encoding_format))
            for index, output in enumerate(outputs)
        ]
        return self._listed(request, body, items, outputs)

    async def classify(self, request: Request) -> Response:
        """A probability per label for each input."""
        body = await self._context.bodies.read(request, ClassifyRequest)
        params = PoolingParams(task="classify", truncate_prompt_tokens=body.truncate_prompt_tokens)
        outputs = await self._pool(request, body, inputs_of(body.input), params)
        items = [_labelled(index, output.outputs.data) for index, output in enumerate(outputs)]
        return self._listed(request, body, items, outputs)

    async def score(self, request: Request) -> Response:
        """How well the texts of each pair go together."""
        body = await self._context.bodies.read(request, ScoreRequest)
        outputs = await self._scores(request, body, text_pairs(body.text_1, body.text_2))
        items = [
            PooledItem(index=index, object="score", score=output.outputs.data[0])
            for index, output in enumerate(outputs)
        ]
        return self._listed(request, body, items, outputs)

    async def rerank(self, request: Request) -> Response:
        """The documents in the order of how well they answer the query."""
        body = await self._context.bodies.read(request, RerankRequest)
        if body.top_n is not None and body.top_n < 1:
            raise ApiError(400, "top_n must be at least 1.", param="top_n")
        if not body.documents:
            raise ApiError(400, "documents must be a non-empty list of texts.", param="documents")
        outputs = await self._scores(request, body, [(body.query, document) for document in body.documents])
        ranked = sorted(enumerate(outputs), key=lambda found: -found[1].outputs.data[0])[: body.top_n]
        results = [
            RankedDocument(
                index=index,
                relevance_score=output.outputs.data[0],
                document={"text": body.documents[index]} if body.return_documents else msgspec.UNSET,
            )
            for index, output in ranked
        ]
        model = self._context.check_model(body.model)
        answer_id = f"rerank-{request_id_of(request)}"
        return json_response(RerankAnswer(id=answer_id, model=model, results=results, usage=usage_of(outputs)))

    async def _scores(
        self, request: Request, body: PooledRequest, pairs: Sequence[tuple[str, str]]
    ) -> list[PoolingRequestOutput]:
        """By a cross-encoder, or by the cosine of vectors where the model has no classifier."""
        num_labels = self._context.llm.info.facts.num_labels
        scoring = Scoring(pairs, num_labels=num_labels, truncate=body.truncate_prompt_tokens)
        return scoring.scores(await self._pool(request, body, scoring.prompts, scoring.params))

    async def _pool(
        self,
        request: Request,
        body: PooledRequest,
        prompts: Sequence[PromptType | tuple[str, str]],
        params: PoolingParams,
    ) -> list[PoolingRequestOutput]:
        """One output per prompt, in order. Raises ApiError where one failed or is no number."""
        self._context.check_model(body.model)
        most = self._context.config.max_choices
        if len(prompts) > most:
            raise ApiError(400, f"a request may have {most} inputs (option max_choices).", param="input")
        check_timeout(body.request_timeout)
        name = f"pool-{request_id_of(request)}"
        outputs = await unless_gone(request, _pool_all(self._context.llm, name, prompts, params, body.request_timeout))
        for output in outputs:
            if output.error is not None:
                raise failed_choice(output.error)
            if not all(map(math.isfinite, output.outputs.data)):
                raise ApiError(500, "the model's answer holds values that are no numbers.")
        return outputs

    def _listed(
        self, request: Request, body: PooledRequest, items: list[PooledItem], outputs: Sequence[PoolingRequestOutput]
    ) -> Response:
        context = self._context
        answer = PooledList(
            id=f"pool-{request_id_of(request)}",
            created=context.now(),
            model=context.check_model(body.model),
            data=items,
            usage=usage_of(outputs),
        )
        return json_response(answer)


async def _pool_all(
    llm: AsyncLLM,
    name: str,
    prompts: Sequence[PromptType | tuple[str, str]],
    params: PoolingParams,
    timeout_s: float | None,
) -> list[PoolingRequestOutput]:
    """All at once: they join the queue together, and share the engine's steps. The first error ends the others."""
    prepared = [await llm.prepare_pooling(prompt, params, f"{name}-{i}") for i, prompt in enumerate(prompts)]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(llm.pool(each, timeout_s=timeout_s)) for each in prepared]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def inputs_of(given: Any) -> list[PromptType]:
    """The prompts that ``input`` holds: texts, or lists of token ids. Raises ApiError for anything else."""
    is_one = isinstance(given, str) or (isinstance(given, list) and bool(given) and _is_ids(given))
    listed = [given] if is_one else given
    if not isinstance(listed, list) or not listed:
        raise ApiError(400, "input must be a text, token ids, or a non-empty list of either.", param="input")
    for index, each in enumerate(listed):
        if not each or not (isinstance(each, str) or (isinstance(each, list) and _is_ids(each))):
            raise ApiError(400, f"input[{index}] must be a non-empty text or list of token ids.", param="input")
    return [each if isinstance(each, str) else {"prompt_token_ids": each} for each in listed]


def _is_ids(given: list[Any]) -> bool:
    return all(isinstance(each, int) and not isinstance(each, bool) for each in given)


def written(output: PoolingRequestOutput, encoding_format: str) -> list[float] | str:
    """A vector as numbers, or as the base64 text of its float32 bytes."""
    numbers = output.outputs.data
    if encoding_format == "float":
        return numbers
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


def usage_of(outputs: Sequence[PoolingRequestOutput]) -> PoolingUsage:
    """The tokens of all inputs."""
    num_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    return PoolingUsage(prompt_tokens=num_tokens, total_tokens=num_tokens)


def _labelled(index: int, probabilities: list[float]) -> PooledItem:
    best = max(range(len(probabilities)), key=probabilities.__getitem__)
    return PooledItem(
        index=index, object="classify", probs=probabilities, label=f"LABEL_{best}", num_classes=len(probabilities)
    )
