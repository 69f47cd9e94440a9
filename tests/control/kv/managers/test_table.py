from __future__ import annotations

import pytest

from octavo.control.kv.block_pool import BlockPool
from octavo.control.kv.managers.table import make_group_manager
from octavo.words.errors import UnsupportedError
from octavo.words.kv_cache_spec import MambaSpec, MLAAttentionSpec
from tests.control.kv.parts import chunked, full, window


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (full(), "FullAttentionManager"),
        (MLAAttentionSpec(block_size=16, num_kv_heads=1, head_size=576, dtype="bfloat16"), "FullAttentionManager"),
        (window(8), "SlidingWindowManager"),
        (chunked(8), "ChunkedLocalAttentionManager"),
    ],
)
def test_the_kind_of_spec_chooses_the_manager(spec, name):
    assert type(make_group_manager(spec, 0, BlockPool(2), 16)).__name__ == name


def test_a_kind_without_a_manager_is_named_with_those_that_have_one():
    spec = MambaSpec(block_size=16, shapes=((4, 4),), dtypes=("float32",))
    with pytest.raises(UnsupportedError, match="no KV cache manager for MambaSpec layers.*FullAttentionSpec"):
        make_group_manager(spec, 0, BlockPool(2), 16)
