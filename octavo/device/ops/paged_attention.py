"""paged_attention: causal attention of a step's rows over a paged cache; prefill, chunk and decode in one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.device.ops.hadamard import hadamard, hadamard_size
from octavo.device.ops.qkv_rope_write import dequantize

ROWS_PER_TILE = 256
"""Longest run of one request's rows in a tile: bounds the mask, and skips most keys after the diagonal."""

KEYS_PER_TILE = 1024
"""Most gathered keys in a tile of several requests: what is gathered is then still in the cache when it is used."""


@dataclass(frozen=True, kw_only=True)
class AttentionOptions:
    """What is fixed for a layer. ``sliding_window`` counts the token itself; at most one of window and chunk is set.

    A token at position p attends to positions max(0, p - sliding_window + 1) .. p, or within its chunk to
    p // chunk_size * chunk_size .. p. ``softcap`` c maps a scaled score s to c * tanh(s / c).
    """

    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float
    sliding_window: int | None = None
    chunk_size: int | None = None
    softcap: float | None = None


@dataclass(frozen=True, slots=True)
class Tile:
    """G requests with n rows each, and the L keys gathered for each of them.

    rows:      [G * n] int64, of the step.
    blocks:    [G * L / block_size] int64, padded with the null block.
    invisible: indices into the G * L gathered keys that no row may see: padding, and what a window left behind.
    mask:      [G, 1, n, L] float32, 0 where a row attends to a key and -inf elsewhere.
    """

    num_requests: int
    rows: Tensor
    blocks: Tensor
    invisible: Tensor
    mask: Tensor


