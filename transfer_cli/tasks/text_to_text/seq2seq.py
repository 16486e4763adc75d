"""The loss of an encoder-decoder: a target's tokens, given its source.

Legend: B texts, S positions of sources, T positions of targets, N positions of both.
"""

from dataclasses import replace

import torch
from torch import Tensor

from transfer_cli.batch import IGNORE, Batch, select_view
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, Sample, source_text
from transfer_cli.objectives.replies import WrittenTargets
from transfer_cli.seeds import ExampleNoise
from transfer_cli.tasks.text_to_text.task import PrefixLM, TextToTextTask


class Seq2Seq(PrefixLM):
    """-log p(next token | source, target so far), over the tokens of targets and their ends.

    The encoder reads the source once, the decoder the target, shifted by one place (teacher
    forcing; Sutskever et al. 2014, Vaswani et al. 2017). Its options are those of `PrefixLM`.
    """

    direction = "encoder_decoder"
    keeps_tokens = False

    def prepare(self, batch: Batch, noise: ExampleNoise) -> Batch:
        """Return sources and targets apart, see `split_source_and_target`."""
        if self.corruption is not None:
            batch = super().prepare(batch, noise)
        elif "next_tokens" in batch:
            batch = {**batch, "target": batch["next_tokens"]}
        return split_source_and_target(batch, self.info.vocabulary.pad)

    def start_targets(self, model: TransferModel, batch: Batch) -> WrittenTargets:
        if "tokens_source" not in batch:
            batch = split_source_and_target(batch, self.info.vocabulary.pad)
        start, positions = self.info.vocabulary.target_start, model.backbone.shape.positions
        most = TextToTextTask.max_target_tokens(self.info.task, positions)
        most = min(most, positions - len(start))
        return WrittenTargets(model, source_text(batch), start, max_tokens=most)

    def samples(self, model: TransferModel, batch: Batch, encoded: Encoding) -> list[Sample]:
        """Return those of a language model, with the sources as inputs."""
        source = select_view(batch, "source")
        rows = zip(source["tokens"], source["mask"], strict=True)
        samples = super().samples(model, batch, encoded)
        return [
            replace(sample, tokens=tokens[mask].tolist())
            for sample, (tokens, mask) in zip(samples, rows, strict=True)
        ]


def split_source_and_target(batch: Batch, pad: int) -> Batch:
    """Return a batch whose rows are a source and its target, `[B, N]`, with both apart.

    `tokens_source` and `mask_source` are sources, `[B, S]`; `tokens`, `mask` and `target` are
    targets, `[B, T]`. A token that only ends a row is no input of the decoder.
    """
    tokens_BN, mask_BN = batch["tokens"], batch["mask"]
    length_B, width = mask_BN.sum(1), tokens_BN.shape[1]
    # An estimate's rows have no sources: half of each is one.
    prefix_B = batch["prefix"] if "prefix" in batch else length_B // 2
    written_B = length_B - prefix_B - int("target" in batch)
    place_N = torch.arange(width, device=tokens_BN.device)

    def cut(first_B: Tensor, size_B: Tensor) -> tuple[Tensor, Tensor]:
        place_T = place_N[: max(1, int(size_B.max()))]
        return first_B[:, None] + place_T, place_T < size_B[:, None]

    read_BS, is_read_BS = cut(torch.zeros_like(prefix_B), prefix_B)
    place_BT, mask_BT = cut(prefix_B, written_B)
    place_BT = place_BT.clamp(max=width - 1)
    unchanged = {name: batch[name] for name in ("index", "epoch") if name in batch}
    parts = {
        "tokens_source": tokens_BN.gather(1, read_BS).masked_fill(~is_read_BS, pad),
        "mask_source": is_read_BS,
        "tokens": tokens_BN.gather(1, place_BT).masked_fill(~mask_BT, pad),
        "mask": mask_BT,
    }
    if "target" in batch:
        parts["target"] = batch["target"].gather(1, place_BT).masked_fill(~mask_BT, IGNORE)
    return unchanged | parts
