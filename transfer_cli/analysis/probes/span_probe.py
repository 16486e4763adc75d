"""A classifier of spans, or pairs of spans, that reads a mix of layers (Tenney et al. 2019).

Words are projected, pooled by an attention of the span's own, and go through a hidden layer to one
answer for each label.

Legend: W words, N targets, B batch, R spans of a target, S words of a span, K layers, D width,
P projected width, C labels.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transfer_cli.optim.eager import AdamW
from transfer_cli.progress import progress
from transfer_cli.seeds import derive

WIDTH = 256
DROPOUT = 0.3
RATE = 1e-3
SHARE_RATE = 1e-2
"""That of the mix, see `probes.linear.learnt_shares`."""

BATCH = 32
MOST_EPOCHS = 50
PATIENCE = 3
"""Epochs without a lower loss on validation after which it has ended."""


@dataclass(frozen=True)
class Spans:
    """Targets.

    Args:
        states: Of words, `[W, K, D]`.
        words: The words of each span, `[N, R, S]`, -1 behind its last.
        label: Whether each label is one of the target's, `[N, C]`.
    """

    states: Tensor
    words: Tensor
    label: Tensor

    def up_to(self, layer: int) -> "Spans":
        """Return the same targets with the layers from 0 to the one at this place."""
        return Spans(self.states[:, : layer + 1], self.words, self.label)


class SpanProbe(nn.Module):
    """See the top of this module.

    Args:
        like: Targets that it is to read.
    """

    def __init__(self, like: Spans) -> None:
        super().__init__()
        _, layers, width = like.states.shape
        roles = like.words.shape[1]
        self.raw = nn.Parameter(torch.zeros(layers))
        self.gamma = nn.Parameter(torch.ones(()))
        self.project = nn.ModuleList(nn.Linear(width, WIDTH) for _ in range(roles))
        self.attend = nn.ModuleList(nn.Linear(WIDTH, 1) for _ in range(roles))
        self.hidden = nn.Linear(roles * WIDTH, WIDTH)
        self.output = nn.Linear(WIDTH, like.label.shape[1])
        self.dropout = DROPOUT

    def forward(self, states_WKD: Tensor, words_BRS: Tensor) -> Tensor:
        """Return a logit for each label, `[B, C]`."""
        states_BRSKD = states_WKD[words_BRS.clamp(min=0)]
        mixed = self.gamma * torch.einsum("brskd,k->brsd", states_BRSKD, self.raw.softmax(0))
        pooled = []
        for role, (project, attend) in enumerate(zip(self.project, self.attend, strict=True)):
            own_BSP = project(mixed[:, role])
            score_BS = attend(own_BSP)[..., 0].masked_fill(words_BRS[:, role] < 0, -torch.inf)
            pooled.append(torch.einsum("bsp,bs->bp", own_BSP, score_BS.softmax(1)))
        hidden = self.hidden(torch.cat(pooled, 1)).relu()
        logits: Tensor = self.output(F.dropout(hidden, self.dropout, self.training))
        return logits

    def logits(self, spans: Spans) -> Tensor:
        """Return those of all targets, `[N, C]`."""
        self.eval()
        with torch.no_grad():
            return torch.cat([self(spans.states, part) for part in spans.words.split(8 * BATCH)])


def trained(train: Spans, stopped_on: Spans, seed: int) -> SpanProbe:
    """Return a probe with its best weights on other targets.

    Args:
        train: Standardised states.
        stopped_on: Others, which stop it.
        seed: Of start, order and dropout.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "span probe"))
        probe = SpanProbe(train)
        rest = [parameter for parameter in probe.parameters() if parameter is not probe.raw]
        optimizer = AdamW(
            [{"params": [probe.raw], "lr": SHARE_RATE}, {"params": rest, "lr": RATE}],
            lr=RATE, weight_decay=0.0,
        )  # fmt: skip
        best, lowest, waited = probe.state_dict(), float("inf"), 0
        with progress("span probe", None, " epochs") as more:
            for _ in range(MOST_EPOCHS):
                _epoch(probe, train, optimizer)
                validation_loss = float(_loss(probe.logits(stopped_on), stopped_on.label))
                waited += 1
                if validation_loss < lowest:
                    best = {name: value.clone() for name, value in probe.state_dict().items()}
                    lowest, waited = validation_loss, 0
                more(1)
                if waited == PATIENCE:
                    break
        probe.load_state_dict(best)
    return probe.eval()


def _epoch(probe: SpanProbe, train: Spans, optimizer: torch.optim.Optimizer) -> None:
    probe.train()
    for at_B in torch.randperm(len(train.words)).split(BATCH):
        optimizer.zero_grad()
        _loss(probe(train.states, train.words[at_B]), train.label[at_B]).backward()
        optimizer.step()


def _loss(logits_NC: Tensor, label_NC: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits_NC, label_NC)


def micro_f1(logits_NC: Tensor, label_NC: Tensor) -> float:
    """Return the F1 of all labels of all targets; one is said where its probability is over 1/2."""
    predicted_NC, given_NC = logits_NC > 0, label_NC > 0
    both = int(predicted_NC.sum()) + int(given_NC.sum())
    return 2 * int((predicted_NC & given_NC).sum()) / both if both else 1.0
