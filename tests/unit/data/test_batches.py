"""Which examples are in which step, and what of a split is scored at once."""

import hashlib
import itertools
import json
import logging
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import tiny
from transfer_cli.batch import IGNORE, micro_batches, shard
from transfer_cli.data import sample
from transfer_cli.data.encoded_task import encode_texts, warn_of_cuts
from transfer_cli.data.labelled import Example
from transfer_cli.data.mixture import Mixture, annealed_powers, mixture_epoch_steps, probabilities
from transfer_cli.data.sampler import (
    LEAST_POOLS,
    POOL_BATCHES,
    LaneSampler,
    StepSampler,
    quotas,
)
from transfer_cli.data.split import Split, TextContext, TextStats, WeightedSource, subsample
from transfer_cli.data.tokenizer_recipes import WordPiece
from transfer_cli.engine import evaluation
from transfer_cli.engine.evaluation import portions_by_process
from transfer_cli.errors import ConfigError, DataError

SIZES = {
    "examples": st.integers(1, 200),
    "batch": st.integers(1, 40),
    "seed": st.integers(0, 9),
    "bucket": st.booleans(),
}


def order_of(examples, batch, seed, bucket):
    lengths = np.random.default_rng(seed).integers(2, 40, examples) if bucket else None
    return StepSampler(examples, batch, seed, lengths)


@given(**SIZES, epoch=st.integers(0, 5))
def test_each_epoch_shows_every_example_once_in_full_steps_but_the_last(
    examples, batch, seed, bucket, epoch
):
    order = order_of(examples, batch, seed, bucket)
    first = epoch * order.steps_per_epoch

    steps = [order.indices(first + n) for n in range(order.steps_per_epoch)]

    assert sorted(np.concatenate(steps)) == list(range(examples))
    assert all(len(step) == batch for step in steps[:-1])


@given(**SIZES, steps=st.lists(st.integers(0, 300), min_size=1, max_size=8))
def test_a_step_has_the_same_examples_whenever_it_is_asked_for(
    examples, batch, seed, bucket, steps
):
    asked = order_of(examples, batch, seed, bucket)

    for step in steps:
        fresh = order_of(examples, batch, seed, bucket)
        assert np.array_equal(asked.indices(step), fresh.indices(step))


