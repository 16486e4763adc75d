"""`transfer prepare`: fetch, make the tokenizer, encode; trains nothing."""

from transfer_cli.assembly.datasets import DataPlace, source_of, whole_texts
from transfer_cli.assembly.init_from import choose_tokenizer, open_start
from transfer_cli.config.command_line import CommandLine
from transfer_cli.config.schema import PrepareConfig
from transfer_cli.data.encoded_text import EncodedText
from transfer_cli.data.labelled import TaskData
from transfer_cli.terminal import print_line


def prepare(config: PrepareConfig) -> None:
    """Do everything that a run on this data would do before its first step, and say what came."""
    found = source_of(config.data)
    place = DataPlace(config.data_dir, config.seed)
    if isinstance(found, TaskData):
        data = found.load(place.folder, place.seed)
        labels = f", {len(data.labels)} labels" if data.labels else ""
        for name, examples in data.splits.items():
            print_line(f"{name:10s} {len(examples):,} examples{labels}")
        return
    start = open_start(config.init_from, None, CommandLine.of_this_command().overrides)
    encoded, tokenizer, _ = whole_texts(
        found, place, "causal", choose_tokenizer(config.tokenizer, start),
        lines=None if start is None else start.lines,
    )  # fmt: skip
    print_line(f"{'tokenizer':10s} {tokenizer.size:,} tokens")
    for name, text in encoded.items():
        print_line(
            f"{name:10s} {text.num_lines:,} lines, {text.num_words:,} words, "
            f"{len(text.tokens) - 1:,} tokens, {text.num_unknown:,} unknown, {_place(text)}"
        )


def _place(text: EncodedText) -> str:
    return str(text.path) if text.num_shards == 1 else f"{text.num_shards:,} files in {text.path}"
