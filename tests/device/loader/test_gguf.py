from __future__ import annotations

from pathlib import Path

import torch

from octavo.checkpoint.gguf_header import GGUFFile
from octavo.device.loader.gguf import PIECE_ELEMENTS, GGUFSource
from octavo.device.loader.source import Move
from tests.checkpoint.gguf_bytes import GGUFBytes, Info, pairs

HEADS, ROWS, COLUMNS = 4, 1536, 1024


def test_a_matrix_of_several_pieces_is_put_in_order_across_them(tmp_path: Path) -> None:
    assert ROWS * COLUMNS > PIECE_ELEMENTS
    wanted = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(3))
    stored = wanted.view(HEADS, 2, -1, COLUMNS).swapaxes(1, 2).contiguous()
    info = Info("q", (COLUMNS, ROWS), stored.numpy().tobytes())
    path = GGUFBytes(pairs({"general.architecture": "llama"}), [info]).write(tmp_path / "m.gguf")
    source = GGUFSource(GGUFFile.open(path), num_threads=2)
    found = torch.full((ROWS, COLUMNS), 7.0)
    source.copy([Move(source.tensors["q"], found, interleaved_heads=HEADS)])
    source.close()
    assert torch.equal(found, wanted)
