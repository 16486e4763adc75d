"""Distillation to the source: keep the predictions of the pretrained model.

Legend: B batch, T positions, N compared positions, D width, V vocabulary.
"""

import copy
from collections.abc import Sequence, Set
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transfer_cli.batch import Batch, rows_compared
from transfer_cli.errors import ConfigError, RunError, above_zero, listed
from transfer_cli.model.added import added_parameters
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, Objective, TaskInfo
from transfer_cli.objectives.language_model import HEAD, LanguageModel
from transfer_cli.seeds import ExampleNoise


@dataclass(eq=False, repr=False)
class SourceDistillation(Objective):
    """tau^2 KL(p0 || p) of the next or masked tokens; p0 is the model at the start of the run.

    Learning without forgetting (Li and Hoiem 2016), on the run's own texts: no pretraining text is
    needed. The temperature softens both distributions. The paper's loss is the cross-entropy, which
    has the same gradient; a divergence of 0 means "unchanged".

    The starting model is not stored, so a finished run can only be evaluated by its other losses.

    Args:
        language_model: The pretraining objective. Predictions are compared at every real token
            (causal), or at the masked tokens of a masked copy of the text (masked).
        temperature: tau, above 0.
    """

    asks_language_model = True
    needs_whole_model = True

    language_model: LanguageModel
    temperature: float = 2.0

    def __post_init__(self) -> None:
        above_zero("temperature", self.temperature)
        self.direction = self.language_model.direction
        self.keeps_tokens = self.language_model.keeps_tokens
        self._source: TransferModel | None = None

    def setup(self, info: TaskInfo) -> None:
        """Store the facts of the run, for the language model too."""
        super().setup(info)
        self.language_model.setup(info)

    def modules(self, backbone: Backbone) -> dict[str, nn.Module]:
        """Return the language-model head."""
        return self.language_model.modules(backbone)

    def on_train_start(self, model: TransferModel, inherited: Set[str]) -> None:
        """Keep a frozen copy of the language model, in evaluation mode."""
        source = TransferModel(
            copy.deepcopy(model.backbone), {HEAD: copy.deepcopy(model.heads[HEAD])}
        )
        source.readout = copy.deepcopy(model.readout)
        same = {name for name, part in added_parameters(source).items() if part.keeps_outputs}
        new = [n for n, _ in source.named_parameters() if n not in inherited and n not in same]
        if new:
            raise ConfigError(
                f"{self._key}: source distillation keeps the predictions of a pretrained language "
                f"model, but {listed(new)} did not come from one; give "
                "init_from=RUN of a language model (transfer pretrain), and no edit that "
                "replaces a part of it"
            )
        self._source = source.eval().requires_grad_(requires_grad=False)

    @property
    def other_models(self) -> Sequence[TransferModel]:
        """The model at the start of the run, once it is known."""
        return () if self._source is None else (self._source,)

    def prepare(self, batch: Batch, noise: ExampleNoise) -> Batch:
        """Return the language model's view with `compared`, `[B, T]` bool, instead of `target`."""
        view = self.language_model.prepare(batch, noise)
        compared_BT = self.language_model.predicts(view)
        kept = {key: value for key, value in view.items() if key != "target"}
        return {**kept, "compared": compared_BT}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of compared positions."""
        return {"loss": int(batch["compared"].sum())}

    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        """Return tau^2 KL(p0 || p), summed over the compared positions, in nats and float32."""
        if self._source is None:
            raise RunError(
                f"{self._key}: source distillation compares with the model that its run started "
                "from, which a finished run does not hold; evaluate another of its losses"
            )
        with torch.no_grad():
            source_NV = self._log_softmax(self._source, batch, Encoding(self._source, batch))
        own_NV = self._log_softmax(model, batch, encoded)
        divergence = F.kl_div(own_NV, source_NV, reduction="sum", log_target=True)
        # The gradient shrinks by tau^2 as logits are divided by tau (Hinton et al. 2015).
        return {"loss": self.temperature**2 * divergence}

    @property
    def _key(self) -> str:
        return "objective" if self.info.name == "main" else f"losses.{self.info.name}"

    def _log_softmax(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Tensor:
        logits_NV: Tensor = model.heads[HEAD](
            encoded.top.flatten(0, 1).index_select(0, rows_compared(batch)),
            model.backbone.token_embedding.weight,
        )
        return (logits_NV.float() / self.temperature).log_softmax(-1)
