"""Small published models of every family, as the reference implementation writes them."""

import importlib
import json
import tempfile
import warnings
import zipfile
from pathlib import Path

import pytest
import tokenizers
import torch

_MODULES = tempfile.TemporaryDirectory(prefix="transformers_modules")

FAMILIES = ("bert", "distilbert", "roberta", "electra", "gpt2")
LLAMAS = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")
"""Families that share a module, and so most tests."""
ROBERTAS = ("roberta", "xlm-roberta", "mpnet")
"""Families that find padding by its token."""

TEXT = [
    "The capital of France is Paris, and the river there is the Seine.",
    "Who wrote the play about the prince of Denmark?",
    "A résumé, naïve façades; Ångström 漢字 и кириллица 😀!",
    *("word" + "s" * n for n in range(9)),
]

HARD_TEXT = [
    "Ünïcödé: façade naïve Ångström İstanbul ǅ ﬁ ß ẞ e\u0301 e\u0301\u0302",
    "emoji 😀👩‍👩‍👧‍👦🏳️‍🌈 flags 🇩🇪🇫🇷 keycap 1️⃣",
    "漢字かなカナ 한국어 ไทย العربية עברית हिन्दी",
    "antidisestablishmentarianism" * 8,
    "tabs\tand\u00a0spaces\u2003here  twice   thrice \u200b zero",
    "control \x01\x07\x1b characters \ufffd \ufeff and \x85 lines\nmore\r\nlines",
    "punctuation!?... -\u2013\u2014''\"\"``«»#@$%^&*()[]{}<>|\\/~ 3.14 1,000 don't I'll we've",
    "",
    " ",
    " leading and trailing ",
    "MiXeD CaSe UPPER lower",
]


def reference():
    """Return the reference implementation, or skip the test where it is not installed.

    Code that comes with a model is copied into a folder that goes when the tests end.
    """
    lib = pytest.importorskip("transformers", reason="the reference implementation is missing")
    dynamic = importlib.import_module("transformers.dynamic_module_utils")
    dynamic.HF_MODULES_CACHE = _MODULES.name
    return lib


def wordpiece(folder: Path, *, lowercase: bool = True) -> int:
    """Write BERT's kind of tokenizer; return the size of its vocabulary."""
    backend = tokenizers.BertWordPieceTokenizer(lowercase=lowercase)
    backend.train_from_iterator(TEXT * 3, vocab_size=200, show_progress=False)
    vocabulary = backend.get_vocab()
    lines = sorted(vocabulary, key=vocabulary.__getitem__)
    (folder / "vocab.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    options = {"do_lower_case": lowercase, "tokenizer_class": "BertTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    return len(lines)


def byte_pairs(folder: Path, specials: list[str], tokenizer_class: str) -> int:
    """Write GPT-2's kind of tokenizer; return the size of its vocabulary."""
    backend = tokenizers.ByteLevelBPETokenizer()
    backend.train_from_iterator(
        TEXT * 3, vocab_size=330, special_tokens=specials, show_progress=False
    )
    backend.save_model(str(folder))
    options = {"tokenizer_class": tokenizer_class}
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    return backend.get_vocab_size()


def _one_file(folder: Path) -> None:
    """Put the tokenizer into one file, as families do that have no files of their own."""
    backend = tokenizers.ByteLevelBPETokenizer(
        str(folder / "vocab.json"), str(folder / "merges.txt")
    )
    backend.add_special_tokens(["<|endoftext|>", "<|im_start|>"])
    backend.save(str(folder / "tokenizer.json"))
    for name in ("vocab.json", "merges.txt"):
        (folder / name).unlink()
    options = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(options))


def word_ends(folder: Path) -> int:
    """Write the first GPT's kind of tokenizer, whose pieces end words; return its size."""
    backend = tokenizers.CharBPETokenizer(lowercase=True, bert_normalizer=True)
    backend.train_from_iterator(TEXT * 3, vocab_size=200, show_progress=False)
    backend.save_model(str(folder))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "OpenAIGPTTokenizer"}')
    return backend.get_vocab_size()


def sentence_pieces(folder: Path) -> int:
    """Write Llama 2's kind of tokenizer, without a padding token; return its size."""
    pieces = [chr(0x2581), *"abcdefghijklmnopqrstuvwxyzTW.,?", chr(0x2581) + "t", "he",
              chr(0x2581) + "the"]  # fmt: skip
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    merges = [(chr(0x2581), "t"), ("h", "e"), (chr(0x2581) + "t", "he")]
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            {name: number for number, name in enumerate(names)}, merges,
            unk_token="<unk>", fuse_unk=True, byte_fallback=True,  # noqa: S106 - no password
        )
    )  # fmt: skip
    backend.normalizer = tokenizers.normalizers.Sequence(
        [
            tokenizers.normalizers.Prepend(chr(0x2581)),
            tokenizers.normalizers.Replace(" ", chr(0x2581)),
        ]
    )
    backend.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace(chr(0x2581), " "), tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Fuse(), tokenizers.decoders.Strip(" ", 1, 0),
        ]
    )  # fmt: skip
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.save(str(folder / "tokenizer.json"))
    options = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>",
               "eos_token": "</s>", "unk_token": "<unk>"}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    return len(names)


