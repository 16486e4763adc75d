"""Dialogs: turns in files, what is read of one, candidates, both losses of a turn."""

import gzip
import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import tokenizers
import torch

from tests import tiny
from transfer_cli.batch import IGNORE
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.data.tokenizer_recipes import WordPiece
from transfer_cli.errors import ConfigError, DataError
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.replies import Continued
from transfer_cli.seeds import ExampleNoise
from transfer_cli.tasks.dialog.task import (
    DialogExample,
    Dialogs,
    DialogTask,
    NextUtterance,
    parse_turn,
    read_turns,
)

WORDS = "i like football am from NYC how are you ? pretty fine great ! a b c d e"
SLIDE = DialogExample(
    ["i like football", "i am from NYC"], ["how are you ?", "pretty fine"], ["a b c", "great !"], 1
)
"""The example of the tutorial."""


@pytest.fixture(scope="module")
def tokenizer():
    """Return a tokenizer of whole words that has tokens for two speakers."""
    names = ["[PAD]", "<unk>", "[CLS]", "[SEP]", "[MASK]", "<speaker1>", "<speaker2>"]
    vocabulary = {word: number for number, word in enumerate([*names, *WORDS.split()])}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, names[1]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return Tokenizer(backend)


def encoded(example, tokenizer, length=64, **options):
    """Return the pieces of each candidate, their speakers, and the targets, without padding."""
    data = DialogTask(**options).encode([example], tokenizer, length, "causal")
    batch = data.batch(np.array([0]))
    rows = zip(
        *(batch[key][0] for key in ("tokens", "mask", "segment", "next_tokens")), strict=True
    )
    return [
        (
            " ".join(tokenizer.pieces(tokens[mask].tolist())),
            "".join(map(str, speakers[mask].tolist())),
            ["." if t == IGNORE else tokenizer.pieces([t])[0] for t in targets[mask].tolist()],
        )
        for tokens, mask, speakers, targets in rows
    ]


CONTEXT = (
    "[SEP] i like football i am from NYC <speaker1> how are you ? <speaker2> pretty fine <speaker1>"
)


def test_the_example_of_the_tutorial_token_by_token(tokenizer):
    wrong, right = encoded(SLIDE, tokenizer)

    assert right[0] == f"{CONTEXT} great ! [CLS]"
    # The persona is the model's; each utterance has the speaker of its own mark.
    assert right[1] == "0" * 8 + "0" * 5 + "1" * 3 + "0" * 4
    assert right[2] == [*["."] * 16, "great", "!", "[CLS]", "."]
    assert wrong[0] == f"{CONTEXT} a b c [CLS]"
    assert set(wrong[2]) == {"."}


@pytest.mark.parametrize("utterances", range(1, 6))
def test_the_last_utterance_is_always_the_other_speakers(utterances, tokenizer):
    example = replace(SLIDE, history=["a"] * utterances)

    text, speakers, _ = encoded(example, tokenizer)[1]

    marks = [word for word in text.split() if word.startswith("<")]
    assert marks[-2:] == ["<speaker2>", "<speaker1>"]
    assert all(one != other for one, other in itertools.pairwise(marks))
    for word, speaker in zip(text.split(), speakers, strict=True):
        if word.startswith("<"):
            assert speaker == {"<speaker1>": "0", "<speaker2>": "1"}[word]


def test_as_much_of_the_history_is_read_as_is_asked_for(tokenizer):
    example = replace(SLIDE, history=list("abcde"))

    text = encoded(example, tokenizer, max_history=1)[1][0]

    assert "NYC <speaker2> c <speaker1> d <speaker2> e <speaker1> great" in text


@pytest.mark.parametrize(
    ("length", "kept"),
    [
        (20, "i like football i am from NYC <speaker2> pretty fine"),
        (14, "i like football i am <speaker2> pretty fine"),
        (8, "<speaker2> pretty"),
        (6, ""),
    ],
)
def test_the_oldest_utterances_go_first_then_the_end_of_the_persona(length, kept, tokenizer):
    candidates = encoded(SLIDE, tokenizer, length)

    texts = [text for text, *_ in candidates]
    between = f" {kept} " if kept else " "
    assert texts[1] == f"[SEP]{between}<speaker1> great ! [CLS]"
    assert texts[0] == f"[SEP]{between}<speaker1> a b c [CLS]"
    assert max(len(text.split()) for text in texts) <= length


