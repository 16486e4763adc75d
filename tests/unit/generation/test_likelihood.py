"""Log-probabilities of texts, prompts and sentences: padding, batches and caches change nothing.

Legend: V vocabulary.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.data.cloze import MinimalPair
from transfer_cli.data.tokenizer_recipes import WordPiece
from transfer_cli.errors import ConfigError, DataError, NotFiniteError
from transfer_cli.generation.filling import (
    Candidate,
    encode_with_gaps,
    fill_gaps,
    insert_candidates,
    split_at_gaps,
)
from transfer_cli.generation.likelihood import Ending, Gap, PrefixScorer, score_rows
from transfer_cli.generation.prompt_layout import PromptLayout
from transfer_cli.generation.prompts import (
    Template,
    calibrate_probabilities,
    draw_shots,
    encode_ending,
    label_probabilities,
    normalised_score,
)
from transfer_cli.generation.sentences import (
    JudgedPair,
    SentenceScorer,
    accuracy_by_group,
    judge_pairs,
    longer_wins,
)
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import TaskInfo
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.language_model import token_logits
from transfer_cli.objectives.masked_lm import MaskedLM

ROWS = [
    Ending([3, 9, 17, 30, 8], 1),
    Ending([3, 9, 17, 30, 8, 11, 12], 5),
    Ending([3, 9, 17, 5], 3),
    Ending([3, 9, 17, 30, 8, 11, 13, 14, 15], 4),
]


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.inference_mode():
        yield


def lively(objective, **changes):
    made = tiny.model(objective, **changes)
    tiny.lively(made, std=0.25)
    return made.eval()


def by_definition(model, tokens, first):
    """Return the log-probability of each token from `first` on, from one pass without padding."""
    tokens_1T = torch.tensor([tokens])
    hidden = model.backbone(tokens_1T, torch.ones_like(tokens_1T, dtype=torch.bool), padded=False)
    logits = token_logits(model, model.readout(hidden))
    shares = logits[0].log_softmax(-1)
    return torch.stack([shares[at - 1, tokens[at]] for at in range(first, len(tokens))])


@pytest.mark.parametrize("kind", ["learned", "sinusoidal", "rotary"])
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_ends_are_scored_as_alone_in_any_batch(batch, kind):
    model = lively(CausalLM(), position_kind=kind)

    scores = score_rows(model, ROWS, 0, batch)

    for row, row_scores in zip(ROWS, scores, strict=True):
        assert_close(row_scores, by_definition(model, list(row.tokens), row.first))


@pytest.mark.parametrize("begun", [[], [3], [3, 9, 17], [3, 9, 17, 30, 8], [7, 7]])
@pytest.mark.parametrize("kind", ["learned", "rotary"])
def test_what_is_read_once_changes_nothing(begun, kind):
    model = lively(CausalLM(), position_kind=kind)
    read = PrefixScorer(model, begun)

    for rows in (ROWS, ROWS[:1], ROWS[1:3]):
        for one, other in zip(read.score(rows), score_rows(model, rows, 0, 8), strict=True):
            assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_gaps_are_scored_as_alone_in_any_batch():
    model = lively(MaskedLM())
    rows = [
        Gap([2, 9, 4, 8, 3], 2, [10, 11, 12]),
        Gap([2, 4, 3], 1, [9]),
        Gap([2, 9, 4, 4, 8, 13, 3], 3, [5, 6]),
    ]

    scores = score_rows(model, rows, 0, 8)

    for row, row_scores in zip(rows, scores, strict=True):
        (alone,) = score_rows(model, [row], 0, 1)
        assert_close(row_scores, alone)
        everything = Gap(row.tokens, row.place, range(tiny.VOCABULARY.size))
        assert_close(score_rows(model, [everything], 0, 1)[0].exp().sum(), torch.tensor(1.0))


def test_a_diverged_model_is_an_error():
    model = tiny.model(CausalLM()).eval()
    model.backbone.token_embedding.weight[9] = torch.nan

    with pytest.raises(NotFiniteError):
        score_rows(model, ROWS, 0, 2)


ITEM = "Question: {text}\nAnswer Type: {label}"


def test_a_prompt_ends_before_the_space_of_its_answer():
    template = Template(ITEM, head="Say what is asked for.")
    shot = template.fill("How many ?", None, "Number")

    assert template.prompt([shot], "Where ?", None) == (
        "Say what is asked for.\n\n"
        "Question: How many ?\nAnswer Type: Number\n\n"
        "Question: Where ?\nAnswer Type:"
    )
    assert template.answer("Location") == " Location"
    assert template.bare_prompt == "Answer Type:"
    assert Template("{text} {label}").bare_prompt == ""


def test_a_text_that_looks_like_a_field_is_text():
    template = Template("{text} / {pair} = {label} .")

    assert template.fill("{label}", "{text}", "yes") == "{label} / {text} = yes ."
    assert template.prompt([], "{label} {pair}", "b") == "{label} {pair} / b ="


@pytest.mark.parametrize("item", ["{text}", "{label}", "{text} {label} {label}", ""])
def test_an_item_needs_a_text_and_one_label(item):
    with pytest.raises(ConfigError, match=r"prompt\.item"):
        Template(item)


LAYOUTS = [{}, {"has_lines": False}, {"has_lines": False, "before_text": 2}]


@pytest.mark.parametrize("prompt", ["the cat", ""])
@pytest.mark.parametrize("changes", LAYOUTS)
def test_an_answer_begins_where_its_tokens_do(prompt, changes, tokenizer):
    layout = PromptLayout(tokenizer, **changes)

    row = encode_ending(layout, prompt, " sat")

    assert tokenizer.decode(row.tokens[row.first :]).strip() == "sat"
    begins = [tokenizer.sep] if layout.before_text is None else [layout.before_text]
    assert row.tokens[: row.first] == (layout.encode(prompt) or begins)


def test_tokens_that_join_prompt_and_answer_belong_to_the_answer():
    known = {"ab": [1, 2], "abc": [1, 5], "ab ": [1, 2]}
    layout = PromptLayout(SimpleNamespace(encode=known.__getitem__, sep=0), has_lines=False)

    row = encode_ending(layout, "ab", "c")

    assert (row.tokens, row.first) == ([1, 5], 1)
    with pytest.raises(ConfigError, match="no tokens of its own"):
        encode_ending(layout, "ab", " ")


@pytest.mark.parametrize(
    ("norm", "expected"),
    [("none", -6.0), ("token", -2.0), ("char", -1.2), ("byte", -1.0), ("unconditional", -4.0)],
)
def test_scores_are_normalised_by_definition(norm, expected):
    score = normalised_score([-1.0, -2.0, -3.0], " caf\u00e9s", norm, [-2.0])

    assert score == pytest.approx(expected)


def test_several_words_of_a_label_add_their_probabilities():
    scores = [[math.log(0.1), math.log(0.2)], [math.log(0.3)], [math.log(0.4)]]
    probabilities = label_probabilities(scores)

    np.testing.assert_allclose(probabilities, [0.3, 0.3, 0.4])


def test_calibration_divides_by_the_bias():
    flipped = calibrate_probabilities(np.array([0.6, 0.4]), np.array([0.75, 0.25]))

    np.testing.assert_allclose(flipped, [1 / 3, 2 / 3])
    bias = np.array([0.7, 0.2, 0.1])
    np.testing.assert_allclose(calibrate_probabilities(bias, bias), [1 / 3] * 3)


def test_shots_are_so_many_of_each_label_and_follow_from_the_seed():
    labels = [0, 1, 2] * 10

    shots = draw_shots(labels, 2, seed=3)

    assert sorted(labels[number] for number in shots) == [0, 0, 1, 1, 2, 2]
    assert shots == draw_shots(labels, 2, seed=3)
    assert shots != draw_shots(labels, 2, seed=4)
    assert draw_shots(labels, 0, seed=3) == []
    with pytest.raises(ConfigError, match="only 10 training examples"):
        draw_shots(labels, 11, seed=3)


TEXTS = ["The river is near .", "The rivers are near the river .", "Rivers !"]
TOKENIZER = WordPiece(60).make(lambda: iter(TEXTS))
KINDS = {"causal": CausalLM, "bidirectional": MaskedLM}


def scorer(direction, *, uniform=False):
    torch.manual_seed(0)
    trunk = Backbone(tiny.shape(direction=direction), TOKENIZER.size)
    model = TransferModel(trunk, tiny.bound(KINDS[direction]()).modules(trunk)).eval()
    tiny.lively(model)
    if uniform:
        trunk.token_embedding.weight.zero_()
        model.heads["lm"].bias.zero_()
    reads = PromptLayout(TOKENIZER) if direction == "causal" else "sentence"
    return SentenceScorer(model, TOKENIZER, reads, batch=2, scores_first=True, within_word=True)


@pytest.mark.parametrize("direction", KINDS)
def test_a_model_that_knows_nothing_gives_each_token_its_share_of_the_vocabulary(direction):
    sums, counts = scorer(direction, uniform=True).score(TEXTS)

    assert counts == [len(row) for row in TOKENIZER.encode_batch(TEXTS)]
    assert sums == pytest.approx([-count * math.log(TOKENIZER.size) for count in counts], rel=1e-5)


@pytest.mark.parametrize("direction", KINDS)
def test_pairs_the_other_way_round_are_judged_the_other_way_round(direction):
    pairs = [MinimalPair(TEXTS[0], TEXTS[1], "a"), MinimalPair(TEXTS[1], TEXTS[2], "b"),
             MinimalPair(TEXTS[2], TEXTS[2], "b")]  # fmt: skip
    turned = [MinimalPair(pair.bad, pair.good, pair.group) for pair in pairs]

    judged, others = (judge_pairs(scorer(direction), version) for version in (pairs, turned))

    assert [1 - pair.score for pair in judged] == [pair.score for pair in others]
    assert judged[2].score == 0.5
    assert [pair.more_tokens for pair in judged] == [-pair.more_tokens for pair in others]


def judged(*rows):
    pair = {name: MinimalPair("a", "b", name) for name in ("one", "two")}
    return [JudgedPair(pair[group], good, bad, more) for group, good, bad, more in rows]


def test_accuracy_is_told_by_group_with_its_interval():
    groups = accuracy_by_group(
        judged(("one", -1, -2, 0), ("two", -1, -1, 0), ("one", -3, -2, 0), ("one", 0, -1, 0))
    )

    assert [(group.group, group.accuracy, group.count) for group in groups] == [
        ("one", pytest.approx(2 / 3), 3), ("two", 0.5, 1),
    ]  # fmt: skip
    assert all(group.low < group.accuracy < group.high for group in groups[:1])
    assert str(groups[0]).startswith("one: 66.7 % of 3 (")


def test_the_longer_one_wins_where_it_is_likelier():
    pairs = judged(("one", -1, -2, 2), ("one", -1, -2, -1), ("one", -1, -2, 0))

    assert longer_wins(pairs) == 0.5
    assert longer_wins(pairs[2:]) is None


def test_a_sentence_that_is_too_long_is_named():
    with pytest.raises(DataError, match="and the model has 32 positions"):
        scorer("causal").score(["river " * 40])


# --- filling gaps --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(word_pieces):
    objective = MaskedLM()
    objective.setup(TaskInfo(word_pieces))
    torch.manual_seed(0)
    backbone = Backbone(tiny.shape(direction="bidirectional", residual="post"), word_pieces.size)
    made = TransferModel(backbone, objective.modules(backbone))
    tiny.lively(made)
    return made.eval()


@pytest.mark.parametrize("gap", ["[MASK]", "<mask>"])
def test_a_gap_has_the_names_that_people_know(word_pieces, gap):
    assert split_at_gaps(f"the {gap} sat{gap}", word_pieces) == ["the ", " sat", ""]


def test_around_a_gap_stand_the_tokens_of_the_whole_text(tokenizer):
    sep, mask = tokenizer.sep, tokenizer.mask
    whole = tokenizer.encode("the cat sat on the mat, the cat")
    words = [tokenizer.encode(word) for word in ("cat", "mat")]
    assert all(len(word) == 1 for word in words)
    hidden = [mask if [token] in words else token for token in whole]

    tokens = encode_with_gaps("the [MASK] sat on the [MASK], the [MASK]", tokenizer, "lines")

    assert tokens == [sep, *hidden, sep]


@pytest.mark.parametrize(
    ("around", "text", "expected"),
    [
        ("lines", "the [MASK]\nthe", ["sep", "the", "mask", "sep", "the", "sep"]),
        ("sentence", "the [MASK]", ["cls", "the", "mask", "sep"]),
        ("text", "the [MASK]", ["sep", "the", "mask", "sep"]),
    ],
)
def test_a_text_with_gaps_is_laid_out_as_in_training(around, text, expected, word_pieces):
    (the,) = word_pieces.encode("the")

    tokens = encode_with_gaps(text, word_pieces, around)

    assert tokens == [the if name == "the" else getattr(word_pieces, name) for name in expected]


def test_candidates_are_the_likeliest_tokens_that_are_text(model, word_pieces):
    tokens = encode_with_gaps("the [MASK] sat on [MASK] mat", word_pieces, "lines")

    gaps = fill_gaps(model, word_pieces, tokens, 7)

    tokens_BT = torch.tensor([tokens])
    top_BTD = model.backbone(tokens_BT, torch.ones_like(tokens_BT) > 0)[-1]
    logits_BTV = token_logits(model, top_BTD)
    shares_NV = logits_BTV.softmax(-1)[tokens_BT == word_pieces.mask]
    assert len(gaps) == 2
    for candidates, shares_V in zip(gaps, shares_NV, strict=True):
        ordinary = [t for t in range(word_pieces.size) if t not in word_pieces.special]
        best = sorted(ordinary, key=lambda token: -shares_V[token].item())[:7]
        assert [candidate.token for candidate in candidates] == word_pieces.pieces(best)
        shares = torch.tensor([candidate.probability for candidate in candidates])
        assert_close(shares, shares_V[best].detach(), rtol=1e-5, atol=1e-7)


def test_more_candidates_than_there_are_tokens_are_all_of_them(model, word_pieces):
    tokens = encode_with_gaps("[MASK]", word_pieces, "lines")

    (candidates,) = fill_gaps(model, word_pieces, tokens, 10_000)

    assert len(candidates) == word_pieces.size - len(word_pieces.special)


def test_gaps_are_filled_in_the_text_as_it_was_typed(word_pieces):
    words = [Candidate("cat", "cat", 0.5), Candidate("##s", "##s", 0.5), Candidate("##", "##", 0.5)]

    text = insert_candidates("The  [MASK] sit[MASK].<mask>", word_pieces, words)
    assert text == "The  cat sits.##"


def test_gaps_are_not_filled_with_what_is_no_number(model, word_pieces):
    tokens = encode_with_gaps("the [MASK]", word_pieces, "lines")
    hook = model.heads["lm"].register_forward_hook(lambda head, given, logits: logits * torch.nan)

    with hook, pytest.raises(NotFiniteError, match="prediction is not finite"):
        fill_gaps(model, word_pieces, tokens, 7)
