"""Legend: L places, H heads, S sequences, T tokens."""

import base64
import io
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests import attending, tiny
from tests.attending import TEXTS, subject
from transfer_cli.adaptation.edits import GatedPrefix, PALs
from transfer_cli.analysis.analysis import Material
from transfer_cli.analysis.attention_maps import AttentionMaps
from transfer_cli.analysis.head_maps import (
    KINDS,
    MEASURES,
    HeadSummaries,
    ReadSequence,
    attention_maps,
    rollout,
    round_to_units,
    sequences_of,
)
from transfer_cli.batch import with_facts
from transfer_cli.data.corpus import TextBlocks
from transfer_cli.data.labelled import Example
from transfer_cli.data.split import Split
from transfer_cli.engine.precision import Precision
from transfer_cli.errors import DataError, NotFiniteError
from transfer_cli.model.probes import set_probe
from transfer_cli.objectives.base import Encoding
from transfer_cli.reports.page import analyses_page
from transfer_cli.reports.sections import finding_html
from transfer_cli.tasks.choice.task import ChoiceTask
from transfer_cli.tasks.classification import ClassificationTask
from transfer_cli.tasks.dialog.task import DialogTask
from transfer_cli.tasks.span.task import SpanTask
from transfer_cli.tasks.tagging.task import TaggingTask
from transfer_cli.tasks.text_to_text.task import TextToTextTask


@pytest.fixture(scope="module")
def finding():
    return AttentionMaps(texts=3)(subject(attending.model()))


def section_of(result):
    return finding_html(result, [])


def arrays(result):
    return np.load(io.BytesIO(result.files["maps.npz"]))


def test_rows_of_all_that_is_written_sum_to_one_and_nobody_looks_ahead(finding):
    first = finding.as_json()["texts"][0]
    size = len(first["pieces"])

    for maps in (first["maps"], first["rollout"]):
        shares = np.array(maps)
        assert shares.shape[-2:] == (size, size)
        np.testing.assert_allclose(shares.sum(-1), 1, atol=1e-9)
        assert not np.triu(shares, 1).any()
    stored = arrays(finding)
    assert stored["maps_0"].dtype == np.float16
    np.testing.assert_allclose(stored["maps_0"], first["maps"], atol=6e-4)
    for number, text in enumerate(finding.as_json()["texts"]):
        assert stored[f"pieces_{number}"].tolist() == text["pieces"]
        np.testing.assert_allclose(stored[f"maps_{number}"].astype(float).sum(-1), 1, atol=3e-3)


def test_maps_are_those_of_the_first_texts_of_a_file_and_of_texts_spread_over_a_split():
    few = AttentionMaps(texts=3)

    first = few(subject(attending.model())).as_json()["texts"]
    spread = few(subject(attending.model(), split="test")).as_json()["texts"]

    assert [text["example"] for text in first] == [0, 1, 2]
    assert [text["text"] for text in first] == list(TEXTS[:3])  # without special tokens
    assert [text["example"] for text in spread] == [0, 2, 4]


@pytest.mark.parametrize(
    ("direction", "start", "end"),
    [("causal", "\u0120the", "[CLS]"), ("bidirectional", "[CLS]", "[SEP]")],
)
def test_a_long_text_is_cut_before_it_is_read_and_its_size_is_said(direction, start, end):
    looked_at = subject(attending.model(direction=direction), TEXTS[-1:])

    result = AttentionMaps(longest=8)(looked_at)

    (text,) = result.as_json()["texts"]
    assert len(text["pieces"]) == 8
    assert (text["pieces"][0], text["pieces"][-1]) == (start, end)
    assert text["tokens_of_all"] > 20
    assert f'"tokens":{text["tokens_of_all"]}' in section_of(result)


def test_summaries_are_of_every_head_and_do_not_depend_on_batches(finding):
    heads = finding.as_json()["heads"]
    alone = AttentionMaps(texts=3)(subject(attending.model(), batch=1)).as_json()["heads"]

    assert [(head["block"], head["head"]) for head in heads] == [
        (block, head) for block in range(3) for head in range(2)
    ]
    for one, other in zip(heads, alone, strict=True):
        assert one == pytest.approx(other, abs=2e-4)
    assert finding.as_json()["values"]["texts summarised"] == len(TEXTS)