@pytest.mark.parametrize("lengths", [None, np.arange(100) // 10])
def test_epochs_and_seeds_have_orders_of_their_own(lengths):
    one, other = StepSampler(100, 20, 0, lengths), StepSampler(100, 20, 1, lengths)

    assert not np.array_equal(one.indices(0), one.indices(5))
    assert not np.array_equal(one.indices(0), other.indices(0))


def test_batches_of_like_length_have_little_padding_and_come_in_no_order_of_length():
    lengths = np.random.default_rng(0).integers(3, 38, 8000)
    order = StepSampler(8000, 16, 0, lengths)

    batches = [lengths[order.indices(step)] for step in range(order.steps_per_epoch)]

    padded = sum(len(batch) * batch.max() for batch in batches)
    assert padded < 1.05 * lengths.sum()
    longest = [batch.max() for batch in batches]
    assert longest != sorted(longest)


def test_who_is_in_a_batch_together_differs_from_epoch_to_epoch():
    lengths = np.random.default_rng(0).integers(3, 38, 2000)
    order = StepSampler(2000, 16, 0, lengths)

    one, other = (
        {frozenset(order.indices(epoch * 125 + step)) for step in range(125)} for epoch in (0, 1)
    )

    assert not one & other


def test_lengths_are_only_compared_within_a_pool():
    pools = 2 * LEAST_POOLS
    lengths = np.arange(pools * POOL_BATCHES * 2)
    order = StepSampler(len(lengths), 2, 0, lengths)

    spans = [np.ptp(order.indices(step)) for step in range(order.steps_per_epoch)]

    # Two of a pool that are neighbours by length are about as far apart in the whole as there are
    # pools.
    assert 0.75 * pools < np.mean(spans) < 1.5 * pools


def test_few_examples_are_not_sorted_so_that_all_may_meet():
    lengths = np.random.default_rng(0).integers(3, 38, 100)

    sorted_by_length, plain = StepSampler(100, 16, 0, lengths), StepSampler(100, 16, 0)

    seen = [
        {frozenset(order.indices(step)) for step in range(7)} for order in (sorted_by_length, plain)
    ]
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("examples", "batch", "lengths", "message"),
    [
        (10, 2, np.ones(9), "a sampler of 10 examples got 9 lengths"),
        (0, 4, None, "needs examples and a batch"),
        (4, 0, None, "needs examples and a batch"),
    ],
)
def test_an_order_of_nothing_or_of_other_lengths_is_refused(examples, batch, lengths, message):
    with pytest.raises(ValueError, match=message):
        StepSampler(examples, batch, 0, lengths)


@given(st.integers(0, 100), st.integers(1, 40))
def test_portions_keep_the_order_and_every_index(count, portion):
    indices = np.arange(count)

    portions = micro_batches(indices, portion)

    assert [n for part in portions for n in part] == list(range(count))
    assert all(0 < len(part) <= portion for part in portions)


def weighted(*sizes_and_weights):
    return [WeightedSource(f"s{n}", *pair) for n, pair in enumerate(sizes_and_weights)]


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    weights=st.lists(st.floats(0.1, 9), min_size=4, max_size=4),
    seed=st.integers(0, 3),
)
def test_weighted_sources_have_their_shares_of_each_epoch_and_are_passed_over_evenly(
    sizes, weights, seed
):
    sources = weighted(*zip(sizes, weights, strict=False))
    total = sum(sizes)
    sampler = StepSampler(total, 5, seed, sources=sources)
    epochs = [
        np.concatenate(
            [sampler.indices(epoch * sampler.steps_per_epoch + step)
             for step in range(sampler.steps_per_epoch)]
        )
        for epoch in range(3)
    ]  # fmt: skip

    begins = np.cumsum([0, *sizes])
    for number, (size, quota) in enumerate(zip(sizes, quotas(sources), strict=True)):
        first, last = begins[number], begins[number + 1]
        drawn = [np.sort(order[(order >= first) & (order < last)]) for order in epochs]
        assert [len(part) for part in drawn] == [quota] * 3
        times = np.bincount(np.concatenate(drawn) - first, minlength=size)
        assert times.max() - times.min() <= 1
    assert [len(order) for order in epochs] == [total] * 3
    again = StepSampler(total, 5, seed, sources=sources)
    assert again.indices(7).tolist() == sampler.indices(7).tolist()


def test_quotas_are_the_nearest_that_make_an_epoch():
    assert quotas(weighted((10, 3.0), (90, 1.0))) == [75, 25]
    assert quotas(weighted((1, 1.0), (1, 1.0), (1, 1.0), (1, 3.0))) == [1, 1, 0, 2]
    assert quotas([]) == []


@given(examples=st.integers(1, 200), batch=st.integers(1, 40), world_size=st.integers(1, 3))
def test_lanes_go_on_where_the_step_before_ended(examples, batch, world_size):
    batch = min(batch, examples)
    lanes = LaneSampler(examples, batch, seed=0)
    steps = [lanes.indices(number) for number in range(lanes.steps_per_epoch)]

    assert sorted(np.concatenate(steps)) == list(range(examples))
    for rank in range(world_size):
        shards = [shard(step, rank, world_size) for step in steps]
        for before, after in itertools.pairwise(shards):
            assert after.tolist() == (before[: len(after)] + 1).tolist()
    assert lanes.indices(lanes.steps_per_epoch).tolist() == steps[0].tolist()


STREAMS = {"main": 100, "big": 1600, "small": 25}

sizes = st.dictionaries(st.text("abc", min_size=1, max_size=2), st.integers(1, 10_000), max_size=4)
sizes_with_main = sizes.map(lambda drawn: {**drawn, "main": 60})
powers = st.floats(0, 2)


def mixture(given=STREAMS, **settings):
    return Mixture(given, **{"total": 400, "steps_per_epoch": 40, "seed": 0, **settings})


def streams(mix):
    return [mix.draw(step)[0] for step in range(mix.total)]


# ----------------------------------------------------------------------------- which stream


