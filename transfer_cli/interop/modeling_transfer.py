"""A model that `transfer` has trained, for the transformers library (trust_remote_code=True).

An export puts this file beside the weights. It computes answers and no losses.

Legend: B batch, T positions, S keys, H heads, W width of a head, F pairs of its numbers that are
turned, D width, E size of an embedding, V vocabulary,
C classes.
"""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutput,
    CausalLMOutput,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)

ACTIVATIONS = {
    "relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    "silu": F.silu, "tanh": torch.tanh,
}  # fmt: skip


class TransferConfig(PretrainedConfig):
    """The values of config.json."""

    model_type = "transfer"
    attribute_map = {  # noqa: RUF012 - the library's own form
        "hidden_size": "width", "num_hidden_layers": "depth", "num_attention_heads": "heads",
        "max_position_embeddings": "positions",
    }  # fmt: skip


class Adapter(nn.Module):
    """W_up act(W_down z + b_down) + b_up, scaled (Houlsby et al. 2019, He et al. 2022)."""

    def __init__(self, width: int, size: int, activation: str, scale: float = 1.0) -> None:
        super().__init__()
        self.down = nn.Linear(width, size)
        self.up = nn.Linear(size, width)
        self.activation = ACTIVATIONS[activation]
        self.scale = scale

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Return what is added to `[B, T, D]`."""
        out: Tensor = self.scale * self.up(self.activation(self.down(hidden_BTD)))
        return out


class RMSNorm(nn.Module):
    """Divides by the root mean square (Zhang and Sennrich 2019)."""

    def __init__(self, size: int, epsilon: float, offset: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), 1 - offset))
        self.epsilon, self.offset = epsilon, offset

    def forward(self, z: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        gain = self.weight.float() + self.offset
        return F.rms_norm(z.float(), gain.shape, gain, self.epsilon).to(z.dtype)


def norm_of(config: Any, size: int) -> nn.Module:
    """Return the kind of norm that all of a model's are."""
    if config.norm in ("rms", "rms_unit"):
        return RMSNorm(size, config.epsilon, float(config.norm == "rms_unit"))
    return nn.LayerNorm(size, eps=config.epsilon, bias=config.norm == "layer")


class Attention(nn.Module):
    """Self-attention; one layer makes queries, keys and values."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.head_size, self.sharing = config.head_size, config.heads // config.shared_heads
        wide, narrow = (heads * self.head_size for heads in (config.heads, config.shared_heads))
        self.rows = [wide, narrow, narrow]
        self.packed = nn.Linear(config.width, sum(self.rows), bias=config.biases != "none")
        self.output = nn.Linear(wide, config.width, bias=config.biases == "all")
        if config.query_key_norm:
            self.query_norm = norm_of(config, self.head_size)
            self.key_norm = norm_of(config, self.head_size)

    def forward(self, hidden_BTD: Tensor, seen_B1TS: Tensor, angle_B1TF: Tensor | None) -> Tensor:
        """Return `[B, T, D]`; `seen_B1TS` is True where a query sees a key."""
        query, key, value = (
            part.unflatten(2, (-1, self.head_size)).transpose(1, 2)
            for part in self.packed(hidden_BTD).split(self.rows, dim=2)
        )
        if hasattr(self, "query_norm"):
            query, key = self.query_norm(query), self.key_norm(key)
        if angle_B1TF is not None:
            query, key = turned(query, angle_B1TF), turned(key, angle_B1TF)
        key, value = (each.repeat_interleave(self.sharing, dim=1) for each in (key, value))
        mixed_BHTW = F.scaled_dot_product_attention(query, key, value, attn_mask=seen_B1TS)
        out: Tensor = self.output(mixed_BHTW.transpose(1, 2).flatten(2))
        return out


def turned(states_BHTW: Tensor, angle_B1TF: Tensor) -> Tensor:
    """Return queries or keys, the first numbers of which are turned in pairs (Su et al. 2021)."""
    cos, sin, pairs = angle_B1TF.cos(), angle_B1TF.sin(), angle_B1TF.shape[-1]
    first, second, rest = states_BHTW.tensor_split((pairs, 2 * pairs), dim=-1)
    made = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat([*(each.to(rest.dtype) for each in made), rest], dim=-1)


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, which may be gated."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.is_gated, bias = config.feedforward_kind == "gated", config.biases == "all"
        inner = config.feedforward * (1 + self.is_gated)
        self.inner = nn.Linear(config.width, inner, bias=bias)
        self.output = nn.Linear(config.feedforward, config.width, bias=bias)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Return `[B, T, D]`."""
        gate, *up = self.inner(hidden_BTD).chunk(1 + self.is_gated, dim=-1)
        activated = self.activation(gate)
        out: Tensor = self.output(activated * up[0] if up else activated)
        return out


