"""Config to encoded data."""

import numpy as np
import pytest

from tests import configs, tiny
from transfer_cli.assembly import datasets
from transfer_cli.assembly.datasets import DataPlace, StreamSource
from transfer_cli.assembly.losses import Asked
from transfer_cli.assembly.model import block_length
from transfer_cli.assembly.origins import Origins
from transfer_cli.config.build import build
from transfer_cli.data.catalog import cache_folder
from transfer_cli.data.labelled import Example, LabelledData, TaskData
from transfer_cli.data.text import TextData
from transfer_cli.data.tokenizer_recipes import WordPiece
from transfer_cli.errors import ConfigError
from transfer_cli.objectives.classification import Classification

WORDS = " ".join(configs.WORDS)


RECIPE = WordPiece(size=80)


def place(folder):
    return DataPlace(str(folder), 0)


def text_in(folder):
    return build(configs.text(folder), "data", TextData)


def table_in(folder):
    return build(configs.table(folder), "data", TaskData)


@pytest.fixture(scope="module")
def tokenizer():
    return RECIPE.make(lambda: iter([WORDS, "the is near number place where"]))


# --- where -------------------------------------------------------------------------------------


def test_the_data_of_a_run_lies_where_it_lay_if_it_is_still_there(tmp_path):
    here, there, gone = tmp_path / "here", tmp_path / "there", tmp_path / "gone"
    here.mkdir()
    there.mkdir()

    for lay, found in [(there, there), (gone, here)]:
        assert datasets.data_dir_of(str(lay), str(here), ()) == str(found)
        assert datasets.data_dir_of(str(lay), str(here), [f"data_dir={here}"]) == str(here)


def test_caches_lie_beside_the_data_unless_they_are_told_elsewhere(tmp_path, monkeypatch):
    assert cache_folder(str(tmp_path)) == tmp_path / "cache"

    monkeypatch.setenv("TRANSFER_CACHE", str(tmp_path / "own"))
    assert cache_folder(str(tmp_path)) == tmp_path / "own"


# --- which -------------------------------------------------------------------------------------


def test_each_command_takes_its_kind_of_data(tmp_path):
    text, table = text_in(tmp_path), table_in(tmp_path)

    assert datasets.of_kind(text, TextData) is text
    assert datasets.of_kind(table, TaskData) is table
    with pytest.raises(
        ConfigError, match=r"^data: this is text without labels, which only pretrain"
    ):
        datasets.of_kind(text, TaskData)
    with pytest.raises(
        ConfigError, match=r"^data: this is labelled data, which only finetune takes"
    ):
        datasets.of_kind(table, TextData)


@pytest.mark.parametrize(("length", "found"), [(None, 24), (1, 1), (24, 24)])
def test_a_block_is_as_long_as_it_is_told_or_as_the_model_has_positions(length, found):
    assert block_length(length, 24) == found


# --- text --------------------------------------------------------------------------------------


def test_text_is_cut_into_blocks_and_its_words_are_counted(tmp_path):
    prepared, tokenizer = datasets.text(text_in(tmp_path), place(tmp_path), tiny.shape(), RECIPE)

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


def test_only_the_splits_that_are_needed_are_encoded(tmp_path, tokenizer):
    found = text_in(tmp_path)

    only, _ = datasets.text(found, place(tmp_path), tiny.shape(), tokenizer, ("validation",))

    assert list(only.splits) == ["validation"]


def test_text_is_encoded_with_the_tokenizer_that_there_is(tmp_path, tokenizer):
    _, used = datasets.text(text_in(tmp_path), place(tmp_path), tiny.shape(), tokenizer)

    assert used is tokenizer


# --- labelled ----------------------------------------------------------------------------------

LONG = ("the " * 9).strip()
EXAMPLES = tuple(Example(text, label) for text, label in [(LONG, 0), ("the", 1), ("the is", 0)])
LABELLED = LabelledData("made", ("a", "b"), {"train": EXAMPLES, "test": EXAMPLES[:2]})


def test_labelled_texts_are_scored_from_short_to_long(tokenizer):
    prepared = datasets.task(LABELLED, None, tokenizer, tiny.shape())

    assert list(prepared.splits) == ["train", "test"]
    assert prepared.labels == ("a", "b")
    assert prepared.splits["train"].order.tolist() == [1, 2, 0]
    assert prepared.lengths.tolist() == prepared.splits["train"].data.lengths.tolist()
    assert prepared.lengths[0] > prepared.lengths[2] > prepared.lengths[1]


@pytest.mark.parametrize(("direction", "place"), [("causal", -1), ("bidirectional", 0)])
def test_the_token_that_is_classified_is_where_the_model_has_seen_all(tokenizer, direction, place):
    prepared = datasets.task(LABELLED, None, tokenizer, tiny.shape(direction=direction))

    row = prepared.splits["train"].data.batch(np.array([2]))["tokens"][0]

    assert int(row[place]) == tokenizer.cls


def test_long_texts_are_cut_to_the_length_that_is_asked_for(tokenizer, caplog):
    prepared = datasets.task(LABELLED, 5, tokenizer, tiny.shape())

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


def test_a_stream_is_text_or_labelled_data_encoded_for_the_model(tmp_path, tokenizer):
    text, table = (
        datasets.stream(
            "streams.a", source(node), place(tmp_path), tokenizer, tiny.shape(), Origins()
        )
        for node in (configs.text(tmp_path), configs.table(tmp_path))
    )

    assert text.labels == ()
    assert table.labels == ("number", "place")
    assert len(table.splits["train"].data) == 20


def test_of_a_stream_fewer_examples_may_be_scored_but_all_are_trained_on(tmp_path, tokenizer):
    few = source(configs.table(tmp_path), scored=3)

    splits = datasets.stream(
        "streams.a", few, place(tmp_path), tokenizer, tiny.shape(), Origins()
    ).splits

    assert [len(splits[name].order) for name in ("train", "validation", "test")] == [20, 3, 3]


def test_a_stream_has_its_own_batch_or_that_of_the_run(tmp_path):
    node = {"data": configs.text(tmp_path, name="second")}
    streams = {"own": {**node, "batch": 3}, "none": node}
    config = configs.config("finetune", tmp_path, streams=streams)

    main = Asked(Classification())
    found = datasets.of_run(config, "finetune", tiny.shape(), None, Origins(), main)

    assert found.batches == {"main": 8, "own": 3, "none": 8}