@pytest.mark.parametrize(
    ("power", "expected"),
    [
        (0, {"main": 1 / 3, "big": 1 / 3, "small": 1 / 3}),
        (0.5, {"main": 10 / 55, "big": 40 / 55, "small": 5 / 55}),
        (1, {"main": 100 / 1725, "big": 1600 / 1725, "small": 25 / 1725}),
    ],
)
def test_streams_are_drawn_in_proportion_to_a_power_of_their_size(power, expected):
    drawn = Counter(streams(mixture(total=20_000, power=power)))

    assert probabilities(STREAMS, power) == pytest.approx(expected)
    for name, share in expected.items():
        # Five standard errors.
        assert drawn[name] / 20_000 == pytest.approx(share, abs=5 * (share / 20_000) ** 0.5)


@given(sizes=sizes_with_main, power=powers, seed=st.integers(0, 9), total=st.integers(1, 300))
def test_whoever_asks_gets_the_same_streams_and_other_seeds_draw_others(sizes, power, seed, total):
    one, other = (
        mixture(counts, power=power, seed=seed, total=total)
        for counts in (sizes, dict(reversed(sizes.items())))
    )

    assert streams(one) == streams(other)
    assert set(streams(one)) <= set(sizes)
    assert streams(mixture(seed=seed)) != streams(mixture(seed=seed + 1))


@given(power=powers, total=st.integers(1, 100), longer=st.integers(0, 100))
def test_a_longer_run_begins_like_the_shorter_one(power, total, longer):
    last = total // 4
    short = mixture(power=power, total=total, target_only=last)
    long = mixture(power=power, total=total + longer, target_only=last)

    for step in range(total - last):
        assert short.draw(step) == long.draw(step)


@given(target_only=st.integers(0, 50), anneal=st.booleans())
def test_the_last_steps_are_those_of_the_target_alone(target_only, anneal):
    whole = streams(mixture(total=50, anneal=anneal))
    first = 50 - target_only

    drawn = streams(mixture(total=50, anneal=anneal, target_only=target_only))

    assert drawn == whole[:first] + ["main"] * target_only


def test_the_annealed_power_falls_from_one_to_a_fifth():
    assert annealed_powers(5) == pytest.approx([1, 0.8, 0.6, 0.4, 0.2])
    assert annealed_powers(1) == pytest.approx([1])


def test_annealing_draws_each_epoch_with_its_own_power():
    mix = mixture(total=3 * 5000, steps_per_epoch=5000, anneal=True, power=0)

    for epoch, power in enumerate([1, 0.6, 0.2]):
        drawn = Counter(mix.draw(epoch * 5000 + step)[0] for step in range(5000))
        expected = probabilities(STREAMS, power)
        for name, share in expected.items():
            assert drawn[name] / 5000 == pytest.approx(share, abs=5 * (share / 5000) ** 0.5)


# ------------------------------------------------------------------------------- which visit


@given(sizes=sizes_with_main, power=powers, target_only=st.integers(0, 100))
def test_each_stream_is_visited_in_order_and_without_gaps(sizes, power, target_only):
    mix = mixture(sizes, power=power, total=100, target_only=target_only)

    seen = Counter()
    for step in range(100):
        name, visit = mix.draw(step)
        assert visit == seen[name]
        seen[name] += 1


@pytest.mark.parametrize("step", [-1, 400])
def test_a_step_beyond_the_run_is_refused(step):
    with pytest.raises(IndexError, match="a mixture for 400 steps"):
        mixture().draw(step)


# -------------------------------------------------------------------------------- the epoch


@pytest.mark.parametrize(
    ("settings", "steps"),
    [({"power": 0}, 30), ({"power": 0.5}, 55), ({"power": 1}, 172), ({"anneal": True}, 67)],
)
def test_an_epoch_passes_about_once_over_the_main_data(settings, steps):
    assert mixture_epoch_steps(STREAMS, 10, **settings) == steps
    assert mixture_epoch_steps({"main": 3}, 7, **settings) == 7


