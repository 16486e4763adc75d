"""Config to encoded data."""

import numpy as np
import pytest
from omegaconf import OmegaConf

from tests import configs, tiny
from transfer_cli.assembly import datasets
from transfer_cli.data.folders import cache_folder
from transfer_cli.data.tasks import Example, LabelledData, TaskData
from transfer_cli.data.text import TextData
from transfer_cli.data.tokenizer import WordPiece
from transfer_cli.errors import ConfigError

WORDS = " ".join(configs.WORDS)


@pytest.fixture(scope="module")
def tokenizer():
    return WordPiece(size=80).make(lambda: iter([WORDS, "the is near number place where"]))


# --- where -------------------------------------------------------------------------------------


def test_the_data_of_a_run_lies_where_it_lay_if_it_is_still_there(tmp_path):
    here, there, gone = tmp_path / "here", tmp_path / "there", tmp_path / "gone"
    here.mkdir()
    there.mkdir()
    now = OmegaConf.create({"data_dir": str(here)})

    for lay, found in [(there, there), (gone, here)]:
        own = OmegaConf.create({"data_dir": str(lay)})
        assert datasets.data_dir_of(own, now, ()) == str(found)
        assert datasets.data_dir_of(own, now, [f"data_dir={here}"]) == str(here)


def test_caches_lie_beside_the_data_unless_they_are_told_elsewhere(tmp_path, monkeypatch):
    assert cache_folder(str(tmp_path)) == tmp_path / "cache"

    monkeypatch.setenv("TRANSFER_CACHE", str(tmp_path / "own"))
    assert cache_folder(str(tmp_path)) == tmp_path / "own"


# --- which -------------------------------------------------------------------------------------


def test_each_command_takes_its_kind_of_data(tmp_path):
    text = OmegaConf.create({"data": configs.text(tmp_path)})
    table = OmegaConf.create({"data": configs.table(tmp_path)})

    assert isinstance(datasets.source(text, TextData), TextData)
    assert isinstance(datasets.source(table, TaskData), TaskData)
    with pytest.raises(
        ConfigError, match=r"^data: this is text without labels, which only pretrain"
    ):
        datasets.source(text, TaskData)
    with pytest.raises(
        ConfigError, match=r"^data: this is labelled data, which only finetune takes"
    ):
        datasets.source(table, TextData)


@pytest.mark.parametrize("value", [None, 1, 12])
def test_a_count_is_a_whole_number_or_nothing(value):
    assert datasets.count_of(value, "streams.a.batch") == value


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "3"])
def test_any_other_count_is_refused_under_its_key(value):
    with pytest.raises(ConfigError, match=r"^streams\.a\.batch: must be a number of 1 or more"):
        datasets.count_of(value, "streams.a.batch")


@pytest.mark.parametrize(("length", "found"), [(None, 24), (1, 1), (24, 24)])
def test_a_block_is_as_long_as_it_is_told_or_as_the_model_has_positions(length, found):
    assert datasets.block_length(length, 24) == found


@pytest.mark.parametrize("length", [0, 25])
def test_a_block_that_does_not_fit_the_model_is_refused(length):
    with pytest.raises(ConfigError, match=rf"^data\.length: {length} does not fit .* 24 positions"):
        datasets.block_length(length, 24)


# --- text --------------------------------------------------------------------------------------


def test_text_is_cut_into_blocks_and_its_words_are_counted(tmp_path):
    config = configs.config("pretrain", tmp_path)

    prepared, tokenizer = datasets.text(config, tiny.shape(), None)

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
    config = configs.config("pretrain", tmp_path)
    found = datasets.source(config, TextData)

    only = datasets.encoded_text(found, config, tokenizer, tiny.shape(), ("validation",))

    assert list(only.splits) == ["validation"]


def test_text_that_goes_on_with_a_model_takes_its_tokenizer(tmp_path, pretrained):
    from transfer_cli.assembly.init_from import open_start

    config = configs.config("pretrain", tmp_path, tokenizer=None, init_from=str(pretrained))
    start = open_start(config.init_from, None, ())

    _, tokenizer = datasets.text(config, start.description.shape, start)

    assert tokenizer.hash == start.tokenizer.hash


# --- labelled ----------------------------------------------------------------------------------

LONG = ("the " * 9).strip()
EXAMPLES = tuple(Example(text, label) for text, label in [(LONG, 0), ("the", 1), ("the is", 0)])
LABELLED = LabelledData("made", ("a", "b"), {"train": EXAMPLES, "test": EXAMPLES[:2]})


def test_labelled_texts_are_scored_from_short_to_long(tokenizer):
    prepared = datasets.task(LABELLED, None, tokenizer, tiny.shape())

    assert list(prepared.splits) == ["train", "test"]
    assert (prepared.labels, prepared.name) == (("a", "b"), "made")
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


def test_a_new_tokenizer_is_made_of_the_training_texts_and_their_pairs(tmp_path):
    pairs = tuple(Example("the", n % 2, pair="harbour garden") for n in range(4))
    config = configs.config("finetune", tmp_path)

    made = datasets.task_tokenizer(config, LabelledData("", ("a", "b"), {"train": pairs}), None)

    assert made.unk not in made.encode("harbour garden")
    assert made.unk in made.encode("zebra")


# --- streams -----------------------------------------------------------------------------------


def streams(tmp_path, **second):
    node = {"data": configs.text(tmp_path, name="second"), **second}
    return configs.config("finetune", tmp_path, streams={"second": node})


def test_a_stream_is_text_or_labelled_data_encoded_for_the_model(tmp_path, tokenizer):
    text = datasets.stream(streams(tmp_path), "second", tokenizer, tiny.shape())
    table = datasets.stream(
        streams(tmp_path, data=configs.table(tmp_path)), "second", tokenizer, tiny.shape()
    )

    assert text.labels == ()
    assert table.labels == ("number", "place")
    assert len(table.splits["train"].data) == 20


def test_of_a_stream_fewer_examples_may_be_scored_but_all_are_trained_on(tmp_path, tokenizer):
    config = streams(tmp_path, data=configs.table(tmp_path), scored=3)

    splits = datasets.stream(config, "second", tokenizer, tiny.shape()).splits

    assert [len(splits[name].order) for name in ("train", "validation", "test")] == [20, 3, 3]


def test_an_option_that_a_stream_has_not_is_refused_with_the_nearest(tmp_path, tokenizer):
    with pytest.raises(ConfigError, match=r"^streams\.second\.bach: .*Did you mean 'batch'"):
        datasets.stream(streams(tmp_path, bach=3), "second", tokenizer, tiny.shape())
