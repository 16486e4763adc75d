"""Texts written by a decoder: rows, sources and targets apart, the reference's loss and answers."""

import numpy as np
import pytest
import torch

from tests import tiny
from tests.published import TEXT
from tests.unit.interop.test_encoder_decoders import CPU, publish
from transfer_cli.assembly.finished_run import open_trained
from transfer_cli.batch import IGNORE, with_facts
from transfer_cli.data.tokenizer_recipes import WordPiece
from transfer_cli.errors import ConfigError
from transfer_cli.model.encoder_decoder import build_backbone
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.seeds import ExampleNoise
from transfer_cli.tasks.text_to_text.seq2seq import Seq2Seq
from transfer_cli.tasks.text_to_text.task import TextToTextExample, TextToTextTask
from transfer_cli.testing.objectives import check_objective

WORDS = "the old bridge is red blue over a river and new"
TOKENIZER = WordPiece(size=80).make(lambda: iter([WORDS] * 3)).with_added(
    [f"<extra_id_{number}>" for number in range(9)]
)  # fmt: skip
PAIRS = [TextToTextExample("the old bridge", "red"), TextToTextExample("a river", "is blue")]
NOISE = ExampleNoise(0, "test")


def prepared(examples=PAIRS, length=16, **options):
    data = TextToTextTask(**options).encode(examples, TOKENIZER, length, "encoder_decoder")
    objective = Seq2Seq()
    objective.setup(TaskInfo(TOKENIZER, task=TextToTextTask(**options)))
    return objective.prepare(data.batch(np.arange(len(examples))), NOISE)


def pieces(tokens, mask):
    return " ".join(TOKENIZER.pieces(tokens[mask].tolist()))


def test_sources_and_targets_are_apart_and_targets_are_shifted():
    batch = prepared(prefix="over: ")

    rows = zip(batch["tokens_source"], batch["mask_source"], strict=True)
    assert [pieces(*row) for row in rows] == [
        "[CLS] over <unk> the old bridge [SEP]", "[CLS] over <unk> a river [SEP]",
    ]  # fmt: skip
    rows = zip(batch["tokens"], batch["mask"], strict=True)
    assert [pieces(*row) for row in rows] == ["[SEP] [CLS] red", "[SEP] [CLS] is blue"]
    rows = zip(batch["target"], batch["target"] != IGNORE, strict=True)
    assert [pieces(*row) for row in rows] == ["red [SEP]", "is blue [SEP]"]
    assert batch["target"][0].tolist()[0] == IGNORE
    assert not batch["mask"][0, 3]


def test_a_source_is_the_same_without_a_target_and_has_all_of_the_length():
    text = " ".join(["bridge"] * 30)
    answered = prepared([TextToTextExample(text, "red " * 30)], target_length=5)
    alone = prepared([TextToTextExample(text)], target_length=5)

    assert torch.equal(answered["tokens_source"], alone["tokens_source"])
    assert alone["mask_source"].sum() == 16
    assert answered["mask"].sum() == 2 + 4
    assert alone["tokens"].tolist() == [TOKENIZER.target_start]
    assert "target" not in alone


@pytest.mark.parametrize("options", [{"target_length": 15}, {"prefix": " "}])
def test_what_cannot_be_laid_out_is_refused(options):
    with pytest.raises(ConfigError, match=r"data\."):
        prepared(**options)


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("name", ["t5", "bart"])
def test_losses_and_answers_are_the_references(tmp_path, name, beams):
    theirs = publish(tmp_path / "theirs", name)
    trained = open_trained(str(tmp_path / "theirs"), CPU)
    tokenizer, model, objective = trained.start.tokenizer, trained.model, Seq2Seq(beams=beams)
    examples = [TextToTextExample(TEXT[at], TEXT[at + 6]) for at in range(len(TEXT) - 6)]
    task = TextToTextTask(target_length=20)
    objective.setup(TaskInfo(tokenizer, task=task))
    data = task.encode(examples, tokenizer, 44, "encoder_decoder")
    batch = with_facts(objective.prepare(data.batch(np.arange(len(examples))), NOISE))

    with torch.no_grad():
        encoded = Encoding(model, batch)
        loss = objective.loss_sums(model, batch, encoded)["loss"]
        answers = objective.predictions(model, batch, encoded)["answer"]
        read = {"input_ids": batch["tokens_source"], "attention_mask": batch["mask_source"].long()}
        logits = theirs(**read, decoder_input_ids=batch["tokens"]).logits
        start = torch.tensor([tokenizer.target_start] * len(examples))
        never = sorted(tokenizer.special - {tokenizer.sep})
        said = theirs.generate(
            **read, decoder_input_ids=start, max_new_tokens=20, use_cache=False,
            do_sample=False, num_beams=beams,
            suppress_tokens=never, decoder_start_token_id=start[0, 0].item(),
            eos_token_id=tokenizer.sep, pad_token_id=tokenizer.sep, forced_eos_token_id=None,
        )[:, start.shape[1] :]  # fmt: skip

    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), batch["target"].flatten(), reduction="sum", ignore_index=IGNORE
    )
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-4)
    assert len(said) == len(answers)
    for ours, other in zip(answers.tolist(), said.tolist(), strict=True):
        cut = [tokens[: tokens.index(tokenizer.sep)] if tokenizer.sep in tokens else tokens
               for tokens in (ours, other)]  # fmt: skip
        assert cut[0] == cut[1]


def test_it_keeps_the_contract_of_objectives_with_targets_and_with_corrupted_texts():
    task = TextToTextTask(target_length=5)
    examples = [*PAIRS, TextToTextExample("new", "old"), PAIRS[0]]
    data = task.encode(examples, TOKENIZER, 12, "encoder_decoder")

    check_objective(Seq2Seq(), TaskInfo(TOKENIZER, task=task), data.batch(np.arange(4)))
    texts = tiny.rows_to_batch([(TOKENIZER.encode(WORDS) * 2)[:size] for size in (12, 7, 12, 9)])
    check_objective(Seq2Seq(corrupt=0.3), TaskInfo(TOKENIZER), texts)


def test_a_text_as_long_as_a_stack_is_read_and_written_as_a_whole():
    tokens = torch.randint(5, TOKENIZER.size - 9, (2, 24))
    batch = {"tokens": tokens, "mask": torch.ones_like(tokens).bool(), "index": torch.arange(2)}
    objective = Seq2Seq(noise="infilling")
    objective.setup(TaskInfo(TOKENIZER))
    objective.modules(build_backbone(tiny.shape(direction="encoder_decoder", positions=30), 80))

    made = objective.prepare(batch, NOISE)

    assert made["tokens"][:, 2:].tolist() == tokens.tolist()
    assert [row[row != IGNORE].tolist() for row in made["target"]] == [
        [*row, TOKENIZER.sep] for row in tokens.tolist()
    ]
    assert (made["tokens_source"] == TOKENIZER.mask).any(1).all()
    assert made["mask_source"].sum(1).max() <= 26