def test_marks_may_be_any_texts_but_not_the_same(tokenizer):
    text = encoded(SLIDE, tokenizer, speakers=("i am", "you"))[1][0]

    assert "NYC i am how are you ? you pretty fine i am great ! [CLS]" in text
    with pytest.raises(ConfigError, match="does not tell 'x' from 'y'"):
        encoded(SLIDE, tokenizer, speakers=("x", "y"))


# --- files -------------------------------------------------------------------------------------


def dialog(name, turns=2):
    return {
        "personality": [f"i am {name} ."],
        "utterances": [
            {"history": [f"hi {name}"] * (2 * turn + 1), "candidates": ["no", "yes", f"{turn}"]}
            for turn in range(turns)
        ],
    }


@pytest.fixture
def persona_chat(tmp_path):
    path = tmp_path / "personachat.json.gz"
    whole = {"train": [dialog("a"), dialog("b")], "valid": [dialog("c", 1)]}
    path.write_bytes(gzip.compress(json.dumps(whole).encode()))
    return path


def test_the_released_file_has_both_splits_and_the_last_candidate_is_right(persona_chat, tmp_path):
    data = Dialogs(train=str(persona_chat)).load(tmp_path, 0)

    train, held_out = data.splits["train"], data.splits["validation"]
    assert [turn.history for turn in train] == [["hi a"], ["hi a"] * 3, ["hi b"], ["hi b"] * 3]
    assert [turn.choices[turn.label] for turn in train] == ["0", "1", "0", "1"]
    assert held_out == (DialogExample(["i am c ."], ["hi c"], ["no", "yes", "0"], 2),)


def test_training_turns_have_as_many_candidates_as_asked_and_never_the_right_one_twice(tmp_path):
    row = {"history": ["a"], "candidates": ["yes", "no", "yes", "why", "yes"]}
    path = tmp_path / "turns.jsonl"
    path.write_text("".join(f"{json.dumps({**row, 'persona': [str(n)]})}\n" for n in range(40)))

    def load(seed, count=2):
        splits = Dialogs(train=str(path), candidates=count).load(tmp_path, seed).splits
        return splits["train"], splits["validation"]

    train, held_out = load(0)

    assert {(len(turn.choices), turn.choices[turn.label]) for turn in train} == {(2, "yes")}
    assert {turn.choices[0] for turn in train} == {"no", "why"}
    assert all(turn.choices == row["candidates"] for turn in held_out)
    assert train == load(0)[0] != load(1)[0]
    assert {len(turn.choices) for turn in load(0, None)[0]} == {5}


def test_a_length_without_room_for_a_reply_is_refused(tokenizer):
    with pytest.raises(ConfigError, match="is 3, too short for a reply; raise it"):
        encoded(DialogExample([], ["a"], ["x", "y"], 0), tokenizer, length=3)