def unigram_backend(names: list[str]) -> tokenizers.Tokenizer:
    """Return a tokenizer of the likeliest pieces, which begins with these special tokens."""
    backend = tokenizers.Tokenizer(tokenizers.models.Unigram())
    backend.normalizer = tokenizers.normalizers.NFKC()
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [tokenizers.pre_tokenizers.WhitespaceSplit(), tokenizers.pre_tokenizers.Metaspace()]
    )
    backend.decoder = tokenizers.decoders.Metaspace()
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=120, special_tokens=names, unk_token="<unk>", show_progress=False,  # noqa: S106
    )  # fmt: skip
    backend.train_from_iterator(TEXT * 3, trainer)
    return backend


def unigrams(folder: Path) -> int:
    """Write XLM-R's kind of tokenizer; return its size."""
    backend = unigram_backend(["<s>", "<pad>", "</s>", "<unk>"])
    backend.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True)])
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>",
        special_tokens=[(name, backend.token_to_id(name)) for name in ("<s>", "</s>")],
    )  # fmt: skip
    backend.save(str(folder / "tokenizer.json"))
    options = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
        "cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>",
        "mask_token": "<mask>",
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    return backend.get_vocab_size()


COMMON = {
    "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 24,
    "max_position_embeddings": 42,
}  # fmt: skip
SIZES = {
    "distilbert": {"dim": 16, "n_layers": 3, "n_heads": 4, "hidden_dim": 24,
                   "max_position_embeddings": 42},
    "gpt2": {"n_embd": 16, "n_layer": 3, "n_head": 4, "n_positions": 40},
    "openai-gpt": {"n_embd": 16, "n_layer": 3, "n_head": 4, "n_positions": 40},
}  # fmt: skip
"""Of families whose configs have other names."""

TEXT_ENDS = {"bos_token_id": 0, "eos_token_id": 0}
TODAYS = {**TEXT_ENDS, "num_key_value_heads": 2, "head_dim": 4, "pad_token_id": 0}
ROBERTA = {"layer_norm_eps": 1e-5, "type_vocab_size": 1}
CONFIGS = {
    "bert": ("Bert", {}), "roberta": ("Roberta", ROBERTA), "xlm-roberta": ("XLMRoberta", ROBERTA),
    "albert": ("Albert", {"embedding_size": 8}), "electra": ("Electra", {"embedding_size": 8}),
    "mpnet": ("MPNet", {}), "distilbert": ("DistilBert", {}), "gpt2": ("GPT2", TEXT_ENDS),
    "openai-gpt": ("OpenAIGPT", {}),
    "gpt_neox": ("GPTNeoX", {**TEXT_ENDS, "num_attention_heads": 2}),
    "modernbert": ("ModernBert", {
        "local_attention": 8, "global_attn_every_n_layers": 2, "pad_token_id": 0,
        "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3,
    }),
    "llama": ("Llama", TODAYS), "qwen2": ("Qwen2", TODAYS), "qwen3": ("Qwen3", TODAYS),
    "mistral": ("Mistral", {**TODAYS, "sliding_window": 5}),
    "gemma3_text": ("Gemma3Text", {**TODAYS, "sliding_window": 5, "sliding_window_pattern": 2}),
}  # fmt: skip
"""By `model_type`: the name of the config's class, and what it is given beyond sizes."""


def config_of(family: str, vocabulary: int, **options):
    """Return the config of a small model."""
    name, fields = CONFIGS[family]
    given = {"vocab_size": vocabulary, **SIZES.get(family, COMMON), **fields, **options}
    if family == "gemma3_text":
        given.setdefault("query_pre_attn_scalar", given["head_dim"])
    return getattr(reference(), f"{name}Config")(**given)


def publish(folder: Path, family: str, kind: str = "", **options):
    """Write a small model of random weights with its tokenizer; return the model.

    Args:
        folder: Where to; made if it is not there.
        family: Its `model_type`.
        kind: "" for the backbone alone, else "MaskedLM", "LMHeadModel", "CausalLM",
            "SequenceClassification" or "PreTraining".
        options: Of its config.
    """
    lib = reference()
    folder.mkdir(parents=True, exist_ok=True)
    if family in ROBERTAS[1:]:
        vocabulary = unigrams(folder)
    elif family in (*LLAMAS, "gpt_neox"):
        vocabulary = byte_pairs(folder, ["<|endoftext|>", "<|im_start|>"], "GPT2Tokenizer")
        _one_file(folder)
    elif family == "openai-gpt":
        vocabulary = word_ends(folder)
    elif family == "gpt2":
        vocabulary = byte_pairs(folder, ["<|endoftext|>"], "GPT2Tokenizer")
    elif family == "roberta":
        names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        vocabulary = byte_pairs(folder, names, "RobertaTokenizer")
    else:
        vocabulary = wordpiece(folder)
    config = config_of(family, vocabulary, **options)
    stem = type(config).__name__.removesuffix("Config")
    if kind and stem == "Gemma3Text":
        stem = "Gemma3"
    name = {"": "Model", "LMHeadModel": "LMHeadModel"}.get(kind, f"For{kind}")
    torch.manual_seed(len(family))
    with warnings.catch_warnings(action="ignore"):
        model = getattr(lib, f"{stem}{name}")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # At birth biases are 0 and norms 1: a mistake in them would not show.
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    return model


def deflate(path):
    """Pack the members of a file of torch's, which stores them as they are."""
    with zipfile.ZipFile(path) as whole:
        members = {name: whole.read(name) for name in whole.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members.items():
            packed.writestr(name, content)