def test_a_text_with_several_sequences_is_summarised_as_one():
    shown = subject(attending.model(segments=2), shown=ChoiceTask.sample())

    made = AttentionMaps()(shown).as_json()

    assert made["values"]["texts summarised"] == len(shown.split.encoded.examples)


def test_the_same_again_gives_the_same_and_the_model_is_left_as_it_was(finding):
    model = attending.model()
    before = tiny.weights_of(model)

    again = AttentionMaps(texts=3)(subject(model))

    assert json.dumps(finding.as_json()) == json.dumps(again.as_json())
    assert finding.files == again.files
    assert finding.view == again.view
    assert tiny.same(before, tiny.weights_of(model))
    assert model.backbone.probe is None


def test_rows_sum_to_one_in_half_precision_too():
    half = Precision("bf16", torch.device("cpu"))
    looked_at = replace(subject(attending.model()), precision=half)

    (sequence,) = sequences_of(looked_at.split, [1])
    maps = attention_maps(looked_at, sequence).maps

    np.testing.assert_allclose(maps.sum(-1), 1, atol=1e-5)
    assert not np.triu(maps, 1).any()


PAIRS = (
    ClassificationTask(("one", "other")),
    [
        Example("Where ?", pair="There is the wall ."),
        Example("How many have a well ?", pair="Two ."),
    ],
)
TASKS = (ChoiceTask, DialogTask, SpanTask, TaggingTask, TextToTextTask)


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
@pytest.mark.parametrize("task", [None, *TASKS], ids=lambda task: task.name if task else "pairs")
def test_sequences_are_read_alone_as_they_are_in_their_batch(task, direction):
    model = attending.model(direction=direction, segments=2)
    looked_at = subject(model, shown=PAIRS if task is None else task.sample())
    rows = np.arange(len(looked_at.split.data))
    batch, beside = with_facts(looked_at.split.data.batch(rows)), {}
    with torch.no_grad(), set_probe(model.backbone, probabilities=beside.__setitem__):
        _ = Encoding(model, batch).states
    together = torch.stack(list(beside.values()), 1)[batch["mask"].flatten(0, -2).any(1)]

    sequences = list(sequences_of(looked_at.split, rows))

    assert len(sequences) == len(together)
    for sequence, maps_LHTT in zip(sequences, together, strict=True):
        size = len(sequence.tokens)
        alone = attention_maps(looked_at, sequence).maps
        np.testing.assert_allclose(alone, maps_LHTT[..., :size, :size], atol=1e-5, rtol=0)
        assert not maps_LHTT[..., :size, size:].any()


def test_texts_on_the_page_are_texts_and_its_rows_of_bytes_sum_to_255(finding):
    page = analyses_page("tiny", {"attention": finding}, {})

    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "\u202e" not in page
    data = json.loads(re.search(r"<script[^>]*json[^>]*>(.*?)</script>", page, re.S)[1])
    assert "".join(data["texts"][1]["pieces"][:-1]).startswith("<script>alert(1)</script>&&lt;")
    for text in data["texts"]:
        size = len(text["pieces"])
        lower = np.tril(np.ones((size, size), bool))
        for name, shape in (("maps", (3, 2, -1)), ("rollout", (3, -1))):
            packed = np.frombuffer(base64.b64decode(text[name]), np.uint8).reshape(shape)
            units = np.zeros((*packed.shape[:-1], size, size), int)
            units[..., lower] = packed
            assert text["is_lower"]
            assert (units.sum(-1) == 255).all()


def test_what_is_too_long_for_a_page_is_in_the_file_alone():
    result = AttentionMaps(longest=100)(subject(attending.model(), (TEXTS[0], TEXTS[-1] * 3)))

    assert "Not shown here: 1 text" in section_of(result)
    assert section_of(result).count("<option") == 1
    assert np.load(io.BytesIO(result.files["maps.npz"]))["maps_1"].shape[-1] > 64
    assert len(json.dumps(result.as_json(), indent=2)) < 2**20


