import numpy as np
import torch

from tests import tiny
from transfer_cli.analysis.attention.read_sequences import ReadSequence, sequences_of
from transfer_cli.data.corpus import TextBlocks
from transfer_cli.data.split import Split


def sequence(length, **by_position):
    return ReadSequence(0, "", torch.arange(length), by_position, torch.tensor(5), length)


def test_choices_of_an_example_are_sequences_of_their_own_without_padding():
    data = tiny.groups(4)

    found = list(sequences_of(Split("test", data), [0, 3]))

    batch = data.batch(np.array([0, 3]))
    assert [(each.example, each.part) for each in found] == [
        (0, "choice 1"), (0, "choice 2"), (3, "choice 1"), (3, "choice 2"),
    ]  # fmt: skip
    rows = [
        row[mask].tolist()
        for row, mask in zip(
            batch["tokens"].flatten(0, 1), batch["mask"].flatten(0, 1), strict=True
        )
        if mask.any()
    ]
    assert [each.tokens.tolist() for each in found] == rows


def test_windows_say_of_which_example_they_are():
    split = Split("test", tiny.Questions(examples=4), example_of=np.array([0, 1, 1, 2]))

    found = list(sequences_of(split, range(4)))

    assert [each.example for each in found] == [0, 1, 1, 2]
    assert [each.part for each in found] == ["", "window 1 of 2", "window 2 of 2", ""]


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
