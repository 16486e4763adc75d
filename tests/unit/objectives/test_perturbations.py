import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.objectives.base import TaskInfo
from transfer_cli.objectives.perturbations import PERTURBATIONS, Delete, Mask, TfIdf, Unigram
from transfer_cli.seeds import ExampleNoise

SPECIAL = torch.arange(5)


class Texts:
    """Two hundred texts of twenty words: 5 is in all, 6 in half, others are rare."""

    def __len__(self):
        return 200

    def batch(self, indices):
        generator = torch.Generator().manual_seed(0)
        words = torch.randint(7, 40, (200, 20), generator=generator)
        words[:, ::4] = 5
        words[::2, 1] = 6
        tokens = torch.full((200, 24), tiny.VOCABULARY.pad)
        tokens[:, 0], tokens[:, 21], tokens[:, 1:21] = 2, 3, words
        rows = torch.from_numpy(np.asarray(indices))
        return {"tokens": tokens[rows], "mask": (torch.arange(24) < 22).expand(len(rows), -1),
                "index": rows}  # fmt: skip


BATCH = Texts().batch(np.arange(200))
WORDS = BATCH["mask"] & (BATCH["tokens"] > 4)


def changed(name, rate=0.3, step=0):
    perturbation = PERTURBATIONS[name](rate)
    perturbation.setup(TaskInfo(tiny.VOCABULARY))
    perturbation.on_data(Texts())
    return perturbation(BATCH, ExampleNoise(0, "train", step))


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_special_tokens_and_padding_stay_and_each_step_changes_others(name):
    before = {key: value.clone() for key, value in BATCH.items()}

    tokens, mask = changed(name)

    assert torch.equal(tokens[~WORDS], BATCH["tokens"][~WORDS])
    assert torch.equal(mask[~WORDS], BATCH["mask"][~WORDS])
    assert not torch.isin(tokens[WORDS & (tokens != 4)], SPECIAL).any()
    again, other = changed(name), changed(name, step=1)
    assert torch.equal(again[0], tokens)
    assert torch.equal(again[1], mask)
    assert not (torch.equal(other[0], tokens) and torch.equal(other[1], mask))
    assert all(torch.equal(value, before[key]) for key, value in BATCH.items())


def test_a_share_of_the_words_is_masked():
    tokens, mask = changed("mask")

    share = (tokens == tiny.VOCABULARY.mask)[WORDS].float().mean()
    assert float(share) == pytest.approx(0.3, abs=0.02)
    assert torch.equal(mask, BATCH["mask"])
    assert torch.equal(tokens[tokens != 4], BATCH["tokens"][tokens != 4])


def test_deleted_words_are_as_if_they_had_never_been_there():
    tokens, mask = changed("delete")
    model = tiny.model().eval().backbone
    tiny.lively(model)
    row = 3
    left = tokens[row][mask[row]][None]

    whole = model(tokens[:8], mask[:8])[-1]
    alone = model(left, torch.ones_like(left, dtype=torch.bool))[-1]

    assert 12 < left.shape[1] < 20
    assert_close(whole[row][mask[row]], alone[0])


def test_words_become_others_as_often_as_these_occur():
    tokens, _ = changed("unigram", rate=0.5)

    new = tokens[WORDS & (tokens != BATCH["tokens"])]
    seen = torch.bincount(BATCH["tokens"][WORDS], minlength=48).float()
    share = seen[6] / (seen.sum() - seen[5])
    of_others = (new == 6).sum() / (new != 5).sum()
    assert not (seen[new] == 0).any()
    assert float(of_others) == pytest.approx(float(share), abs=0.01)


def test_words_that_tell_texts_apart_stay():
    tokens, _ = changed("tfidf", rate=0.3)
    differs = tokens != BATCH["tokens"]

    rates = {word: float(differs[WORDS & (BATCH["tokens"] == word)].float().mean())
             for word in (5, 6)}  # fmt: skip
    others = float(differs[WORDS & (BATCH["tokens"] > 6)].float().mean())
    # 5 is in every text, and says nothing of any; it is not drawn to replace itself alone.
    assert rates[5] > 0.45
    assert rates[6] > others + 0.1
    assert others < 0.25


@pytest.mark.parametrize("kind", [Unigram, TfIdf])
def test_texts_without_words_are_no_error(kind):
    class Empty(Texts):
        def batch(self, indices):
            found = super().batch(indices)
            return {**found, "tokens": torch.full_like(found["tokens"], 2)}

    perturbation = kind(0.5)
    perturbation.setup(TaskInfo(tiny.VOCABULARY))
    perturbation.on_data(Empty())
    batch = Empty().batch(np.arange(3))

    tokens, mask = perturbation(batch, ExampleNoise(0, "train", 0))

    assert torch.equal(tokens, batch["tokens"])
    assert torch.equal(mask, batch["mask"])


def test_choices_of_an_example_are_perturbed_each():
    batch = {"tokens": BATCH["tokens"].view(50, 4, 24), "mask": BATCH["mask"].view(50, 4, 24),
             "index": torch.arange(50)}  # fmt: skip
    for kind in (Mask, Delete, TfIdf):
        perturbation = kind(0.3)
        perturbation.setup(TaskInfo(tiny.VOCABULARY))
        perturbation.on_data(Texts())

        tokens, mask = perturbation(batch, ExampleNoise(0, "train", 0))

        assert tokens.shape == mask.shape == (50, 4, 24)
        differs = (tokens != batch["tokens"]) | (mask != batch["mask"])
        assert (differs.any(-1).sum(1) > 1).float().mean() > 0.9