class Block(nn.Module):
    """Attention and feed-forward layer, with norms before them, after them or on the sums."""

    def __init__(self, config: Any, number: int) -> None:
        super().__init__()
        self.residual = config.residual
        is_plain = self.residual == "pre_first_plain" and number == 0
        self.attention_norm = nn.Identity() if is_plain else norm_of(config, config.width)
        self.attention = Attention(config)
        self.feed_forward_norm = norm_of(config, config.width)
        self.feed_forward = FeedForward(config)
        if self.residual == "sandwich":
            self.attention_first_norm = norm_of(config, config.width)
            self.feed_forward_first_norm = norm_of(config, config.width)
        adapters = {name: Adapter(config.width, *each) for name, each in config.adapters.items()}
        self.sites = nn.ModuleDict(adapters)

    def forward(self, z: Tensor, seen_B1TS: Tensor, angle_B1TF: Tensor | None) -> Tensor:
        """Return `[B, T, D]`."""
        attention = partial(self.attention, seen_B1TS=seen_B1TS, angle_B1TF=angle_B1TF)
        if self.residual == "parallel":
            attended = self._adapted(attention(self.attention_norm(z)), z, "attention")
            read = self.feed_forward_norm(z)
            return z + attended + self._adapted(self.feed_forward(read), read, "feed_forward")
        z = self._with(z, "attention", attention)
        return self._with(z, "feed_forward", self.feed_forward)

    def _with(self, z: Tensor, name: str, part: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the state with the update of a sub-layer."""
        norm, form = getattr(self, f"{name}_norm"), self.residual
        if form == "post":
            summed: Tensor = norm(z + self._adapted(part(z), z, name))
            return summed
        if form in ("sandwich", "reordered"):
            read = getattr(self, f"{name}_first_norm")(z) if form == "sandwich" else z
            return z + self._adapted(norm(part(read)), read, name)
        normed = norm(z)
        z = normed if form == "tutorial" else z
        return z + self._adapted(part(normed), normed, name)

    def _adapted(self, update: Tensor, read: Tensor, name: str) -> Tensor:
        """Return a sub-layer's update with adapters of it, and of what it reads."""
        if f"after_{name}" in self.sites:
            update = update + self.sites[f"after_{name}"](update)
        if f"beside_{name}" in self.sites:
            update = update + self.sites[f"beside_{name}"](read)
        return update


class TransferPreTrainedModel(PreTrainedModel):
    """What all models of this file have."""

    config_class = TransferConfig
    base_model_prefix = "backbone"
    _no_split_modules = ["Block"]  # noqa: RUF012 - the library's own form


class TransferModel(TransferPreTrainedModel):
    """Embeddings and blocks; the output is the last hidden state, or a mix of all."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        size = config.embedding_width or config.width
        self.token_embedding = nn.Embedding(config.vocab_size, size)
        if config.position_kind == "learned":
            self.position_embedding = nn.Embedding(config.positions, size)
        elif config.position_kind == "relative_bias":
            self.position_embedding = RelativeBias(config, size)
        if config.segments:
            self.segment_embedding = nn.Embedding(config.segments, size)
        if config.embedding_norm:
            self.embedding_norm = norm_of(config, size)
        if size != config.width:
            self.embedding_projection = nn.Linear(size, config.width)
        blocks = 1 + max(config.visits)
        self.blocks = nn.ModuleList(Block(config, number) for number in range(blocks))
        if config.final_norm:
            self.final_norm = norm_of(config, config.width)
        if config.mix:
            self.mix = Mix(config.depth + 1, norm=config.mix == "normed")
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """Return the table of token embeddings."""
        return self.token_embedding

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        output_hidden_states: bool | None = None,  # noqa: FBT001 - the library's signature
        **_: Any,
    ) -> BaseModelOutput:
        """Return hidden states `[B, T, D]`; `attention_mask` is 1 at real tokens."""
        mask_BT = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        mask_BT = mask_BT != 0
        state = self._embedded(input_ids, mask_BT, token_type_ids)
        itself_TT = torch.eye(mask_BT.shape[1], dtype=torch.bool, device=mask_BT.device)
        seen_B1TS = mask_BT[:, None, None, :] | itself_TT
        if self.config.direction == "causal":
            seen_B1TS = seen_B1TS & torch.ones_like(itself_TT).tril()
        near_B1TS = seen_B1TS & self._near(itself_TT)
        if self.config.position_kind == "relative_bias":
            bias_1HTS = self.position_embedding.scores(itself_TT.shape[0])
            near_B1TS, seen_B1TS = (
                bias_1HTS.masked_fill(~each, -math.inf) for each in (near_B1TS, seen_B1TS)
            )
        whole, local = (self._angles(mask_BT, name) for name in ("angles", "local_angles"))
        states = [state]
        for number, is_local in zip(self.config.visits, self.config.has_window, strict=True):
            given = (near_B1TS, local) if is_local else (seen_B1TS, whole)
            states.append(self.blocks[number](states[-1], *given))
        if self.config.final_norm:
            states[-1] = self.final_norm(states[-1])
        top_BTD = self.mix(states) if self.config.mix else states[-1]
        return BaseModelOutput(top_BTD, tuple(states) if output_hidden_states else None)

    def _near(self, itself_TT: Tensor) -> Tensor:
        """Return which keys are within the window of each query, `[T, T]`."""
        window, causal = self.config.window, self.config.direction == "causal"
        before, after = (window - 1, 0) if causal else (window // 2, window // 2)
        return torch.ones_like(itself_TT).triu(-before).tril(after)

    def _angles(self, mask_BT: Tensor, name: str) -> Tensor | None:
        """Return the angles of rotary positions, `[B, 1, T, F]`; None without them."""
        if self.config.position_kind != "rotary":
            return None
        position_BT = (mask_BT.long().cumsum(1) - 1).clamp(min=0)
        frequency_F = torch.tensor(getattr(self.config, name), device=mask_BT.device)
        return position_BT[:, None, :, None].float() * frequency_F

    def _embedded(self, tokens_BT: Tensor, mask_BT: Tensor, segment_BT: Tensor | None) -> Tensor:
        config = self.config
        position_BT = (mask_BT.long().cumsum(1) - 1).clamp(min=0)
        token_BTE = self.token_embedding(tokens_BT) * config.embedding_scale
        if config.position_kind in ("learned", "relative_bias"):
            summed = token_BTE + self.position_embedding(position_BT)
        elif config.position_kind == "rotary":
            summed = token_BTE
        else:
            size = token_BTE.shape[-1]
            summed = token_BTE * math.sqrt(size) + sinusoids(position_BT, size).to(token_BTE)
        if config.segments:
            segment_BT = torch.zeros_like(tokens_BT) if segment_BT is None else segment_BT
            summed = summed + self.segment_embedding(segment_BT.clamp(max=config.segments - 1))
        if config.embedding_norm:
            summed = self.embedding_norm(summed)
        if config.embedding_width not in (None, config.width):
            summed = self.embedding_projection(summed)
        return summed


class RelativeBias(nn.Embedding):
    """Embeddings of positions, and a bias of each head for each distance (Song et al. 2020)."""

    def __init__(self, config: Any, size: int) -> None:
        super().__init__(config.positions, size)
        self.bias = nn.Embedding(32, config.heads)

    def scores(self, length: int) -> Tensor:
        """Return the biases of all pairs of positions, `[1, H, T, T]`."""
        place_T = torch.arange(length, device=self.bias.weight.device)
        distance_TT = place_T - place_T[:, None]
        far_TT = distance_TT.abs()
        share = (far_TT.clamp(min=1) / 8).log() / math.log(16)
        row_TT = torch.where(far_TT < 8, far_TT, (8 + (share * 8).long()).clamp(max=15))
        return self.bias(row_TT + 16 * (distance_TT > 0)).permute(2, 0, 1)[None]


def sinusoids(position_BT: Tensor, size: int) -> Tensor:
    """Return fixed embeddings of positions, `[B, T, E]` (Vaswani et al. 2017, section 3.5)."""
    exponent = torch.arange(0, size, 2, device=position_BT.device).double() / size
    angle_BTE = position_BT[..., None] / 10_000**exponent
    return torch.stack([angle_BTE.sin(), angle_BTE.cos()], -1).flatten(-2)[..., :size]


class Mix(nn.Module):
    """gamma x sum_j softmax(w)_j H_j over all hidden states (Peters et al. 2018)."""

    def __init__(self, count: int, *, norm: bool) -> None:
        super().__init__()
        self.norm = norm
        self.weight = nn.Parameter(torch.zeros(count))
        self.gamma = nn.Parameter(torch.ones(()))

    def forward(self, states: list[Tensor]) -> Tensor:
        """Return `[B, T, D]`."""
        normed = [F.layer_norm(s, s.shape[-1:], eps=1e-5) if self.norm else s for s in states]
        weights = self.weight.softmax(0)
        mixed: Tensor = self.gamma * sum(w * s for w, s in zip(weights, normed, strict=True))
        return mixed


class LanguageModelHead(nn.Module):
    """Hidden states to logits, with a matrix of its own or the token embeddings."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        size = (config.embedding_width or config.width) if config.tie_output else config.width
        if config.output_transform:
            self.transform = nn.Linear(config.width, size, bias=config.biases == "all")
            self.norm = norm_of(config, size)
            self.activation = ACTIVATIONS[config.output_activation]
        if not config.tie_output:
            self.weight = nn.Parameter(torch.empty(config.vocab_size, size))
        if config.output_bias:
            self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden_BTD: Tensor, table_VE: Tensor) -> Tensor:
        """Return `[B, T, V]`."""
        if hasattr(self, "transform"):
            hidden_BTD = self.norm(self.activation(self.transform(hidden_BTD)))
        table_VE = getattr(self, "weight", table_VE)
        return F.linear(hidden_BTD, table_VE, getattr(self, "bias", None))


