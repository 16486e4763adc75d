"""A causal language model as a GGUF file, which llama.cpp and what is built on it read."""

import json
import logging
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from transfer_cli.data.tokenizer_file import save_tokenizer
from transfer_cli.errors import CheckpointError, ConfigError, pip_install
from transfer_cli.interop.family import LANGUAGE_MODEL
from transfer_cli.interop.saving import published_tensors
from transfer_cli.interop.targets import Ours, Target, target_of
from transfer_cli.interop.vocabulary import TOKENIZER_FILE

log = logging.getLogger(__name__)

FILE_NAME = "model.gguf"

_FAMILIES = {
    "gpt2": "gpt2", "llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3",
}  # fmt: skip
"""What the file calls a family's architecture, by its `model_type`."""

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS: Mapping[tuple[tuple[str, str | None], ...], str] = {
    (("ByteLevel", None),): "gpt-2",
    (("Digits", None), ("ByteLevel", None)): "smollm",
    (("Split", rf"{_WORDS}\p{{N}}{{1,3}}{_REST}"), ("ByteLevel", None)): "llama-bpe",
    (("Split", rf"{_WORDS}\p{{N}}{_REST}"), ("ByteLevel", None)): "qwen2",
}
"""What llama.cpp calls how a text is split before its bytes are merged."""


def write_gguf(ours: Ours, folder: Path, family: str | None, name: str) -> Target:
    """Write `model.gguf` in float32, and compare it with the model when it is read again.

    Args:
        ours: A causal language model; merged.
        family: See `target_of`.
        name: What the file says that the model is called.
    """
    target = _checked_target(ours, family)
    import gguf

    architecture = _FAMILIES[target.family.model_type]
    kind = next(k for k, text in gguf.MODEL_ARCH_NAMES.items() if text == architecture)
    names = gguf.get_tensor_name_map(kind, ours.shape.depth)
    tensors = {
        there: _gguf_array(theirs, tensor, ours, architecture)
        for theirs, tensor in published_tensors(ours.tensors, target).items()
        if (there := names.get_name(theirs, (".weight", ".bias"))) is not None
    }
    path = folder / FILE_NAME
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(name)
    _write_shape(writer, ours)
    save_tokenizer(ours.tokenizer, folder / TOKENIZER_FILE)
    _write_tokenizer(writer, ours, json.loads((folder / TOKENIZER_FILE).read_text("utf-8")))
    (folder / TOKENIZER_FILE).unlink()
    for there, tensor in tensors.items():
        writer.add_tensor(there, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    again = {entry.name: entry.data for entry in gguf.GGUFReader(path).tensors}
    damaged = [
        name
        for name, tensor in tensors.items()
        if name not in again or not np.array_equal(again[name], tensor)
    ]
    if damaged or len(again) != len(tensors):
        raise CheckpointError(f"to: {FILE_NAME} was not written as it is ({damaged[:1]})")
    return target


def _checked_target(ours: Ours, family: str | None) -> Target:
    if find_spec("gguf") is None:
        raise ConfigError(f"format=gguf needs the package gguf: {pip_install('gguf')}")
    other = "format=hf writes the folder that llama.cpp's convert_hf_to_gguf.py reads"
    if ours.head != LANGUAGE_MODEL or ours.shape.direction != "causal":
        what = f"a head for {(ours.head or 'nothing').replace('_', ' ')}"
        raise ConfigError(
            f"format: gguf is for causal language models, and this has {what}, or reads both ways; "
            "take format=hf or format=onnx"
        )
    target, shape = target_of(ours, family), ours.shape
    wrong = "" if target.family.model_type in _FAMILIES else f"the family {target.family.name}"
    if shape.position_kind == "rotary" and shape.rotary.scaling is not None:
        wrong = "angles that are scaled (rope_scaling)"
    if any(shape.has_window) and shape.window < shape.positions:
        wrong = f"a window of {shape.window} tokens"
    # The file has no key for it: llama.cpp computes that of the architecture.
    is_gpt2 = target.family.model_type == "gpt2"
    if shape.activation not in (("gelu", "gelu_tanh") if is_gpt2 else ("silu",)):
        wrong = wrong or f"activation={shape.activation} in a {target.family.name}"
    if wrong:
        raise ConfigError(f"format: gguf is not written for {wrong}; {other}")
    if shape.activation == "gelu":
        log.warning("llama.cpp computes GELU by tanh, this model exactly: answers differ a little")
    return target


def _gguf_array(name: str, tensor: Tensor, ours: Ours, architecture: str) -> np.ndarray[Any, Any]:
    """Return a tensor as the file has it."""
    shape, array = ours.shape, tensor.float().numpy()
    if architecture == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
        return np.ascontiguousarray(array.T)
    if architecture == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
        # Pairs that turn together stand side by side there, half a head apart here.
        heads = shape.heads if "q_proj" in name else shape.kv_heads
        halves = array.reshape(heads, 2, shape.head_size // 2, -1).swapaxes(1, 2)
        return np.ascontiguousarray(halves.reshape(array.shape))
    return np.ascontiguousarray(array)


def _write_shape(writer: Any, ours: Ours) -> None:
    import gguf

    shape = ours.shape
    writer.add_context_length(shape.positions)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.depth)
    writer.add_feed_forward_length(shape.feedforward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_vocab_size(ours.tokenizer.size)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    if shape.norm == "layer":
        writer.add_layer_norm_eps(shape.epsilon)
        return
    writer.add_layer_norm_rms_eps(shape.epsilon)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_rope_dimension_count(shape.head_size)
    writer.add_rope_freq_base(shape.rotary.base)


def _write_tokenizer(writer: Any, ours: Ours, data: Mapping[str, Any]) -> None:
    """Write tokens, merges and what stands before a text, of a `tokenizer.json`."""
    from gguf import TokenType

    tokenizer, model = ours.tokenizer, data["model"]
    splitter = data.get("pre_tokenizer") or {}
    parts = splitter.get("pretokenizers") or [splitter]
    split = _SPLITS.get(
        tuple((str(p.get("type")), (p.get("pattern") or {}).get("Regex")) for p in parts)
    )
    if model.get("type") != "BPE" or split is None:
        raise ConfigError(
            f"format: gguf is written with byte-level BPE, split as GPT-2, SmolLM, Llama 3 or Qwen "
            f"2 split a text, and this tokenizer is another ({model.get('type')}); pretrain with "
            "tokenizer=bpe, or take format=hf"
        )
    kinds = [TokenType.NORMAL] * tokenizer.size
    for token in data["added_tokens"]:
        kinds[token["id"]] = TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED
    if tokenizer.unk not in (tokenizer.cls, tokenizer.sep):
        kinds[tokenizer.unk] = TokenType.UNKNOWN
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    first = tokenizer.sep if ours.texts == "lines" else tokenizer.begin
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(tokenizer.pieces(range(tokenizer.size)))
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(tokenizer.cls if first is None else first)
    writer.add_eos_token_id(ours.ends[0])
    if ours.chat is not None:
        writer.add_chat_template(ours.chat.source)
    writer.add_pad_token_id(tokenizer.pad)
    writer.add_add_bos_token(first is not None)
    if any(part.get("add_prefix_space") for part in parts):
        log.warning("llama.cpp puts no space before a text, as this tokenizer does: begin with one")
