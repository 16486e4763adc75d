"""Config to encoded data."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch

from tests import configs, tiny
from tests.published import TEXT, config_of, publish, reference, sentence_pieces
from transfer_cli.assembly import datasets
from transfer_cli.assembly.chosen_tokenizer import default_line_rule
from transfer_cli.assembly.datasets import DataPlace, StreamSource
from transfer_cli.assembly.finished_run import open_trained
from transfer_cli.assembly.init_from import Pretrained, open_pretrained
from transfer_cli.assembly.losses import RequestedLoss
from transfer_cli.assembly.model import block_length
from transfer_cli.assembly.origins import Origins
from transfer_cli.config.build import build
from transfer_cli.data import readers
from transfer_cli.data.corpus import encode_text
from transfer_cli.data.folders import cache_folder
from transfer_cli.data.labelled import Example, LabelledData, TaskData
from transfer_cli.data.text import TextData, TextFiles
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.data.tokenizer_recipes import BytePairs, WordPiece
from transfer_cli.engine.evaluation import evaluate
from transfer_cli.engine.precision import device_and_precision
from transfer_cli.errors import ConfigError
from transfer_cli.interop.vocabulary import read_tokenizer
from transfer_cli.model.weights import ModelDescription
from transfer_cli.objectives.classification import Classification

WORDS = " ".join(configs.WORDS)


RECIPE = WordPiece(size=80)


def place(folder):
    return DataPlace(str(folder), 0)


def text_in(folder):
    return build(configs.text(folder), "data", TextData)


@pytest.fixture(scope="module")
def tokenizer():
    return RECIPE.make(lambda: iter([WORDS, "the is near number place where"]))


# --- where -------------------------------------------------------------------------------------


def test_the_data_of_a_run_lies_where_it_lay_if_it_is_still_there(tmp_path):
    here, there, gone = tmp_path / "here", tmp_path / "there", tmp_path / "gone"
    here.mkdir()
    there.mkdir()

    for lay, expected in [(there, there), (gone, here)]:
        assert datasets.data_dir_of(str(lay), str(here), ()) == str(expected)
        for typed in ("data_dir=", "++data_dir="):
            assert datasets.data_dir_of(str(lay), str(here), [f"{typed}{here}"]) == str(here)


def test_caches_lie_beside_the_data_unless_they_are_told_elsewhere(tmp_path, monkeypatch):
    assert cache_folder(str(tmp_path)) == tmp_path / "cache"

    monkeypatch.setenv("TRANSFER_CACHE", str(tmp_path / "own"))
    assert cache_folder(str(tmp_path)) == tmp_path / "own"


# --- which -------------------------------------------------------------------------------------


def test_each_command_takes_its_kind_of_data(tmp_path):
    text, table = configs.text(tmp_path), configs.table(tmp_path)

    assert isinstance(datasets.build_source(text, TextData), TextData)
    assert isinstance(datasets.build_source(table, TaskData), TaskData)
    with pytest.raises(ConfigError, match=r"^data: .* only pretrain"):
        datasets.build_source(text, TaskData)
    with pytest.raises(ConfigError, match=r"^data: .* only finetune"):
        datasets.build_source(table, TextData)


@pytest.mark.parametrize(("length", "expected"), [(None, 24), (1, 1), (24, 24)])
def test_a_block_is_as_long_as_it_is_told_or_as_the_model_has_positions(length, expected):
    assert block_length(length, 24) == expected


# --- text --------------------------------------------------------------------------------------


def test_text_is_cut_into_blocks_and_its_words_are_counted(tmp_path):
    prepared, tokenizer = datasets.prepare_text(
        text_in(tmp_path), place(tmp_path), tiny.shape(), RECIPE
    )

    assert list(prepared.splits) == ["train", "validation"]
    assert prepared.labels == ()
    assert prepared.lengths is None
    for name, lines in (("train", 40), ("validation", 39)):
        split = prepared.splits[name]
        batch = split.data.batch(np.arange(2))
        assert batch["tokens"].shape == (2, 12)
        path = tmp_path / f"text-{name}.txt"
        # The end of a line is a word of its own, as in other people's perplexities.
        assert split.text.words == len(path.read_text().split()) + lines == 8 * lines
        assert split.text.size_bytes == path.stat().st_size
    assert tokenizer.size <= 80


def test_the_splits_that_are_needed_are_encoded_with_the_tokenizer_that_there_is(
    tmp_path, tokenizer
):
    data, only = text_in(tmp_path), ("validation",)

    prepared, used = datasets.prepare_text(data, place(tmp_path), tiny.shape(), tokenizer, only)

    assert list(prepared.splits) == ["validation"]
    assert used is tokenizer


# --- labelled ----------------------------------------------------------------------------------

LONG = ("the " * 9).strip()
EXAMPLES = tuple(Example(text, label) for text, label in [(LONG, 0), ("the", 1), ("the is", 0)])
LABELLED = LabelledData("made", ("a", "b"), {"train": EXAMPLES, "test": EXAMPLES[:2]})


def test_labelled_texts_are_scored_from_short_to_long(tokenizer):
    prepared = datasets.prepare_task(LABELLED, None, tokenizer, tiny.shape())

    assert list(prepared.splits) == ["train", "test"]
    assert prepared.labels == ("a", "b")
    assert prepared.splits["train"].order.tolist() == [1, 2, 0]
    assert prepared.lengths.tolist() == prepared.splits["train"].data.lengths.tolist()
    assert prepared.lengths[0] > prepared.lengths[2] > prepared.lengths[1]


@pytest.mark.parametrize(("direction", "place"), [("causal", -1), ("bidirectional", 0)])
def test_the_token_that_is_classified_is_where_the_model_has_seen_all(tokenizer, direction, place):
    prepared = datasets.prepare_task(LABELLED, None, tokenizer, tiny.shape(direction=direction))

    row = prepared.splits["train"].data.batch(np.array([2]))["tokens"][0]

    assert int(row[place]) == tokenizer.cls


def test_long_texts_are_cut_to_the_length_that_is_asked_for(tokenizer, caplog):
    prepared = datasets.prepare_task(LABELLED, 5, tokenizer, tiny.shape())

    assert prepared.lengths.max() == 5
    assert "Cut 1 of 3 examples to 5 tokens" in caplog.text


def test_a_new_tokenizer_is_made_of_the_training_texts_and_their_pairs():
    pairs = tuple(Example("the", n % 2, pair="harbour garden") for n in range(4))

    made = datasets.task_tokenizer(LabelledData("", ("a", "b"), {"train": pairs}), RECIPE)

    assert made.unk not in made.encode("harbour garden")
    assert made.unk in made.encode("zebra")


# --- streams -----------------------------------------------------------------------------------


def source(node, **options):
    return build({"data": node, **options}, "streams.second", StreamSource)


def test_a_stream_is_text_or_labelled_data_of_which_fewer_may_be_scored(tmp_path, tokenizer):
    text, table = (
        datasets.prepare_stream(
            "a", source(node, scored=3), place(tmp_path), tokenizer, tiny.shape(), Origins()
        )
        for node in (configs.text(tmp_path), configs.table(tmp_path))
    )

    assert text.labels == ()
    assert table.labels == ("number", "place")
    scored = [len(table.splits[name].order) for name in ("train", "validation", "test")]
    assert scored == [20, 3, 3]


def test_a_stream_has_its_own_batch_or_that_of_the_run(tmp_path):
    node = {"data": configs.text(tmp_path, name="second")}
    streams = {"own": {**node, "batch": 3}, "none": node}
    config = configs.config("finetune", tmp_path, streams=streams)

    main = RequestedLoss(Classification())
    data = datasets.run_data(config, "finetune", tiny.shape(), None, Origins(), main)

    assert data.batches == {"main": 8, "own": 3, "none": 8}


# --- line rules ----------------------------------------------------------------------------------


CODE = "def f(x):\n    if x:\n\n        return 'the'\n\n\n    return [x, 1]  # the end.\n"
LEVELS = tokenizers.pre_tokenizers.ByteLevel
QWEN = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"


def byte_pairs(splitter, begin=None, *, template=True):
    """Return a tokenizer of a published kind, with a token that ends texts."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer, backend.decoder = splitter, tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|endoftext|>", *([begin] if begin else [])],
        initial_alphabet=sorted(LEVELS.alphabet()), show_progress=False,
    )  # fmt: skip
    backend.train_from_iterator([CODE * 3, *TEXT], trainer)
    if begin and template:
        backend.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{begin} $A", pair=f"{begin} $A {begin} $B",
            special_tokens=[(begin, backend.token_to_id(begin))],
        )  # fmt: skip
    return Tokenizer(backend)