# ------------------------------------------------------------------------------ bad values


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"power": -0.1}, "power must be 0 or more"),
        ({"power": float("nan")}, "power must be 0 or more"),
        ({"target_only": -1}, "target_only must be from 0"),
        ({"target_only": 401}, "target_only must be from 0 to the run's 400 steps; got 401"),
        ({"total": 0}, "needs steps"),
        ({"given": {"other": 5}}, "needs the stream 'main', got other"),
        ({"given": {"main": 5, "other": 0}}, "nothing to draw from in other"),
    ],
)
def test_what_cannot_be_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        mixture(**settings)


@settings(max_examples=25)
@given(
    blocks=st.integers(1, 300),
    tokens=st.integers(1, 60),
    batch=st.integers(1, 20),
    world_size=st.integers(1, 3),
)
def test_in_lanes_every_block_counts_once_after_those_before_it(blocks, tokens, batch, world_size):
    split = Split("test", tiny.blocks(tokens=16 * blocks, length=16))
    context = TextContext("memory", tokens, 16)

    scored = []
    for portions in portions_by_process(split, context, batch, world_size):
        before = None
        for portion in portions:
            assert len(portion.rows) <= batch
            assert portion.begins == (before is None or portion.rows[0] != before[0] + 1)
            if portion.begins:
                first = portion.rows
            else:
                assert portion.rows.tolist() == (before[: len(portion.rows)] + 1).tolist()
            seen = 16 * (portion.rows - first[: len(portion.rows)])
            enough = np.minimum(tokens, 16 * portion.rows)
            assert (seen >= enough)[portion.is_scored].all()
            scored += portion.rows[portion.is_scored].tolist()
            before = portion.rows

    assert sorted(scored) == list(range(blocks))


def test_a_block_that_is_read_to_be_remembered_has_no_targets(monkeypatch):
    monkeypatch.setattr(evaluation, "MIN_LANE_BLOCKS", 2)
    split = Split("test", tiny.blocks(tokens=160, length=16))
    portions, *_ = portions_by_process(split, TextContext("memory", 16, 16), 8, 1)

    batch = portions[0].targets_in(split.data.batch(portions[0].rows))

    has_target = (batch["next_tokens"] != IGNORE).all(1)
    assert has_target.tolist() == portions[0].is_scored.tolist()
    assert 0 < has_target.sum() < len(has_target)


def test_without_a_memory_each_process_has_every_nth_batch():
    split = Split("test", tiny.blocks(tokens=160, length=16), order=np.arange(10)[::-1])

    shares = portions_by_process(split, None, 3, 2)

    rows = [[portion.rows.tolist() for portion in share] for share in shares]
    assert rows == [[[9, 8, 7], [3, 2, 1]], [[6, 5, 4], [0]]]


@pytest.fixture
def split():
    return Split("validation", tiny.Questions(examples=11), text=TextStats(words=40))


def test_some_are_spread_evenly_from_the_first_to_the_last(split):
    assert subsample(split, 3).order.tolist() == [0, 5, 10]


def test_all_windows_of_an_example_are_scored_or_none(split):
    example_of = np.array([0, 0, 1, 2, 2, 2, 3, 4, 5, 6, 6])

    some = subsample(replace(split, example_of=example_of), 3)

    assert some.order.tolist() == [0, 1, 6, 9, 10]  # examples 0, 3 and 6


def test_words_are_known_of_the_whole_text_alone(split):
    assert subsample(split, 3).text == TextStats()
    assert subsample(split, 11) is split


# --- sample --------------------------------------------------------------------------------------


FEWEST_MENTIONS = 100

encyclopedia = cache(sample.encyclopedia)


def asked_names(seed: int) -> dict[str, list[tuple[str, int]]]:
    """Return each split's names, in the questions' order, each with the number of its kind."""
    _, questions = sample.questions(seed)
    kinds = {name: label for label, names in enumerate(sample._names(seed)) for name in names}
    return {
        split: [(word, kinds[word]) for text, _ in asked for word in text.split() if word in kinds]
        for split, asked in questions.items()
    }


def wording(text: str, seed: int) -> str:
    names = {name for group in sample._names(seed) for name in group}
    return " ".join("NAME" if word in names else word for word in text.split())


