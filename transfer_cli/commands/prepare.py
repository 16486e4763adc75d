"""`transfer prepare`: fetch, make the tokenizer, encode; trains nothing."""

from omegaconf import DictConfig

from transfer_cli.assembly import datasets
from transfer_cli.assembly.init_from import open_start, own_tokenizer
from transfer_cli.config.build import build
from transfer_cli.config.command_line import CommandLine
from transfer_cli.data.corpus import cached_tokenizer, encode_text
from transfer_cli.data.tasks import TaskData
from transfer_cli.data.text import TextData
from transfer_cli.data.tokenizer import TokenizerRecipe


def prepare(config: DictConfig) -> None:
    """Do everything that a run on this data would do before its first step, and say what came."""
    found: TextData | TaskData = build(config.data, "data", TextData | TaskData)
    if isinstance(found, TaskData):
        data = found.load(datasets.data_folder(config.data_dir), config.seed)
        labels = f", {len(data.labels)} labels" if data.labels else ""
        for name, examples in data.splits.items():
            print(f"{name:10s} {len(examples):,} examples{labels}")
        return
    source: TextData = datasets.source(config, TextData)
    raw = source.splits(datasets.data_folder(config.data_dir), config.seed)
    cache = datasets.cache_folder(config.data_dir)
    start = open_start(
        config.init_from, config.get("base"), CommandLine.of_this_command().overrides
    )
    if start is not None:
        tokenizer = own_tokenizer(config.tokenizer, start)
    else:
        recipe = build(config.tokenizer, "tokenizer", TokenizerRecipe)
        tokenizer = cached_tokenizer(recipe, raw["train"], cache)
    print(f"{'tokenizer':10s} {tokenizer.size:,} tokens")
    for name, split in raw.items():
        text = encode_text(split, tokenizer, cache)
        print(
            f"{name:10s} {text.num_lines:,} lines, {text.num_words:,} words, "
            f"{len(text.tokens) - 1:,} tokens, {text.num_unknown:,} unknown, {text.path}"
        )