GPT2 = byte_pairs(LEVELS(add_prefix_space=False))
OTHERS = {
    "gpt2": GPT2,
    "gpt2 with a beginning": byte_pairs(LEVELS(add_prefix_space=False), "<bos>"),
    "qwen": byte_pairs(
        tokenizers.pre_tokenizers.Sequence(
            [
                tokenizers.pre_tokenizers.Split(tokenizers.Regex(QWEN), "isolated"),
                LEVELS(add_prefix_space=False, use_regex=False),
            ]
        )
    ),
    "own": BytePairs(300).make(lambda: iter(CODE.splitlines())),
}


def tokens_of(tmp_path, text, rule, tokenizer=GPT2, name="a.txt", split="test", **options):
    """Return the tokens of a file, and where documents begin in them."""
    (tmp_path / name).write_bytes(text.encode())
    (tmp_path / "other.txt").write_text("x\ny\n")
    files = {"train": str(tmp_path / "other.txt"), split: str(tmp_path / name)}
    data = TextFiles(**{"validation_share": 0.5, **files, **options})
    text_split = data.splits(tmp_path, 0)[split].with_rule(rule)
    encoded = encode_text(text_split, tokenizer, tmp_path / "cache")
    starts = None if encoded.starts is None else encoded.starts.tolist()
    return list(encoded.tokens[:]), starts, encoded


