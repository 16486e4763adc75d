"""Classification by a word in a gap: patterns, words, tokens, logits."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests import tiny
from transfer_cli.data.labelled import Example
from transfer_cli.data.tokenizer_recipes import BytePairs, WordPiece
from transfer_cli.errors import ConfigError, DataError
from transfer_cli.generation.filling import encode_with_gaps
from transfer_cli.generation.prompt_layout import PromptLayout
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.objectives.beside_main_head import CrossView, SliceHeads
from transfer_cli.objectives.consistency import Consistency
from transfer_cli.runs.slices import Slice
from transfer_cli.seeds import ExampleNoise
from transfer_cli.tasks.classification import ClassificationTask
from transfer_cli.tasks.cloze.pattern import ClozePattern, label_words
from transfer_cli.tasks.cloze.task import Cloze, ClozeTask

WORDS = "who is the mayor of a river place person about : . , ( )"
TEXT = [WORDS] * 3
PIECES = WordPiece(300).make(lambda: iter(TEXT))
BYTES = BytePairs(500).make(lambda: iter(TEXT * 20))
TASK = ClassificationTask(("LOC", "HUM"))
NAMES = {"LOC": "river", "HUM": "person"}


def cloze_task(pattern, *, lines=False, before_text=None, truncate="longest_first", words=NAMES):
    task = Cloze(pattern, words).task_of(
        replace(TASK, truncate=truncate), words={}, lines=lines, before_text=before_text
    )
    assert isinstance(task, ClozeTask)
    return task


def row_of(task, example, direction, tokenizer=PIECES, length=60):
    batch = task.encode([example], tokenizer, length, direction).batch(np.array([0]))
    return batch["tokens"][0].tolist(), batch


def words(count):
    every = ["who", "is", "the", "mayor", "of"]
    return " ".join(every[n % len(every)] for n in range(count))


# --- patterns -------------------------------------------------------------------------------


def test_a_pattern_is_for_one_text_or_for_two():
    for pattern, example, said in (
        ("{text} {mask}", Example("who", pair="is"), r"two texts each.*has no \{pair\}"),
        ("{text} {pair} {mask}", Example("who"), r"one text each.*has a \{pair\}"),
    ):
        with pytest.raises(ConfigError, match=said):
            row_of(cloze_task(pattern), example, "causal")


# --- words ----------------------------------------------------------------------------------


def test_labels_without_words_are_words_themselves():
    assert label_words({}, ["a", "b"], "words") == (("a",), ("b",))
    assert label_words({"a": "one", "b": ["two", "three"]}, ["a", "b"], "words") == (
        ("one",), ("two", "three"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ({"NUM": [], "LOC": "a"}, "prompt.words.NUM: expected a word"),
        ({"NUM": 3, "LOC": "a"}, "prompt.words.NUM: expected a word"),
    ],
)
def test_words_that_do_not_fit_the_labels_are_refused(typed, message):
    with pytest.raises(ConfigError, match=message):
        label_words(typed, ["NUM", "LOC"], "prompt.words")


def test_words_that_are_typed_win_over_those_of_the_data():
    task = Cloze("{text} {mask}", {"LOC": ["river", "place"]}).task_of(
        TASK, words={"LOC": "who", "HUM": "person"}, lines=True, before_text=None
    )

    assert task.words == {"LOC": ("river", "place"), "HUM": ("person",)}


def test_the_space_before_a_gap_is_part_of_its_word():
    apart = ClozePattern("{text} is {mask}").word_token(BYTES, "river")
    joined = ClozePattern("{text} ({mask}").word_token(BYTES, ")")

    assert BYTES.pieces([apart]) == ["Ġriver"]
    assert BYTES.pieces([joined]) == [")"]


@pytest.mark.parametrize("word", ["rivers", "漢"])
def test_a_word_that_is_no_token_is_refused(word):
    with pytest.raises(ConfigError, match=rf"objective\.words: '{word}' is no single token"):
        ClozePattern("{text} {mask}").word_token(PIECES, word)


def test_two_labels_with_one_word_are_refused():
    with pytest.raises(ConfigError, match="LOC and HUM both have the token 'river'"):
        bound({"LOC": "river", "HUM": ["person", "river"]})


def test_as_a_further_loss_it_is_refused():
    with pytest.raises(ConfigError, match=r"losses\.second: a pattern writes all texts of a run"):
        Cloze("{text} {mask}").setup(TaskInfo(PIECES, TASK.labels, "second", TASK))


# --- tokens ---------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", [PIECES, BYTES], ids=["pieces", "bytes"])
@pytest.mark.parametrize("lines", [True, False])
@pytest.mark.parametrize("text", ["who is the mayor ?", "", "of Lima\nor the river", " who  is "])
@pytest.mark.parametrize(
    "pattern", ["{text} It is about {mask} .", "{mask}: {text}", "{text} ({mask}), who",
                "the {text}\\nAnswer: {mask}\\n.", "{text}{mask}"],
)  # fmt: skip
def test_a_masked_model_reads_what_fill_makes_of_the_text(pattern, text, lines, tokenizer):
    tokens, batch = row_of(
        cloze_task(pattern, lines=lines), Example(text), "bidirectional", tokenizer
    )

    filled = pattern.replace("\\n", "\n").replace("{text}", text).replace("{mask}", "[MASK]")
    around = "lines" if lines else "sentence"
    assert tokens == encode_with_gaps(filled, tokenizer, around)
    assert tokens[int(batch["gap"])] == tokenizer.mask


@pytest.mark.parametrize("tokenizer", [PIECES, BYTES], ids=["pieces", "bytes"])
@pytest.mark.parametrize("before_text", [None, 7])
@pytest.mark.parametrize("lines", [True, False])
@pytest.mark.parametrize("text", ["who is the mayor ?", "of Lima\nor the river", " who  is "])
@pytest.mark.parametrize("pattern", ["{text} It is about {mask}", "the {text}\\nAnswer: {mask}"])
def test_a_causal_model_reads_a_prompt(pattern, text, lines, before_text, tokenizer):
    before_text = None if lines else before_text
    task = cloze_task(pattern, lines=lines, before_text=before_text)
    tokens, batch = row_of(task, Example(text), "causal", tokenizer)

    prompt = pattern.replace("\\n", "\n").replace("{text}", text).removesuffix(" {mask}")
    has_lines = lines and tokenizer.sep != tokenizer.cls
    layout = PromptLayout(tokenizer, has_lines=has_lines, before_text=before_text)
    assert tokens == layout.encode(prompt)
    assert "gap" not in batch


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
@pytest.mark.parametrize("length", range(8, 20))
def test_where_a_text_is_too_long_the_pattern_stays(direction, length):
    pattern = "{text} It is about {mask}"
    task = cloze_task(pattern, lines=True)
    long, batch = row_of(task, Example(words(40)), direction, length=length)
    whole, _ = row_of(task, Example(words(40)), direction)
    none, _ = row_of(task, Example(""), direction)

    kept = length - len(none)
    assert len(long) == length
    assert long == [whole[0], *whole[1 : 1 + kept], *none[1:]]
    if direction == "bidirectional":
        assert long[int(batch["gap"])] == PIECES.mask


def test_of_two_texts_the_longer_one_is_cut():
    task = cloze_task("{text} : {pair} {mask}")
    example = Example(words(9), pair=words(3))

    tokens, _ = row_of(task, example, "bidirectional", length=11)

    text, pair = PIECES.encode(words(4)), PIECES.encode(words(3))
    assert tokens == [PIECES.cls, *text, *PIECES.encode(":"), *pair, PIECES.mask, PIECES.sep]
    only = cloze_task("{text} : {pair} {mask}", truncate="first")
    assert row_of(only, Example(words(3), pair=words(6)), "causal", length=9)[0] == [
        *PIECES.encode(words(2)), *PIECES.encode(":"), *PIECES.encode(words(6)),
    ]  # fmt: skip
    with pytest.raises(DataError, match=r"data\.truncate=first makes no room"):
        row_of(only, Example(words(3), pair=words(9)), "causal", length=9)


def test_a_text_that_holds_the_name_of_the_mask_has_one_gap_all_the_same():
    tokens, batch = row_of(cloze_task("{text} {mask}"), Example("[MASK] who"), "bidirectional")

    assert tokens.count(PIECES.mask) == 1
    assert int(batch["gap"]) == len(tokens) - 2


# --- logits ---------------------------------------------------------------------------------


def bound(names=NAMES, pattern="{text} {mask}"):
    objective = Cloze(pattern, names)
    task = objective.task_of(TASK, words={}, lines=True, before_text=None)
    objective.setup(TaskInfo(PIECES, TASK.labels, task=task))
    return objective


def made(direction, names=NAMES):
    """Return an objective, a lively model and a batch of three texts."""
    objective = bound(names)
    model = tiny.at_work(objective, objective.info.task, PIECES, direction=direction)
    examples = [Example("who is the mayor", 1), Example("the river", 0), Example("", 0)]
    data = objective.info.task.encode(examples, PIECES, 20, direction)
    return objective, model, data.batch(np.arange(3))


def vocabulary_logits(model, tokens, place):
    """Return what the language-model head says at a place of a row."""
    tokens_1T = torch.tensor([tokens])
    states = model.backbone(tokens_1T, torch.ones_like(tokens_1T, dtype=torch.bool))
    table = model.backbone.token_embedding.weight
    return model.heads["lm"](model.readout(states)[0, place], table)


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_a_logit_is_the_mean_of_those_of_the_words_at_the_gap(direction):
    objective, model, batch = made(direction, {"LOC": ["river", "place"], "HUM": "person"})

    logits_BC = objective.outputs(model, batch, Encoding(model, batch))

    river, place, person = (PIECES.encode(word)[0] for word in ("river", "place", "person"))
    for tokens, mask, logits_C in zip(batch["tokens"], batch["mask"], logits_BC, strict=True):
        row = tokens[mask].tolist()
        gap = len(row) - 1 if direction == "causal" else row.index(PIECES.mask)
        logits_V = vocabulary_logits(model, row, gap)
        wanted = torch.stack([(logits_V[river] + logits_V[place]) / 2, logits_V[person]])
        torch.testing.assert_close(logits_C, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("perturb", ["mask", "delete", "unigram"])
def test_a_perturbed_copy_is_asked_at_the_same_gap(perturb):
    objective, model, batch = made("bidirectional")
    consistency = Consistency(perturb, rate=0.5)
    consistency.setup(TaskInfo(PIECES, TASK.labels, "rest", objective.info.task, objective))
    data = objective.info.task.encode([Example("who is the mayor")], PIECES, 20, "bidirectional")
    consistency.on_data(data)

    prepared = consistency.prepare(batch, ExampleNoise(0, "test"))
    loss = consistency.loss_sums(model, prepared, Encoding(model, prepared))["loss"]

    gap_B = batch["gap"]
    assert (prepared["tokens_copy"][torch.arange(3), gap_B] == PIECES.mask).all()
    assert prepared["mask_copy"][torch.arange(3), gap_B].all()
    assert loss.item() > 0


def test_a_head_that_is_new_is_refused():
    objective, model, _ = made("causal")
    names = {name for name, _ in model.named_parameters()}

    objective.check_start(model, names)
    for inherited in (set(), {name for name in names if name.startswith("backbone.")}):
        with pytest.raises(ConfigError, match=r"cloze asks a language .* heads\.lm\.bias is new"):
            objective.check_start(model, inherited)


@pytest.mark.parametrize("further", [SliceHeads({"all": Slice(length=(0, None))}), CrossView()])
def test_there_is_no_second_head_like_that_of_the_language_model(further):
    main = bound()

    with pytest.raises(ConfigError, match=r"losses.further: .* none of its own \(Cloze\)"):
        further.setup(TaskInfo(PIECES, main.info.labels, "further", main=main))