class WorkList:
    """A step's attention work, made once and shared by all layers of a KV group; owns no cache data.

    query_start_loc: [R + 1] and seq_lens: [R], on the host; request r's rows are its last tokens, so its row i is at
    position seq_lens[r] - num_rows + i. block_table: [R, max_blocks], on the device. Rows beyond the last request's
    are padding. Requests may have no rows; R may be 0.
    """

    def __init__(self, query_start_loc: np.ndarray, seq_lens: np.ndarray, block_table: Tensor, block_size: int) -> None:
        self.query_start_loc = torch.from_numpy(query_start_loc.astype(np.int32))
        self.seq_lens = torch.from_numpy(seq_lens.astype(np.int32))
        self.block_table = block_table
        self._block_size = block_size
        self._tiles: dict[tuple[int | None, int | None], list[Tile]] = {}

    def tiles(self, options: AttentionOptions) -> list[Tile]:
        """Return the tiles for this visibility rule; made at its first use in the step."""
        rule = (options.sliding_window, options.chunk_size)
        if rule not in self._tiles:
            self._tiles[rule] = [
                self._tile(group, options)
                for group in _groups(self._pieces(options), KEYS_PER_TILE // self._block_size)
            ]
        return self._tiles[rule]

    def _pieces(self, options: AttentionOptions) -> list[_Piece]:
        pieces = []
        starts = self.query_start_loc.tolist()
        for request, seq_len in enumerate(self.seq_lens.tolist()):
            context = seq_len - (starts[request + 1] - starts[request])
            for row in range(starts[request], starts[request + 1], ROWS_PER_TILE):
                num_rows = min(ROWS_PER_TILE, starts[request + 1] - row)
                position = context + row - starts[request]
                first_block = int(first_visible(np.array(position), options)) // self._block_size
                num_blocks = -(-(position + num_rows) // self._block_size) - first_block
                pieces.append(_Piece(num_rows, num_blocks, request, row, position, first_block))
        return pieces

    def _tile(self, group: list[_Piece], options: AttentionOptions) -> Tile:
        num_rows, num_blocks = group[0].num_rows, group[-1].num_blocks
        column = {name: np.array([[getattr(piece, name)] for piece in group]) for name in _Piece.__slots__}
        rows = column["row"] + np.arange(num_rows)
        positions = column["position"] + np.arange(num_rows)
        keys = column["first_block"] * self._block_size + np.arange(num_blocks * self._block_size)
        first = first_visible(positions, options)
        visible = (keys[:, None] <= positions[..., None]) & (keys[:, None] >= first[..., None])
        ordinals = np.arange(num_blocks)
        block_columns = np.where(ordinals < column["num_blocks"], column["first_block"] + ordinals, 0)
        blocks = self.block_table[torch.from_numpy(column["request"]), torch.from_numpy(block_columns)]
        blocks = blocks.masked_fill(torch.from_numpy(ordinals >= column["num_blocks"]), 0)
        device = self.block_table.device
        return Tile(
            num_requests=len(group),
            rows=torch.from_numpy(rows.reshape(-1)).to(device),
            blocks=blocks.reshape(-1).long(),
            invisible=torch.from_numpy(np.flatnonzero(~visible.any(axis=1))).to(device),
            mask=torch.from_numpy(np.where(visible, np.float32(0), np.float32(-np.inf))[:, None]).to(device),
        )


@dataclass(frozen=True, slots=True, order=True)
class _Piece:
    """Up to ROWS_PER_TILE consecutive rows of one request, and the blocks that hold the keys they may see."""

    num_rows: int
    num_blocks: int
    request: int
    row: int
    position: int
    first_block: int


def _groups(pieces: list[_Piece], max_blocks: int) -> Iterator[list[_Piece]]:
    """Put together pieces of as many rows and about as many keys, so that little is padded."""
    group: list[_Piece] = []
    for piece in sorted(pieces):
        fits = group and piece.num_rows == group[0].num_rows and piece.num_blocks <= 1.25 * group[0].num_blocks + 2
        if group and not (fits and (len(group) + 1) * piece.num_blocks <= max_blocks):
            yield group
            group = []
        group.append(piece)
    if group:
        yield group


def first_visible(positions: np.ndarray, options: AttentionOptions) -> np.ndarray:
    """The lowest position that a token at each of ``positions`` attends to."""
    if options.sliding_window is not None:
        return np.maximum(positions - options.sliding_window + 1, 0)
    if options.chunk_size is not None:
        return positions // options.chunk_size * options.chunk_size
    return np.zeros_like(positions)


def paged_attention(
    query: Tensor, kv_cache: Tensor, work: WorkList, options: AttentionOptions, sinks: Tensor | None = None
) -> Tensor:
    """Attend from each row to its request's cached tokens up to itself, this step's included.

    query:    [T, num_heads, head_size], not scaled; query head h reads KV head h // (num_heads / num_kv_heads).
    kv_cache: what this backend's ``qkv_rope_write`` has stored.
    sinks:    [num_heads] or None; a logit per head that takes part in the softmax and carries no value.
    Returns [T, num_heads, head_size] in query's dtype; rows of no request are zero. Everything between is float32,
    rounded once. Cache slots outside what a request's rows may see are selected out: they may hold NaN. A request's
    result depends on its batch-mates by float rounding only.
    """
    out = torch.zeros_like(query)
    for tile in work.tiles(options):
        rows = query.index_select(0, tile.rows).float()
        if kv_cache.dtype == torch.int8:  # keys are transformed, and twice is hadamard_size times
            rows = hadamard(rows / hadamard_size(rows.shape[-1]))
        rows = rows.view(tile.num_requests, -1, *query.shape[1:]).transpose(1, 2)
        keys, values = _gather(kv_cache[0], tile), _gather(kv_cache[1], tile)
        attended = _attend(rows, keys, values, tile.mask, options, sinks)
        out.index_copy_(0, tile.rows, attended.transpose(1, 2).reshape(-1, *query.shape[1:]).to(query.dtype))
    return out


def _gather(cache: Tensor, tile: Tile) -> Tensor:
    """[num_blocks, block_size, num_kv_heads, head_size] -> [G, num_kv_heads, L, head_size] float32, a strided view."""
    gathered = cache.index_select(0, tile.blocks).flatten(0, 1)
    gathered = dequantize(gathered) if gathered.dtype == torch.int8 else gathered.float()
    gathered.index_fill_(0, tile.invisible, 0.0)
    return gathered.unflatten(0, (tile.num_requests, -1)).transpose(1, 2)


def _attend(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, options: AttentionOptions, sinks: Tensor | None
) -> Tensor:
    """query: [G, num_heads, n, head_size] -> the same, attended; all float32."""
    if options.softcap is None and sinks is None:
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=options.scale, enable_gqa=True)
    grouped = query.unflatten(1, (options.num_kv_heads, -1))
    scores = grouped @ keys.unsqueeze(2).transpose(-1, -2) * options.scale
    if options.softcap is not None:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    scores = scores + mask.unsqueeze(2)
    if sinks is not None:
        column = sinks.float().view(1, options.num_kv_heads, -1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, column), dim=-1)
    weights = scores.softmax(dim=-1)[..., : keys.shape[2]]
    return (weights @ values.unsqueeze(2)).flatten(1, 2)