@pytest.mark.parametrize(
    ("edit", "said"), [(GatedPrefix(3), "gated prefix"), (PALs(4), "heads of their own")], ids=str
)
def test_what_an_edit_adds_beside_the_maps_is_said(edit, said, finding):
    model = attending.model()
    edit(model, {})

    result = AttentionMaps(texts=1)(subject(model))

    assert not finding.notes
    assert said in result.notes[0]
    assert said in section_of(result)


def test_places_of_a_shared_block_have_maps_of_their_own():
    result = AttentionMaps(texts=1)(subject(attending.model(share="all")))

    maps = np.array(result.as_json()["texts"][0]["maps"])
    assert len(maps) == 3
    assert np.abs(maps[0] - maps[1]).max() > 0.01
    assert "share weights" in result.notes[0]


def test_blocks_of_running_text_are_cut_to_their_first_tokens():
    looked_at, split = subject(attending.model()), Split("test", tiny.blocks(200, 24))
    material = Material("text", ("test",), None, lambda _: split)
    looked_at = replace(looked_at, material=material, split_names=("test",))

    first = AttentionMaps(texts=2, longest=6)(looked_at).as_json()["texts"][0]

    assert first["pieces"] == looked_at.tokenizer.pieces(split.data.text.tokens[:6])
    assert first["tokens_of_all"] == 24


def test_a_model_that_is_not_finite_is_refused():
    model = attending.model()
    with torch.no_grad():
        model.backbone.blocks[0].attention.packed.weight.fill_(float("nan"))

    with pytest.raises(NotFiniteError, match="the model's attention is not finite"):
        AttentionMaps()(subject(model))


def test_a_split_without_a_text_is_refused():
    with pytest.raises(DataError, match="input holds no text"):
        AttentionMaps()(subject(attending.model(), ()))


SEP = tiny.VOCABULARY.sep


def batch_of(*rows):
    return tiny.rows_to_batch(rows)


def summarised(maps_SHTT, batch):
    summaries = HeadSummaries(1, maps_SHTT.shape[1], SEP)
    summaries.add(0, maps_SHTT, batch)
    return {name: means[0].tolist() for name, means in summaries.means().items()}


def test_a_head_that_looks_everywhere_alike_has_an_entropy_of_ln_t():
    length, lengths = 7, range(1, 8)
    maps = torch.ones(1, 1, length, length).tril()

    means = summarised(maps, batch_of([7] * length))

    assert means["entropy"] == pytest.approx([sum(map(math.log, lengths)) / length])
    assert means["distance"] == pytest.approx([sum((t - 1) / 2 for t in lengths) / length])
    before = sum(1 / t for t in lengths[1:]) / (length - 1)
    assert means["previous"] == means["first"] == pytest.approx([before])
    assert means["next"] == [0]


def test_a_head_that_looks_at_one_kind_of_token_has_all_of_its_share():
    tokens, size = [2, 9, SEP, 9, 9, SEP], 6
    maps = torch.zeros(1, 5, size, size)
    for t in range(size):
        places = [max(t - 1, 0), min(t + 1, size - 1), t, 0, size - 1]
        for head, place in enumerate(places):
            maps[0, head, t, place] = 1

    means = summarised(maps, batch_of(tokens))

    for head, kind in enumerate(["previous", "next", "self", "first", "end"]):
        assert means[kind][head] == pytest.approx(1)
        assert means["entropy"][head] == 0
    assert means["separator"] == pytest.approx([1 / 6, 3 / 6, 2 / 6, 0, 1])
    assert means["distance"] == pytest.approx([5 / 6, 5 / 6, 0, 15 / 6, 15 / 6])


def test_padding_counts_nowhere_and_batches_add_up():
    rows, generator = [[2, 9, 9, SEP], [2, SEP], [2, 9, 9, 9, 9, 9, SEP]], torch.Generator()
    maps = []
    for row in rows:
        drawn = torch.rand(1, 2, len(row), len(row), generator=generator.manual_seed(len(row)))
        maps.append(drawn / drawn.sum(-1, keepdim=True))
    together = torch.rand(3, 2, 7, 7)
    for at, shares in enumerate(maps):
        size = shares.shape[-1]
        together[at, :, :size] = 0
        together[at, :, :size, :size] = shares[0]
    alone = HeadSummaries(1, 2, SEP)
    for row, shares in zip(rows, maps, strict=True):
        alone.add(0, shares, batch_of(row))

    summaries_together = HeadSummaries(1, 2, SEP)
    summaries_together.add(0, together, batch_of(*rows))

    assert summaries_together.num_tokens == 13
    assert list(summaries_together.means()) == list(MEASURES)
    for name, means in summaries_together.means().items():
        assert_close(means, alone.means()[name], rtol=0, atol=1e-6)


