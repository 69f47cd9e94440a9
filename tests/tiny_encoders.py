"""Random tiny encoders with a WordPiece vocabulary, as Hugging Face folders, and what Transformers makes of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, PreTrainedModel

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,?"
WORDS = ("the", "cat", "dog", "sits", "runs", "##ing")
MAX_TOKENS = 48
_ROBERTA = {"pad_token_id": 1, "type_vocab_size": 1, "num_separators": 2}
_OWN: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "distilbert": {"dim": 48, "n_layers": 3, "n_heads": 6, "hidden_dim": 96},
}
FAMILIES = tuple(_OWN)


def make_encoder(
    folder: Path,
    *,
    family: str = "bert",
    num_labels: int = 0,
    pooling: str = "mean",
    normalize: bool = True,
    longest: int | None = None,
) -> Path:
    """An encoder with a classifier of ``num_labels``, or with the pooling files of sentence-transformers."""
    torch.manual_seed(11)
    own = _OWN[family]
    shape = AutoConfig.for_model(
        family,
        vocab_size=_write_tokenizer(folder, num_separators=own.get("num_separators", 1)),
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=6,
        intermediate_size=96,
        max_position_embeddings=MAX_TOKENS + own.get("pad_token_id", -1) + 1,
        num_labels=max(num_labels, 1),
        initializer_range=0.3,
        is_matryoshka=not num_labels,
        **{key: value for key, value in own.items() if key != "num_separators"},
    )
    model = (AutoModelForSequenceClassification if num_labels else AutoModel).from_config(shape)
    for name, weight in model.named_parameters():
        is_norm = "LayerNorm" in name or "layer_norm" in name
        if is_norm or name.endswith("bias"):
            torch.nn.init.normal_(weight, mean=float(is_norm and name.endswith("weight")), std=0.2)
    model.eval().save_pretrained(folder)
    if not num_labels:
        write_pooling(folder, pooling, normalize, longest)
    return folder


def hidden_states(folder: Path, token_ids: Sequence[int]) -> Tensor:
    """The last hidden states of one text, [T, hidden_size]."""
    with torch.no_grad():
        return _loaded(AutoModel, folder)(torch.tensor([list(token_ids)])).last_hidden_state[0]


def label_logits(folder: Path, token_ids: Sequence[int], second_text_at: int) -> Tensor:
    """The classifier's logits of a pair of texts."""
    types = [int(place >= second_text_at) for place in range(len(token_ids))]
    model = _loaded(AutoModelForSequenceClassification, folder)
    told = {"token_type_ids": torch.tensor([types])} if getattr(model.config, "type_vocab_size", 0) > 1 else {}
    with torch.no_grad():
        return model(torch.tensor([list(token_ids)]), **told).logits[0]


def _loaded(kind: type[AutoModel] | type[AutoModelForSequenceClassification], folder: Path) -> PreTrainedModel:
    return kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def _write_tokenizer(folder: Path, *, num_separators: int) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    pieces = [*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS), *WORDS]
    vocabulary = {piece: place for place, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair=f"[CLS] $A {'[SEP] ' * num_separators}$B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    return len(vocabulary)


def write_pooling(folder: Path, pooling: str, normalize: bool, longest: int | None = None) -> None:
    """The files of sentence-transformers that say how a folder's model pools."""
    kinds = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token", "last": "pooling_mode_lasttoken"}
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), *([("2_Normalize", "Normalize")] if normalize else [])]
    written = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{name}"}
        for place, (path, name) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(written))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({key: kind == pooling for kind, key in kinds.items()}))
    if longest is not None:
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": longest}))