GOOD = {"history": ["a"], "candidates": ["x", "y"]}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({**GOOD, "candidates": ["x"]}, "line 2: 'candidates' has 1, expected at least 2"),
        ({**GOOD, "candidates": []}, "line 2: 'candidates' has 0, expected at least 1"),
        ({"train": []}, "line 2: 'history' is .* A turn is a line of JSON"),
        ({"candidates": ["x", "y"]}, "line 2: 'history' is no list of texts"),
        ({**GOOD, "history": ["a", 7]}, "line 2: 'history' holds 7, expected texts"),
        ({**GOOD, "persona": "me"}, "line 2: 'persona' is no list of texts"),
    ],
)
def test_a_turn_that_is_none_is_refused_with_file_and_line(bad, message, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n{json.dumps(bad)}\n")

    with pytest.raises(DataError, match=f"a.jsonl, {message}"):
        read_turns(path)


def test_a_turn_of_the_released_file_is_named_by_its_place(tmp_path):
    path = tmp_path / "a.json"
    bad = dialog("b")
    bad["utterances"][1]["candidates"] = ["x"]
    path.write_text(json.dumps({"train": [dialog("a"), bad]}))

    with pytest.raises(DataError, match=r"a\.json, train, dialog 2, turn 2: 'candidates' has 1"):
        read_turns(path)


def test_one_candidate_can_be_asked_about():
    assert parse_turn({"history": ["a"], "candidates": ["x"]}, "x").choices == ["x"]


LOSS_WORDS = "the old bridge is red blue over a river and new"
TOKENIZER = WordPiece(size=80).make(lambda: iter([LOSS_WORDS] * 3))
TASK = DialogTask(speakers=("is", "and"))
TURNS = [
    DialogExample(["a river"], ["the old", "bridge", "red"], ["blue", "over a river", "new"], 2),
    DialogExample([], ["blue bridge"], ["the river is red", "new bridge"], 0),
]


@pytest.fixture
def asked():
    """Return an objective, its model, a batch of two turns, and the encoding of it."""
    objective = NextUtterance(pooling="cls_last", reply_tokens=4)
    model = tiny.at_work(objective, TASK, TOKENIZER, positions=48, segments=2)
    batch = TASK.encode(TURNS, TOKENIZER, 40, "causal").batch(np.arange(2))
    return objective, model, batch, Encoding(model, batch)


def test_words_count_in_the_right_candidate_alone(asked):
    objective, model, batch, encoded = asked

    loss = objective.loss_sums(model, batch, encoded)["words"]
    (gradient,) = torch.autograd.grad(loss, encoded.top)

    reached = gradient.flatten(1).any(1).view(2, 3)
    assert reached.tolist() == [[False, False, True], [True, False, False]]
    expected = sum(len(TOKENIZER.encode(turn.choices[turn.label])) + 1 for turn in TURNS)
    assert objective.counts(batch) == {"loss": 2, "words": expected}


def test_a_language_model_beside_it_has_the_same_loss(asked):
    objective, model, batch, encoded = asked
    beside = CausalLM()
    beside.setup(TaskInfo(TOKENIZER))

    view = beside.prepare(batch, ExampleNoise(0, "test"))

    assert view["tokens"] is batch["tokens"]  # so both share one pass
    assert beside.counts(view) == {"loss": objective.counts(batch)["words"]}
    torch.testing.assert_close(
        beside.loss_sums(model, view, encoded)["loss"],
        objective.loss_sums(model, batch, encoded)["words"],
    )


def test_its_features_are_those_of_every_token(asked):
    objective, model, *_ = asked

    assert objective.pooling_of(model) is None


def test_equal_candidates_are_hit_by_chance_exactly(asked):
    objective, model, batch, encoded = asked
    torch.nn.init.zeros_(model.heads["class"].linear.weight)

    with torch.no_grad():
        sums = objective.metric_sums(model, batch, encoded)
    measures = objective.compute_metrics(sums, objective.counts(batch), None)

    assert measures["hits_at_1"] == pytest.approx((1 / 3 + 1 / 2) / 2)
    assert measures["chance"] == pytest.approx(measures["hits_at_1"])


def test_what_is_said_follows_from_the_context_alone(asked):
    _, model, batch, _ = asked
    tokens, segment = batch["tokens"][:, 0], batch["segment"][:, 0]
    begin = torch.tensor([5, 3])

    texts = Continued(model, tokens, segment, begin, max_tokens=6)
    answers = texts.pick_tokens(lambda logits: logits.argmax(1))

    for row in range(2):
        so_far, speakers = tokens[row, : begin[row]], segment[row, : begin[row]]
        for said in answers[row]:
            mask = torch.ones(1, len(so_far), dtype=torch.bool)
            with torch.no_grad():
                top = model.readout(model.backbone(so_far[None], mask, speakers[None]))[0, -1:]
                logits = model.heads["lm"](top, model.backbone.token_embedding.weight)
            assert int(logits.argmax()) == int(said)
            so_far = torch.cat([so_far, said[None]])
            speakers = torch.cat([speakers, torch.zeros(1, dtype=torch.long)])
