"""What the folder of a sentence-transformers model says of its vectors."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transfer_cli.errors import CheckpointError, list_names, raised_as
from transfer_cli.interop.files import dump_json
from transfer_cli.model.pooling import Pooling
from transfer_cli.safe_files import STRICT_JSON, UnreadableError, read_json, read_text

MODULES, OPTIONS, POOLING = "modules.json", "sentence_bert_config.json", "1_Pooling"
PROMPTS = "config_sentence_transformers.json"

_POOLINGS: Mapping[str, Pooling] = {
    "pooling_mode_cls_token": "cls_first", "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max", "pooling_mode_lasttoken": "cls_last",
    "cls": "cls_first", "mean": "mean", "max": "max", "lasttoken": "cls_last",
}  # fmt: skip
"""As the older files say it by a key that is true, and the newer ones by a value."""


@dataclass(frozen=True)
class SentenceModules:
    """How tokens become a vector.

    Args:
        normalize: Whether vectors are divided by their length.
        length: How many tokens of a text are read; None: as the tokenizer says.
        lowercase: Whether texts are lower-cased before the tokenizer has them.
        prompt: What stands before each text.
    """

    pooling: Pooling
    normalize: bool
    length: int | None
    lowercase: bool = False
    prompt: str = ""


def sentence_modules(folder: Path) -> SentenceModules | None:
    """Return what a folder says; None where it has no such files.

    Raises:
        CheckpointError: There are modules, or a pooling, that are not computed here.
    """
    if not (folder / MODULES).is_file():
        return None
    with raised_as(CheckpointError, f"run: {folder / MODULES}: ", UnreadableError, OSError):
        try:
            modules = STRICT_JSON.decode(read_text(folder / MODULES))
            kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise UnreadableError("expected a list of modules, each with its type") from error
    others = {*kinds} - {"Transformer", "Pooling", "Normalize"}
    if others:
        _refuse(folder / MODULES, list_names(sorted(others)))
    options = _read_object(folder / OPTIONS)
    length, prompt = options.get("max_seq_length"), _read_prompt(folder / PROMPTS)
    return SentenceModules(
        _read_pooling(folder / POOLING / "config.json", prompt),
        "Normalize" in kinds,
        length if type(length) is int and length > 0 else None,
        options.get("do_lower_case") is True,
        prompt,
    )


def write_modules(folder: Path, modules: SentenceModules, width: int) -> None:
    """Write what makes a model's folder one of sentence-transformers."""
    mode = next((key for key, value in _POOLINGS.items() if value == modules.pooling), None)
    if mode is None:
        raise CheckpointError(
            f"run: sentence-transformers does not pool as pooling={modules.pooling}; head=false "
            "writes the model alone"
        )
    parts = ["Transformer", "Pooling", *(["Normalize"] if modules.normalize else [])]
    paths = ["", POOLING, "2_Normalize"]
    entries = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{part}"}
        for n, (part, path) in enumerate(zip(parts, paths, strict=False))
    ]
    for path in paths[1 : len(parts)]:
        (folder / path).mkdir()
    modes = {key: key == mode for key in _POOLINGS if "_mode_" in key}
    dump_json(folder / POOLING / "config.json", {"word_embedding_dimension": width, **modes})
    options = {"max_seq_length": modules.length, "do_lower_case": modules.lowercase}
    dump_json(folder / OPTIONS, options)
    if modules.prompt:
        named = {"prompts": {"text": modules.prompt}, "default_prompt_name": "text"}
        dump_json(folder / PROMPTS, named)
    dump_json(folder / MODULES, entries)


def _read_prompt(file: Path) -> str:
    options = _read_object(file)
    prompts = options.get("prompts")
    known = prompts if isinstance(prompts, Mapping) else {}
    prompt = known.get(str(options.get("default_prompt_name")))
    return prompt if isinstance(prompt, str) else ""


def _read_pooling(file: Path, prompt: str) -> Pooling:
    options = _read_object(file)
    if prompt and options.get("include_prompt") is False:
        _refuse(file, "pooling without the prompt (include_prompt)")
    modes = options.get("pooling_mode")
    if modes is None:
        modes = [key for key, value in options.items() if value is True and "_mode_" in key]
    modes = [str(mode) for mode in (modes if isinstance(modes, list) else [modes])]
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        _refuse(file, f"pooling {list_names(modes) or '(none)'}")
    return _POOLINGS[modes[0]]


def _read_object(file: Path) -> Mapping[str, Any]:
    if not file.is_file():
        return {}
    with raised_as(CheckpointError, f"run: {file}: ", UnreadableError, OSError):
        return read_json(file)


def _refuse(file: Path, what: str) -> None:
    raise CheckpointError(
        f"run: {file}: {what} is not computed here; type pooling=mean for the plain mean of tokens"
    )
