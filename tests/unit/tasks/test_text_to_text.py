"""Texts made from others: their tokens, their loss, what a model writes, how right it is."""

import numpy as np
import pytest
import torch

from tests import tiny
from transfer_cli.batch import IGNORE
from transfer_cli.data.columns import Wanted, choose
from transfer_cli.data.tokenizer_recipes import WordPiece
from transfer_cli.errors import ConfigError, DataError
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.seeds import ExampleNoise
from transfer_cli.tasks.scoring import rouge_l
from transfer_cli.tasks.text_to_text.objective import PrefixLM
from transfer_cli.tasks.text_to_text.task import TextPairsTable, TextToTextExample, TextToTextTask

WORDS = "the old bridge is red blue over a river and new"
TOKENIZER = WordPiece(size=80).make(lambda: iter([WORDS] * 3))
PAIRS = [TextToTextExample("the old bridge", "red"), TextToTextExample("a river", "is blue")]


def encoded(direction="causal", examples=PAIRS, length=16, **options):
    data = TextToTextTask(**options).encode(examples, TOKENIZER, length, direction)
    return data.batch(np.arange(len(examples)))


def asked(direction="causal", **options):
    """Return an objective, its model and a batch of both pairs."""
    objective = PrefixLM()
    objective.setup(TaskInfo(TOKENIZER, task=TextToTextTask(target_length=4, **options)))
    backbone = Backbone(tiny.shape(direction=direction, positions=24), TOKENIZER.size)
    model = TransferModel(backbone, objective.modules(backbone)).eval()
    tiny.lively(model, 0)
    batch = encoded(direction, target_length=4, **options)
    return objective, model, objective.prepare(batch, ExampleNoise(0, "test"))


@pytest.mark.parametrize(
    ("direction", "source", "end"),
    [("causal", "the old bridge [SEP]", "[CLS]"),
     ("bidirectional", "[CLS] the old bridge [SEP]", "[SEP]")],
)  # fmt: skip
def test_the_target_and_its_end_are_learnt_after_the_source(direction, source, end):
    batch = encoded(direction, PAIRS[:1])

    begin = len(source.split())
    assert TOKENIZER.pieces(batch["tokens"][0].tolist()) == [*source.split(), "red", end]
    assert batch["prefix"].tolist() == [begin]
    assert batch["segment"][0].tolist() == [0] * begin + [1, 1]
    target = batch["next_tokens"][0]
    assert TOKENIZER.pieces(target[target != IGNORE].tolist()) == ["red", end]
    assert (target != IGNORE).nonzero().flatten().tolist() == [begin - 1, begin]


def test_an_unanswered_source_is_cut_as_an_answered_one():
    text = " ".join(["bridge"] * 30)
    answered = encoded(examples=[TextToTextExample(text, "red " * 30)])
    alone = encoded(examples=[TextToTextExample(text)])

    assert answered["tokens"].shape == (1, 16)
    assert alone["prefix"].tolist() == answered["prefix"].tolist() == [8]
    assert torch.equal(alone["tokens"], answered["tokens"][:, :8])
    assert "next_tokens" not in alone


@pytest.mark.parametrize(
    ("options", "examples", "error", "said"),
    [
        ({"target_length": 15}, PAIRS, ConfigError, "14 at most may be a target's"),
        ({}, [PAIRS[0], TextToTextExample("new")], DataError, "Example 2 of 2 has no target"),
    ],
)
def test_what_cannot_be_laid_out_is_refused(options, examples, error, said):
    with pytest.raises(error, match=said):
        encoded(examples=examples, **options)


def test_without_a_prefix_it_is_a_causal_language_model_bit_for_bit():
    objective, model, batch = asked(prefix=False)
    plain = CausalLM()
    plain.setup(TaskInfo(TOKENIZER))

    losses = [
        each.loss_sums(model, batch, Encoding(model, batch))["loss"] for each in (objective, plain)
    ]

    assert "prefix" not in batch
    assert torch.equal(*losses)
    states = model.backbone(batch["tokens"], batch["mask"], batch["segment"])
    assert torch.equal(Encoding(model, batch).top, model.readout(states))


def test_without_a_prefix_a_bidirectional_backbone_reads_from_left_to_right():
    _, model, batch = asked("bidirectional", prefix=False)
    other = {**batch, "tokens": batch["tokens"].clone()}
    other["tokens"][:, 2] = TOKENIZER.token("and")

    differs = (Encoding(model, batch).top != Encoding(model, other).top).any(-1)

    assert not differs[:, :2].any()
    assert differs[:, 2].all()


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_a_later_token_of_a_target_changes_no_earlier_prediction(direction):
    _, model, batch = asked(direction)
    begin, other = int(batch["prefix"][1]), {**batch, "tokens": batch["tokens"].clone()}
    other["tokens"][1, begin] = TOKENIZER.token("and")

    differs = (Encoding(model, batch).top != Encoding(model, other).top).any(-1)

    assert not differs[0].any()
    assert not differs[1, :begin].any()
    assert differs[1, begin]


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_an_answer_does_not_depend_on_the_target_beside_it(direction):
    objective, model, batch = asked(direction)
    sources = [TextToTextExample(each.source) for each in PAIRS]
    alone = encoded(direction, sources, target_length=4)

    answers = [
        objective.predictions(model, each, Encoding(model, each))["answer"]
        for each in (batch, alone)
    ]

    assert answers[0].shape[0] == 2
    assert torch.equal(answers[0][:, :4], answers[1][:, :4])


@pytest.mark.parametrize(
    ("given", "said", "expected"),
    [
        ("the cat sat", "The cat, sat!", 1),
        ("police killed the gunman", "police kill the gunman", 0.75),
        ("police killed the gunman", "the gunman kill police", 0.5),
        ("a b c d", "a x c", 2 * 2 / 7),
        ("", "", 1),
        ("a", "", 0),
    ],
)
def test_rouge_l_is_the_f1_of_the_longest_common_subsequence(given, said, expected):
    assert rouge_l(given, said) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("columns", "typed", "found"),
    [
        (["id", "source", "target"], Wanted(written=True), ("source", "target")),
        (["article", "highlights"], Wanted(written=True), ("article", "highlights")),
        (["source", "said"], Wanted(label="said", written=True), ("source", "said")),
        (["de", "en"], Wanted("de", label="en", written=True), ("de", "en")),
    ],
)
def test_columns_are_found_by_usual_names(columns, typed, found):
    rows = [{name: f"{name} {number}" for name in columns} for number in range(30)]

    chosen = choose(columns, rows, typed, "a.csv")

    assert (chosen.text, chosen.label, chosen.pair) == (*found, None)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["source,target", "red,", "a,b"], r"a.csv, line 2: 'target' is empty"),
        (["source,target", " ,red", "a,b"], r"a.csv, line 2: 'source' is empty"),
        (["de,en", "rot,red", "a,b"], r"data.header="),
        (["source,target", "red"], r"a.csv, line 2"),
    ],
)
def test_bad_rows_are_refused_with_file_and_line(tmp_path, lines, said):
    path = tmp_path / "a.csv"
    path.write_text("\n".join(lines) + "\n")

    with pytest.raises(DataError, match=said):
        TextPairsTable(train=str(path)).load(tmp_path, 0)