def test_the_same_tokens_with_and_without_a_template_are_two_entries(tmp_path):
    bare = byte_pairs(LEVELS(add_prefix_space=False), "<bos>", template=False)
    for tokenizer in (OTHERS["gpt2 with a beginning"], bare):
        assert tokenizer.hash == bare.hash
        tokens, _, _ = tokens_of(tmp_path, CODE, "keep", tokenizer)
        assert tokens[0] == tokenizer.document_start


def test_sentence_pieces_keep_lines_and_begin_with_their_own_token(tmp_path):
    sentence_pieces(tmp_path)
    tokenizer = read_tokenizer(tmp_path)

    tokens, _, _ = tokens_of(tmp_path, "the W\n\nthe", "keep", tokenizer)

    theirs = reference().AutoTokenizer.from_pretrained(tmp_path)("the W\n\nthe")["input_ids"]
    assert tokens == [*theirs, tokenizer.sep]
    assert theirs[0] == tokenizer.document_start == tokenizer.cls


LONG_TEXT = (Path(__file__).read_text() + CODE + "".join(TEXT) + " \t\n" * 9) * 9


@pytest.mark.parametrize("text", [CODE.strip(), CODE, f"{CODE}\n", LONG_TEXT], ids=len)
@pytest.mark.parametrize("kind", OTHERS)
def test_a_file_also_one_encoded_in_pieces_is_its_text_between_two_ends(tmp_path, kind, text):
    tokenizer = OTHERS[kind]

    tokens, _, _ = tokens_of(tmp_path, text, "keep", tokenizer)

    assert len(LONG_TEXT) > 70_000
    assert tokens == [tokenizer.document_start, *tokenizer.encode(text), tokenizer.sep]


def test_rows_are_documents_with_their_line_breaks(tmp_path):
    rows = ["one\n\ntwo\n", "three", "a\r\nb"]
    text = "".join(json.dumps({"text": row}) + "\n" for row in rows)

    tokens, _, _ = tokens_of(tmp_path, text, "keep", name="a.jsonl")
    joined, _, _ = tokens_of(tmp_path, text, "join", name="a.jsonl")

    sep, encode = GPT2.sep, GPT2.encode
    kept = [sep, *encode("one\n\ntwo\n"), sep, *encode("three"), sep, *encode("a\nb"), sep]
    assert tokens == kept
    assert joined[-len(encode("a b")) - 2 :] == [sep, *encode("a b"), sep]