def test_the_default_world_is_the_same_on_every_machine():
    text = json.dumps([sample.encyclopedia(), sample.questions()])

    assert (
        hashlib.sha256(text.encode()).hexdigest()
        == "c9ff313e023c21b15270d8a92727cc33c8939f2076cd66d8b249be3a79f251d7"
    )


def test_another_seed_makes_another_world():
    assert sample.questions(1) != sample.questions(0)
    assert sample.encyclopedia(1) != sample.encyclopedia(0)


@pytest.mark.parametrize("seed", [0, 1])
def test_each_question_holds_one_name_and_its_label_is_the_kind_of_the_name(seed):
    _, questions = sample.questions(seed)

    for split, names in asked_names(seed).items():
        assert [label for _, label in names] == [label for _, label in questions[split]]


@pytest.mark.parametrize("seed", [0, 1])
def test_no_name_is_asked_about_in_two_splits(seed):
    names = [{name for name, _ in asked} for asked in asked_names(seed).values()]

    assert len(set.union(*names)) == sum(map(len, names))


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_every_label_has_as_many_questions_in_each_wording(split):
    labels, questions = sample.questions()

    wordings = [
        Counter(wording(text, 0) for text, label in questions[split] if label == number)
        for number in range(len(labels))
    ]

    assert wordings[0]
    assert all(one == other for one, other in pairwise(wordings))


@pytest.mark.parametrize("seed", [0, 1])
def test_the_encyclopedia_mentions_every_asked_name_often(seed):
    words = Counter(word for line in encyclopedia(seed)["train"] for word in line.split())

    fewest = min(words[name] for asked in asked_names(seed).values() for name, _ in asked)

    assert fewest >= FEWEST_MENTIONS


def test_the_encyclopedia_knows_every_word_of_the_questions_but_no_question_and_none_comes_twice():
    whole = "\n".join(encyclopedia(0)["train"])
    _, questions = sample.questions()
    texts = [text for asked in questions.values() for text, _ in asked]

    unknown = {word for text in texts for word in text.split()} - set(whole.split())

    assert len(set(texts)) == len(texts)
    assert not unknown
    assert not any(text in whole for text in texts)


def test_an_article_keeps_to_one_kind():
    kinds = {name: label for label, names in enumerate(sample._names(0)) for name in names}
    articles = "\n".join(encyclopedia(0)["test"]).split("\n= ")

    for article in articles:
        assert len({kinds[word] for word in article.split() if word in kinds}) == 1


def test_lines_have_the_form_of_tokenised_wikitext():
    for lines in encyclopedia(0).values():
        for line, following in pairwise(lines):
            assert (line == "") != (following == "")
            assert line == " ".join(line.split())
            assert line == "" or line.endswith((".", "?")) or line == f"= {line[2:-2]} ="


# --- encoded task --------------------------------------------------------------------------------


WORDS = ["who", "is", "the", "mayor", "of", "Lomta"]
TOKENIZER = WordPiece(300).make(lambda: iter([" ".join(WORDS)] * 3))
CLS, SEP, PAD = TOKENIZER.cls, TOKENIZER.sep, TOKENIZER.pad


def words(number):
    """A text of as many tokens."""
    return " ".join(WORDS[i % len(WORDS)] for i in range(number))


def tokens(number):
    return TOKENIZER.encode(words(number))


def row(example, direction, length=50, **options):
    rows = encode_texts([example], TOKENIZER, length, direction, **options)
    return rows.batch(np.array([0]))["tokens"].tolist()[0]


def test_special_tokens_stand_around_and_between_texts():
    text, pair = Example(words(3)), Example(words(3), pair=words(2))

    assert row(text, "causal") == [*tokens(3), CLS]
    assert row(text, "bidirectional") == [CLS, *tokens(3), SEP]
    assert row(pair, "causal") == [*tokens(3), SEP, *tokens(2), CLS]
    assert row(pair, "bidirectional") == [CLS, *tokens(3), SEP, *tokens(2), SEP]