def test_what_no_text_has_has_no_share():
    means = summarised(torch.eye(3)[None, None], batch_of([9, 9, 9]))

    assert means.keys() == set(MEASURES) - {"separator"}
    assert means["self"] == [1]
    assert set(KINDS) < set(MEASURES)


def drawn(*shape):
    weights = np.random.default_rng(0).random(shape) ** 4
    return weights / weights.sum(-1, keepdims=True)


def test_rollout_is_the_product_of_mean_attention_and_residual_over_two():
    maps = drawn(2, 3, 4, 4)

    products = rollout(maps)

    first, second = (maps.mean(1) + np.eye(4)) / 2
    np.testing.assert_allclose(products, [first, second @ first])


def test_whole_numbers_sum_to_their_units_are_less_than_one_off_and_zero_stays():
    shares = np.tril(drawn(3, 50, 50).astype(np.float32))
    shares /= shares.sum(-1, keepdims=True)

    for units in (255, 10_000):
        numbers = round_to_units(shares, units)

        assert (numbers.sum(-1) == units).all()
        assert np.abs(numbers - shares * units).max() < 1.001
        assert not np.triu(numbers, 1).any()
        assert numbers.min() >= 0


def test_what_is_left_goes_to_the_largest_remainders():
    shares = np.array([[0.5, 0.3, 0.2], [1, 1, 1]])
    assert round_to_units(shares, 8).tolist() == [[4, 2, 2], [3, 3, 2]]


def sequence(length, **by_position):
    return ReadSequence(0, "", torch.arange(length), by_position, torch.tensor(5), length)


def test_choices_of_an_example_are_sequences_of_their_own_without_padding():
    data = tiny.groups(4)

    sequences = list(sequences_of(Split("test", data), [0, 3]))

    batch = data.batch(np.array([0, 3]))
    assert [(text.example, text.part) for text in sequences] == [
        (0, "choice 1"), (0, "choice 2"), (3, "choice 1"), (3, "choice 2"),
    ]  # fmt: skip
    rows = [
        row[mask].tolist()
        for row, mask in zip(
            batch["tokens"].flatten(0, 1), batch["mask"].flatten(0, 1), strict=True
        )
        if mask.any()
    ]
    assert [text.tokens.tolist() for text in sequences] == rows


def test_windows_say_of_which_example_they_are():
    split = Split("test", tiny.Questions(examples=4), example_of=np.array([0, 1, 1, 2]))

    sequences = list(sequences_of(split, range(4)))

    assert [text.example for text in sequences] == [0, 1, 1, 2]
    assert [text.part for text in sequences] == ["", "window 1 of 2", "window 2 of 2", ""]


def test_blocks_of_text_keep_their_documents():
    text = tiny.text(40)
    object.__setattr__(text, "starts", np.array([0, 10, 30]))

    first, second = sequences_of(Split("test", TextBlocks(text, 16, 0)), [0, 1])

    assert first.tokens.tolist() == text.tokens[:16].tolist()
    assert first.by_position["document"].tolist() == [1] * 10 + [2] * 6
    assert second.by_position["document"].tolist() == [2] * 14 + [3] * 2
    assert first.prefix is None


def test_a_cut_text_keeps_its_end_and_a_cut_block_has_none():
    long = sequence(9, segment=torch.arange(9) // 5)

    kept = long.cut(4, keeps_end=True)

    assert kept.tokens.tolist() == [0, 1, 2, 8]
    assert kept.by_position["segment"].tolist() == [0, 0, 0, 1]
    assert (int(kept.prefix), kept.length) == (4, 9)
    assert long.cut(4, keeps_end=False).tokens.tolist() == [0, 1, 2, 3]
    assert long.cut(9, keeps_end=True) is long