def test_between_documents_stands_the_beginning_too_where_there_is_one(tmp_path):
    tokenizer = OTHERS["gpt2 with a beginning"]
    text = "".join(json.dumps({"text": row}) + "\n" for row in ("one", "two"))

    tokens, starts, _ = tokens_of(
        tmp_path, text, "keep", tokenizer, "a.jsonl", documents="separate"
    )

    begin, end = tokenizer.document_start, tokenizer.sep
    first = [begin, *tokenizer.encode("one"), end]
    assert tokens == [*first, begin, *tokenizer.encode("two"), end]
    assert starts == [0, len(first)]


def test_documents_end_where_the_heading_or_an_empty_line_says(tmp_path):
    text = "= A =\nb\n\nc\n= D =\n"
    sep, encode = GPT2.sep, GPT2.encode

    whole, _, _ = tokens_of(tmp_path, text, "keep")
    headed, starts, _ = tokens_of(tmp_path, text, "keep", heading="= .* =")
    apart, begun, _ = tokens_of(tmp_path, text, "keep", documents="separate")

    assert whole.count(sep) == 2
    assert starts is None
    assert headed == [sep, *encode("= A =\nb\n\nc\n"), sep, *encode("= D =\n"), sep]
    first = [sep, *encode("= A =\nb\n\n")]
    assert apart == [*first, sep, *encode("c\n= D =\n"), sep]
    assert begun == [0, len(first)]


def test_files_are_documents_one_after_the_other(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name, text in (("a.txt", "one\ntwo"), ("b.txt", "three\n")):
        (folder / name).write_text(text)
    (tmp_path / "other.txt").write_text("x\n")
    for kind in ("gpt2", "gpt2 with a beginning"):
        tokenizer = OTHERS[kind]
        data = TextFiles(
            train=str(folder), validation=str(tmp_path / "other.txt"), documents="separate"
        )
        split = data.splits(tmp_path, 0)["train"].with_rule("keep")

        encoded = encode_text(split, tokenizer, tmp_path / kind)

        sep, begin = tokenizer.sep, tokenizer.document_start
        between = [sep] if begin == sep else [sep, begin]
        first = [begin, *tokenizer.encode("one\ntwo")]
        expected = [*first, *between, *tokenizer.encode("three\n"), sep]
        assert list(encoded.tokens[:]) == expected
        assert encoded.starts.tolist() == [0, len(first) + len(between) - 1]


def test_lines_that_are_held_out_follow_each_other_and_leave_no_end_behind(tmp_path):
    lines = [f"line {number}\n" for number in range(40)]
    options = {"validation_share": 0.1, "lines": "keep"}
    text = "".join(lines)

    tokens, _, _ = tokens_of(tmp_path, text, "keep", split="train", **options)

    (tmp_path / "a.txt").write_text(text)
    data = TextFiles(train=str(tmp_path / "a.txt"), **options)
    held_out = encode_text(data.splits(tmp_path, 0)["validation"].with_rule("keep"), GPT2, tmp_path)
    kept, out = (GPT2.decode(list(part[1:-1])) for part in (tokens, held_out.tokens))
    assert tokens.count(GPT2.sep) == 2
    assert len(out.splitlines()) == 4
    assert kept == text.replace(out, "")


def test_documents_are_held_out_whole_where_there_are_enough(tmp_path):
    rows = [f"row {number}\nof lines\n" for number in range(40)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))

    lines = {}
    for share in (0.1, 0.02):
        data = TextFiles(
            train=str(tmp_path / "a.jsonl"), validation_share=share, lines="keep", field="text"
        )
        split = data.splits(tmp_path, 0)["validation"]
        lines[share] = list(split.marked_lines())

    assert [begins for _, begins in lines[0.1]] == [True, False, False] * 4
    assert [line for line, _ in lines[0.02]] == ["row 12", "row 37"]  # lines, of too few documents


@pytest.mark.parametrize("text", ["a b\n\nc\n", "a b\r\n\r\nc", "a b c", "ä\nb\n"])
def test_words_and_bytes_are_counted_alike(tmp_path, text):
    encodings = [tokens_of(tmp_path, text, rule)[2] for rule in ("end", "keep", "join")]

    counts = {(encoded.num_words, encoded.num_bytes, encoded.num_lines) for encoded in encodings}
    assert len(counts) == 1


