"""What `transfer` is measured against: bare products, a plain loop, the tutorial, Hugging Face.

Every function here is a worker of `measuring`: it is given the gate and a size, and takes steps on
random tokens until it is ended. All of them do the same work: float32, residual dropout, none on
the attention's probabilities, the gradient clipped, an AdamW update. Imports torch alone at the
top; transformers only where it is needed, since it is installed for the peers' interpreter only.
"""

import itertools
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLIP = 0.25
DROPOUT = 0.1
RATE = 2.5e-4
MASKED = 0.15
MASK_TOKEN = 4
IGNORED = -100
_BATCHES = 16
"""Batches that are made at the start; then they come again."""


@dataclass(frozen=True)
class Size:
    """The size of a model and of its batches; `feedforward` is the width inside a block."""

    width: int
    heads: int
    depth: int
    feedforward: int
    vocabulary: int
    length: int
    batch: int


def _batches(size: Size, device: str = "cpu") -> Iterator[Tensor]:
    """Return `[batch, length]` random tokens without end."""
    return itertools.cycle(_random_tokens(size, _BATCHES * size.batch).to(device).split(size.batch))


def _random_tokens(size: Size, rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(5, size.vocabulary, (rows, size.length), generator=generator)


def _mask_tokens(tokens: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return tokens with a share of them hidden, and what they were, `IGNORED` elsewhere."""
    hidden = torch.rand(tokens.shape, generator=generator) < MASKED
    return tokens.masked_fill(hidden, MASK_TOKEN), tokens.masked_fill(~hidden, IGNORED)


def _train(
    arrive: Callable[[], None], optimizer: torch.optim.Optimizer, batches: Iterable[Tensor],
    loss_of: Callable[[Tensor], Tensor],
) -> None:  # fmt: skip
    [group] = optimizer.param_groups
    for tokens in batches:
        arrive()
        loss_of(tokens).backward()
        nn.utils.clip_grad_norm_(group["params"], CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


# --------------------------------------------------------------------------------- bare products


def products(arrive: Callable[[], None], size: Mapping[str, int]) -> None:
    """Multiply what the linear layers of the model multiply, forward and backward, and no more.

    Each product writes to memory that is there already, and layers of a shape share it: nothing
    that trains this model with the same products can be faster.
    """
    s = Size(**size)
    d = s.width
    shapes = [(d, 3 * d), (d, d), (d, s.feedforward), (s.feedforward, d)]
    layers = [_linear_products(s.batch * s.length, *shape) for shape in shapes]
    head = _linear_products(s.batch * s.length, d, s.vocabulary)
    while True:
        arrive()
        for multiply in [*(layers * s.depth), head]:
            multiply()


def _linear_products(rows: int, inward: int, outward: int) -> Callable[[], None]:
    """Return what does the three products of a linear layer."""
    x, y = torch.randn(rows, inward), torch.randn(rows, outward)
    weight, by_weight = torch.randn(outward, inward), torch.empty(outward, inward)
    by_x, by_y = torch.empty(rows, inward), torch.randn(rows, outward)

    def multiply() -> None:
        torch.mm(x, weight.t(), out=y)
        torch.mm(by_y, weight, out=by_x)
        torch.mm(by_y.t(), x, out=by_weight)

    return multiply


def attention_products(arrive: Callable[[], None], size: Mapping[str, int]) -> None:
    """Multiply queries by keys and probabilities by values, forward and backward, and no more."""
    s = Size(**size)
    groups, per_head = s.batch * s.heads, s.width // s.heads
    q, k, v, by_out = (torch.randn(groups, s.length, per_head) for _ in range(4))
    out, by_q, by_k, by_v = (torch.empty(groups, s.length, per_head) for _ in range(4))
    scores, by_scores = (torch.empty(groups, s.length, s.length) for _ in range(2))
    while True:
        arrive()
        for _ in range(s.depth):
            torch.bmm(q, k.mT, out=scores)
            torch.bmm(scores, v, out=out)
            torch.bmm(by_out, v.mT, out=by_scores)
            torch.bmm(scores.mT, by_out, out=by_v)
            torch.bmm(by_scores, k, out=by_q)
            torch.bmm(by_scores.mT, q, out=by_k)


# ------------------------------------------------------------------------ a nanoGPT-style loop


class _PreNormBlock(nn.Module):
    def __init__(self, size: Size, attention_dropout: float) -> None:
        super().__init__()
        d = size.width
        self.attention_dropout = attention_dropout
        self.heads = size.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, size.feedforward), nn.Linear(size.feedforward, d)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        cut = self.qkv(self.norm_1(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in cut)
        mixed = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=self.attention_dropout
        )
        x = x + self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.down(F.relu(self.up(self.norm_2(x)))))


class PlainLanguageModel(nn.Module):
    """Norms before each part, queries, keys and values in one product, head tied, all logits."""

    def __init__(self, size: Size, attention_dropout: float = 0.0) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(size.length, size.width)
        self.dropout = nn.Dropout(DROPOUT)
        self.blocks = nn.ModuleList(
            _PreNormBlock(size, attention_dropout) for _ in range(size.depth)
        )
        self.norm = nn.LayerNorm(size.width)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits, `[batch, length, vocabulary]`."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.positions(positions))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


def plain_loop(
    arrive: Callable[[], None], size: Mapping[str, int], attention_dropout: float = 0.0, *,
    device: str = "cpu", compiled: bool = False,
) -> None:  # fmt: skip
    """Train a nanoGPT-style model in a loop of a few lines, with fused AdamW.

    What is compiled computes in bfloat16.
    """
    s = Size(**size)
    model = PlainLanguageModel(s, attention_dropout).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)

    def loss_of(tokens: Tensor) -> Tensor:
        # As many targets as inputs, as nanoGPT has them; which tokens they are is all the same.
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=compiled):
            logits = model(tokens)
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens.roll(-1, dims=1).flatten())

    _train(arrive, optimizer, _batches(s, device), torch.compile(loss_of) if compiled else loss_of)


# ------------------------------------------------------------------------- the tutorial's model


class _TutorialModel(nn.Module):
    """Sequence first, `nn.MultiheadAttention`, a float mask in every pass, residuals after norms.

    The shape of the NAACL 2019 tutorial's model, written anew.
    """

    def __init__(self, size: Size, *, causal: bool, attention_dropout: float = 0.0) -> None:
        super().__init__()
        d = size.width
        self.causal = causal
        self.tokens = nn.Embedding(size.vocabulary, d)
        self.positions = nn.Embedding(size.length, d)
        self.dropout = nn.Dropout(DROPOUT)
        depth = range(size.depth)
        self.norms_1 = nn.ModuleList(nn.LayerNorm(d, eps=1e-12) for _ in depth)
        self.norms_2 = nn.ModuleList(nn.LayerNorm(d, eps=1e-12) for _ in depth)
        self.attentions = nn.ModuleList(
            nn.MultiheadAttention(d, size.heads, dropout=attention_dropout) for _ in depth
        )
        self.feedforwards = nn.ModuleList(
            nn.Sequential(nn.Linear(d, size.feedforward), nn.ReLU(), nn.Linear(size.feedforward, d))
            for _ in depth
        )
        self.head = nn.Linear(d, size.vocabulary, bias=False)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.states(tokens))

    def states(self, tokens: Tensor, padding: Tensor | None = None) -> Tensor:
        """Return `[length, batch, width]`; `padding`, `[batch, length]`, is added to the scores."""
        length = len(tokens)
        positions = torch.arange(length, device=tokens.device).unsqueeze(-1)
        h = self.dropout(self.tokens(tokens) + self.positions(positions))
        mask = None
        if self.causal:
            mask = torch.full((length, length), -math.inf, device=h.device).triu(diagonal=1)
        layers = zip(self.norms_1, self.attentions, self.norms_2, self.feedforwards, strict=True)
        for norm_1, attention, norm_2, feedforward in layers:
            h = norm_1(h)
            mixed, _ = attention(
                h, h, h, attn_mask=mask, key_padding_mask=padding, need_weights=False
            )
            h = self.dropout(mixed) + h
            h = norm_2(h)
            h = self.dropout(feedforward(h)) + h
        return h


def tutorial(
    arrive: Callable[[], None], size: Mapping[str, int], attention_dropout: float = 0.0, *,
    causal: bool = True,
) -> None:  # fmt: skip
    """Train the tutorial's model as the tutorial did: Adam, and logits at all positions."""
    s = Size(**size)
    model = _TutorialModel(s, causal=causal, attention_dropout=attention_dropout)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    generator = torch.Generator().manual_seed(1)

    def loss_of(tokens: Tensor) -> Tensor:
        inputs = targets = tokens.t().contiguous()
        if not causal:
            inputs, targets = _mask_tokens(inputs, generator)
        logits = model(inputs)
        if causal:
            logits, targets = logits[:-1], targets[1:]
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)

    _train(arrive, optimizer, _batches(s), loss_of)


def tutorial_classifier(
    arrive: Callable[[], None], size: Mapping[str, int], lengths: list[int], labels: int
) -> None:
    """Fine-tune the tutorial's model as the tutorial did, on texts of given lengths in tokens.

    All are padded to the longest. Logits and loss of the language model are computed everywhere,
    and the loss counts nothing.
    """
    s = Size(**size)
    model = _TutorialModel(s, causal=True)
    classifier = nn.Linear(s.width, labels)
    optimizer = torch.optim.AdamW([*model.parameters(), *classifier.parameters()], lr=RATE)
    generator = torch.Generator().manual_seed(1)
    rows = torch.arange(s.batch)

    def loss_of(tokens: Tensor) -> Tensor:
        chosen = torch.randint(len(lengths), (s.batch,), generator=generator)
        ends = torch.tensor(lengths)[chosen] - 1
        targets = torch.randint(labels, (s.batch,), generator=generator)
        padding = torch.zeros(s.batch, s.length)
        padding.masked_fill_(torch.arange(s.length) > ends[:, None], -math.inf)
        sequences = tokens.t().contiguous()
        h = model.states(sequences, padding)
        shifted = model.head(h)[:-1].view(-1, s.vocabulary)
        language = F.cross_entropy(shifted, sequences[1:].view(-1), ignore_index=IGNORED)
        return F.cross_entropy(classifier(h[ends, rows]), targets) + 0.0 * language

    _train(arrive, optimizer, _batches(s), loss_of)


# --------------------------------------------------------------------------------- Hugging Face


def gpt2_trainer(
    arrive: Callable[[], None], size: Mapping[str, int], activation: str = "relu",
    attention_dropout: float = 0.0, **settings: Any,
) -> None:  # fmt: skip
    """Train `GPT2LMHeadModel` on random tokens under Hugging Face's `Trainer`.

    GPT-2 itself has `gelu_new`, which is several products and powers, and drops a tenth of its
    attention. `settings` are `TrainingArguments` besides their defaults; none: those of a CPU.
    """
    import transformers

    s = Size(**size)
    config = transformers.GPT2Config(
        vocab_size=s.vocabulary, n_positions=s.length, n_embd=s.width, n_layer=s.depth,
        n_head=s.heads, n_inner=s.feedforward, activation_function=activation,
        resid_pdrop=DROPOUT, embd_pdrop=DROPOUT, attn_pdrop=attention_dropout, bos_token_id=0,
        eos_token_id=0, use_cache=False, attn_implementation="sdpa",
    )  # fmt: skip

    rows = [{"input_ids": row, "labels": row} for row in _random_tokens(s, 256 * s.batch)]
    settings = settings or {"use_cpu": True, "dataloader_pin_memory": False}
    settings |= {"learning_rate": RATE, "max_grad_norm": CLIP}
    run_trainer(arrive, transformers.GPT2LMHeadModel(config), rows, s.batch, settings)


def run_trainer(
    arrive: Callable[[], None], model: Any, rows: list[Any], batch: int,
    settings: Mapping[str, Any], **parts: Any,
) -> None:  # fmt: skip
    """Run the `Trainer`; `parts` are its own arguments, `settings` those of `TrainingArguments`."""
    import transformers

    class AtEachStep(transformers.TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            arrive()

    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder, per_device_train_batch_size=batch, max_steps=10**6,
            save_strategy="no", report_to="none", **settings,
        )  # fmt: skip
        parts |= {"train_dataset": rows, "callbacks": [AtEachStep()]}
        transformers.Trainer(model, arguments, **parts).train()


def bert_loop(arrive: Callable[[], None], size: Mapping[str, int]) -> None:
    """Train `BertForMaskedLM` in a loop of a few lines, with fused AdamW."""
    from transformers import BertConfig, BertForMaskedLM

    s = Size(**size)
    model = BertForMaskedLM(BertConfig(
        vocab_size=s.vocabulary, hidden_size=s.width, num_hidden_layers=s.depth,
        num_attention_heads=s.heads, intermediate_size=s.feedforward,
        max_position_embeddings=s.length, hidden_act="relu", hidden_dropout_prob=DROPOUT,
        attention_probs_dropout_prob=0.0, attn_implementation="sdpa",
    ))  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    generator = torch.Generator().manual_seed(1)

    def loss_of(tokens: Tensor) -> Tensor:
        inputs, targets = _mask_tokens(tokens, generator)
        return model(input_ids=inputs, labels=targets).loss

    _train(arrive, optimizer, _batches(s), loss_of)