def test_a_batch_is_padded_to_its_own_longest_example():
    examples = [Example(words(2), 1), Example(words(4), 0), Example(words(9), 2)]

    batch = encode_texts(examples, TOKENIZER, 50, "causal").batch(np.array([1, 0]))

    assert batch["tokens"].tolist() == [[*tokens(4), CLS], [*tokens(2), CLS, PAD, PAD]]
    assert batch["mask"].sum(1).tolist() == [5, 3]
    assert batch["index"].tolist() == [1, 0]
    assert batch["label"].tolist() == [0, 1]


def test_examples_without_labels_give_batches_without_labels():
    batch = encode_texts([Example("who")], TOKENIZER, 50, "causal").batch(np.array([0]))

    assert set(batch) == {"tokens", "mask", "index"}


def test_labels_for_some_examples_only_are_refused():
    with pytest.raises(DataError, match="Example 2 of 2"):
        encode_texts([Example("who", 1), Example("is")], TOKENIZER, 50, "causal")


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_cut_texts_are_counted_in_one_warning(direction, caplog):
    examples = [Example(words(n)) for n in (3, 30, 40)]
    task = encode_texts(examples, TOKENIZER, 10, direction)

    warn_of_cuts(task.num_cut, len(task), 10)

    assert task.lengths.max() == 10
    (record,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "Cut 2 of 3 examples to 10 tokens" in record.getMessage()


def test_texts_that_fit_exactly_are_not_cut():
    one = encode_texts([Example(words(9))], TOKENIZER, 10, "causal")
    two = encode_texts([Example(words(4), pair=words(3))], TOKENIZER, 10, "bidirectional")

    assert (one.num_cut, two.num_cut) == (0, 0)


@given(
    first=st.integers(0, 30),
    second=st.integers(0, 30),
    length=st.integers(5, 40),
    direction=st.sampled_from(["causal", "bidirectional"]),
)
def test_the_longer_of_two_texts_is_cut_first(first, second, length, direction):
    encoded = row(Example(words(first), pair=words(second)), direction, length)
    num_special = 2 if direction == "causal" else 3
    room = length - num_special
    # The definition, one token at a time; of texts as long, the one that was longer keeps more.
    kept = [first, second]
    while sum(kept) > room:
        kept[0 if kept[0] > kept[1] or (kept[0] == kept[1] and first <= second) else 1] -= 1

    expected = [*tokens(kept[0]), SEP, *tokens(kept[1])]
    body = encoded[:-1] if direction == "causal" else encoded[1:-1]
    assert body == expected


@pytest.mark.parametrize(
    ("truncate", "first", "second", "kept"),
    [
        ("first", 9, 3, (3, 3)), ("first", 9, 5, (1, 5)), ("second", 3, 9, (3, 3)),
        ("second", 5, 9, (5, 1)), ("first", 0, 6, (0, 6)), ("second", 6, 0, (6, 0)),
    ],
)  # fmt: skip
def test_one_text_alone_is_cut_where_it_is_asked(truncate, first, second, kept):
    encoded = row(Example(words(first), pair=words(second)), "causal", 8, truncate=truncate)

    assert encoded == [*tokens(kept[0]), SEP, *tokens(kept[1]), CLS]


@pytest.mark.parametrize(
    ("truncate", "first", "second", "message"),
    [
        ("first", 9, 6, "line 7: the second text has 6 tokens, and data.length=8 leaves 6 for"),
        ("second", 60, 3, "the first text has 60 tokens, .* data.truncate=second makes no room"),
        ("second", 8, None, "line 7: the first text has 8 tokens, and data.length=8 leaves 7 for"),
    ],
)  # fmt: skip
def test_a_text_that_would_be_gone_is_refused(truncate, first, second, message):
    example = Example(words(first), pair=None if second is None else words(second), line=7)

    with pytest.raises(DataError, match=message):
        encode_texts([Example("who"), example], TOKENIZER, 8, "causal", truncate=truncate)


def test_lengths_count_the_special_tokens():
    task = encode_texts([Example(words(n)) for n in (0, 2)], TOKENIZER, 10, "bidirectional")

    assert task.lengths.tolist() == [2, 4]
    assert len(task) == 2


def test_a_length_without_room_for_text_is_refused():
    with pytest.raises(ConfigError, match=r"data\.length is 3"):
        encode_texts([Example("who")], TOKENIZER, 3, "causal")
