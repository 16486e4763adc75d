"""Replies to texts of different lengths at once are those to each alone."""

import pytest
import torch

from tests import tiny
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.replies import replies

TEXTS = [[7, 9, 11, 6, 8], [12, 5], [30, 31, 32, 33, 34, 35, 36, 37, 38]]
MOST = 5
KINDS = {
    "learned": {}, "sinusoidal": {"position_kind": "sinusoidal"},
    "relative_bias": {"position_kind": "relative_bias"}, "modern": tiny.MODERN,
    "shared": {"share": "all"},
}  # fmt: skip


def best(logits):
    return logits.argmax(1)


def alone(model, text, prefix):
    """Return the logits after a text and after each of its best continuations, read anew."""
    said, found = list(text), []
    prefix_1 = None if prefix is None else torch.tensor([prefix])
    for _ in range(MOST):
        tokens = torch.tensor([said])
        with torch.no_grad():
            states = model.backbone(tokens, tokens > 0, prefix_B=prefix_1)
            top = model.readout(states)[0, -1:]
            found.append(model.heads["lm"](top, model.backbone.token_embedding.weight)[0])
        said.append(int(found[-1].argmax()))
    return torch.stack(found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_texts_of_different_lengths_get_the_reply_of_each_alone(kind, direction):
    model = tiny.model(CausalLM(), direction=direction, **KINDS[kind])
    tiny.lively(model.eval())
    prefixes = None if direction == "causal" else [len(text) for text in TEXTS]
    batch, seen = tiny.rows_to_batch(TEXTS), []
    lengths = torch.tensor([len(text) for text in TEXTS])

    def pick(logits):
        seen.append(logits)
        return best(logits)

    replies(
        model, batch["tokens"], torch.zeros_like(batch["tokens"]), lengths, most=MOST, pick=pick,
        prefix_R=None if prefixes is None else torch.tensor(prefixes),
    )  # fmt: skip

    for row, text in enumerate(TEXTS):
        expected = alone(model, text, prefixes and prefixes[row])
        assert expected.std() > 0.05
        torch.testing.assert_close(
            torch.stack([each[row] for each in seen]), expected, rtol=1e-4, atol=1e-4
        )


def test_each_token_is_read_once():
    model, read = tiny.model(CausalLM()).eval(), []
    model.backbone.register_forward_pre_hook(lambda _, given: read.append(given[0].shape))
    batch = tiny.rows_to_batch(TEXTS)

    replies(
        model, batch["tokens"], torch.zeros_like(batch["tokens"]), torch.tensor([5, 2, 9]),
        most=MOST, pick=best,
    )  # fmt: skip

    assert read == [(3, 9), *[(3, 1)] * (MOST - 1)]


def test_what_has_no_position_takes_passes_all_the_same():
    model, read = tiny.model(CausalLM(), positions=10).eval(), []
    model.backbone.register_forward_pre_hook(lambda _, given: read.append(given[0].shape))
    batch = tiny.rows_to_batch(TEXTS)

    found = replies(
        model, batch["tokens"], torch.zeros_like(batch["tokens"]), torch.tensor([5, 2, 9]),
        most=MOST, pick=best,
    )  # fmt: skip

    assert found.shape == (3, MOST)
    assert len(read) == MOST