class TransferLanguageModel(TransferPreTrainedModel):
    """A backbone and logits of the vocabulary."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.backbone = TransferModel(config)
        self.lm_head = LanguageModelHead(config)
        self.post_init()

    def logits(self, *given: Any, **named: Any) -> dict[str, Any]:
        """Return logits `[B, T, V]`, and hidden states where they are asked for."""
        found = self.backbone(*given, **named)
        logits_BTV = self.lm_head(found.last_hidden_state, self.backbone.token_embedding.weight)
        return {"logits": logits_BTV, "hidden_states": found.hidden_states}


class TransferForMaskedLM(TransferLanguageModel):
    """A masked language model."""

    def forward(self, *given: Any, **named: Any) -> MaskedLMOutput:
        """See `TransferModel.forward`."""
        return MaskedLMOutput(**self.logits(*given, **named))


class TransferForCausalLM(TransferLanguageModel, GenerationMixin):
    """A causal language model; it keeps no keys and values from one token to the next."""

    def forward(self, *given: Any, **named: Any) -> CausalLMOutput:
        """See `TransferModel.forward`."""
        return CausalLMOutput(**self.logits(*given, **named))

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> dict[str, Any]:
        """Return the inputs of the next pass: all tokens so far."""
        return {"input_ids": input_ids, "attention_mask": attention_mask}


class Classifier(nn.Module):
    """Pooling, a pooler if there is one, and linear layers."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.pooling = config.pooling
        is_normed = config.pooler == "gelu_norm"
        self.activation = F.gelu if is_normed else ACTIVATIONS.get(config.pooler)
        if self.activation is not None:
            bias = not is_normed or config.biases == "all"
            self.pooler = nn.Linear(config.width, config.width, bias=bias)
        self.pooler_norm = norm_of(config, config.width) if is_normed else nn.Identity()
        sizes = [config.width * (3 if config.pooling == "concat" else 1), *config.hidden]
        layers: list[nn.Module] = []
        for inputs, size in itertools.pairwise(sizes):
            layers += [nn.BatchNorm1d(inputs)] if config.batch_norm else []
            layers += [nn.Identity(), nn.Linear(inputs, size), nn.ReLU()]
        self.hidden = nn.Sequential(*layers)
        self.norm = nn.BatchNorm1d(sizes[-1]) if config.batch_norm else nn.Identity()
        self.linear = nn.Linear(sizes[-1], config.num_labels)

    def forward(self, hidden_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        """Return `[B, C]`."""
        vector = pool(hidden_BTD, mask_BT, self.pooling)
        if self.activation is not None:
            vector = self.pooler_norm(self.activation(self.pooler(vector)))
        logits_BC: Tensor = self.linear(self.norm(self.hidden(vector)))
        return logits_BC


def pool(hidden_BTD: Tensor, mask_BT: Tensor, pooling: str) -> Tensor:
    """Return one vector a text, `[B, D]`, independent of padding; `[B, 3 D]` for concat."""
    if pooling == "concat":
        parts = ("cls_last", "max", "mean")
        return torch.cat([pool(hidden_BTD, mask_BT, part) for part in parts], dim=1)
    real_BT1 = mask_BT[..., None]
    if pooling == "mean":
        return torch.where(real_BT1, hidden_BTD, 0).sum(1) / real_BT1.sum(1).clamp(min=1)
    if pooling == "max":
        return torch.where(real_BT1, hidden_BTD, torch.finfo(hidden_BTD.dtype).min).amax(1)
    place_B = mask_BT.int().argmax(1)
    if pooling == "cls_last":
        place_B = mask_BT.shape[1] - 1 - mask_BT.int().flip(1).argmax(1)
    return hidden_BTD[torch.arange(len(hidden_BTD), device=hidden_BTD.device), place_B]


class TransferClassifier(TransferPreTrainedModel):
    """A backbone and a classifier."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.backbone = TransferModel(config)
        self.classifier = Classifier(config)
        self.post_init()

    def logits(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **named: Any
    ) -> dict[str, Any]:
        """Return logits `[B, C]`, and hidden states where they are asked for."""
        mask_BT = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        found = self.backbone(input_ids, mask_BT, **named)
        logits_BC = self.classifier(found.last_hidden_state, mask_BT != 0)
        return {"logits": logits_BC, "hidden_states": found.hidden_states}


class TransferForSequenceClassification(TransferClassifier):
    """A classifier of texts."""

    def forward(self, *given: Any, **named: Any) -> SequenceClassifierOutput:
        """See `TransferModel.forward`."""
        return SequenceClassifierOutput(**self.logits(*given, **named))


class TransferForMultipleChoice(TransferClassifier):
    """Gives each of several choices a number."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **named: Any,
    ) -> MultipleChoiceModelOutput:
        """See `TransferModel.forward`; all are `[B, C, T]`, and the logits `[B, C]`."""
        rows = (
            None if each is None else each.flatten(0, 1)
            for each in (input_ids, attention_mask, token_type_ids)
        )
        ids, mask, segment = rows
        found = self.logits(ids, mask, token_type_ids=segment, **named)
        found["logits"] = found["logits"].view(input_ids.shape[:2])
        return MultipleChoiceModelOutput(**found)


class TransferForQuestionAnswering(TransferPreTrainedModel):
    """Scores of each token as the first and as the last one of an answer."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.backbone = TransferModel(config)
        self.qa_outputs = nn.Linear(config.width, 2)
        self.post_init()

    def forward(self, *given: Any, **named: Any) -> QuestionAnsweringModelOutput:
        """See `TransferModel.forward`."""
        found = self.backbone(*given, **named)
        start_BT, end_BT = self.qa_outputs(found.last_hidden_state).unbind(2)
        return QuestionAnsweringModelOutput(
            start_logits=start_BT, end_logits=end_BT, hidden_states=found.hidden_states
        )


class TransferForTokenClassification(TransferPreTrainedModel):
    """Logits of a label for each token."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.backbone = TransferModel(config)
        self.classifier = nn.Linear(config.width, config.num_labels)
        self.post_init()

    def forward(self, *given: Any, **named: Any) -> TokenClassifierOutput:
        """See `TransferModel.forward`."""
        found = self.backbone(*given, **named)
        logits_BTC = self.classifier(found.last_hidden_state)
        return TokenClassifierOutput(logits=logits_BTC, hidden_states=found.hidden_states)