def test_a_line_too_long_to_be_read_at_once_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "_LONGEST", 2**12)
    text = "word and " * 1000 + "\nend\n"
    words = WordPiece(60).make(lambda: iter(["word and end"]))

    tokens, _, encoded = tokens_of(tmp_path, text, "end", words)
    kept, _, _ = tokens_of(tmp_path, text, "keep")
    _, starts, _ = tokens_of(tmp_path, f"a\n\n{text}\nend\n", "end", words, documents="separate")

    assert starts == [0, 3, len(tokens) + 3]
    assert encoded.num_lines == 2
    assert encoded.num_bytes == len(text)
    assert tokens == [words.sep, *words.encode(text.splitlines()[0]), words.sep,
                      *words.encode("end"), words.sep]  # fmt: skip
    assert kept[1:-1] == GPT2.encode(text)


def test_what_a_new_model_does_follows_from_its_direction_and_its_tokenizer():
    pairs, words = OTHERS["own"], WordPiece(60).make(lambda: iter(["a b"]))

    assert default_line_rule(GPT2, "causal") == "keep"
    assert default_line_rule(GPT2, "bidirectional") == "end"
    assert pairs.keeps_lines
    assert default_line_rule(pairs, "causal") == "end"
    assert default_line_rule(words, "causal") == "end"


def described(tokenizer, lines):
    shape = replace(tiny.shape(), direction="causal")
    node = {"_target_": "transfer_cli.objectives.causal_lm.CausalLM"}
    description = ModelDescription(shape, tokenizer.size, node, (), tokenizer.hash, lines=lines)
    return Pretrained(Path(), Path(), description, tokenizer)


def test_a_run_of_an_earlier_version_goes_on_line_by_line():
    start = described(GPT2, None)

    assert start.lines == "end"
    # Its prompts stay as they were.
    assert start.prompt_layout.encode("a\nb") == GPT2.encode("a\nb")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("keep", GPT2.encode("a\nb")),
        ("join", GPT2.encode("a b")),
        ("end", [GPT2.sep, *GPT2.encode("a"), GPT2.sep, *GPT2.encode("b")]),
    ],
)
def test_a_prompt_is_read_as_the_text_was(lines, expected):
    layout = described(GPT2, lines).prompt_layout

    assert layout.encode("a\nb") == expected
    assert layout.text_end == (None if lines == "end" else GPT2.sep)


def llama(folder):
    vocabulary = sentence_pieces(folder)
    config = config_of("llama", vocabulary, bos_token_id=1, eos_token_id=2)
    torch.manual_seed(0)
    reference().LlamaForCausalLM(config).save_pretrained(folder)


@pytest.mark.parametrize(
    "family",
    ["gpt2", "llama", *(pytest.param(f, marks=pytest.mark.slow) for f in ("qwen2", "gpt_neox"))],
)
def test_the_loss_of_a_file_is_that_of_the_reference(tmp_path, family):
    folder = tmp_path / "model"
    folder.mkdir()
    if family == "llama":
        llama(folder)
    else:
        publish(folder, family, "LMHeadModel" if family == "gpt2" else "CausalLM")
    text = "the Two,\n\n  the other.\nW is\n" * 6
    (tmp_path / "a.txt").write_text(text)

    precision = device_and_precision("cpu", "fp32")
    trained = open_trained(str(folder), precision)
    start = trained.start
    split = datasets.encode_files(
        str(tmp_path / "a.txt"), tmp_path, start.tokenizer, start.description.shape, 16,
        lines=start.lines,
    )  # fmt: skip
    ours = evaluate(trained.model, trained.objective, split, batch=2, precision=precision)

    theirs = reference().AutoModelForCausalLM.from_pretrained(folder).eval()
    read = reference().AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
    end = start.tokenizer.sep
    tokens = [*read, end] if read[0] == start.tokenizer.document_start else [end, *read, end]
    losses = []
    for first in range(0, len(tokens) - 1, 16):
        block = torch.tensor([tokens[first : first + 17]])
        with torch.no_grad():
            logits = theirs(block[:, :-1]).logits
        losses += torch.nn.functional.cross_entropy(
            logits[0], block[0, 1:], reduction="none"
        ).tolist()
    assert start.lines == "keep"
    assert ours.measures["loss"] == pytest.approx(math.fsum(losses) / len(losses), abs=1e-5)
    assert open_pretrained(str(folder)).prompt_layout.encode(text) == read
