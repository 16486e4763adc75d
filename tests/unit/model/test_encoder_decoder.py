"""Two stacks: what the decoder sees, what a cache and packing change, groups and edits."""

import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from tests.unit.engine.test_cost import counted
from transfer_cli.adaptation.edits import IA3, Adapters, LoRA
from transfer_cli.batch import with_facts
from transfer_cli.engine.cost import FlopCounter
from transfer_cli.model.added import merge
from transfer_cli.model.attention import SourceText
from transfer_cli.model.encoder_decoder import EncoderDecoder
from transfer_cli.model.heads import LanguageModelHead
from transfer_cli.model.kv_cache import KVCache
from transfer_cli.model.shape import BackboneShape
from transfer_cli.model.transfer_model import TransferModel, layer_groups
from transfer_cli.objectives.base import Encoding

T5 = {"position_kind": "bias", "norm": "rms", "biases": "none", "feedforward_kind": "gated",
      "scaled_scores": False}  # fmt: skip
BART = {"residual": "post", "position_kind": "learned"}
each_kind = pytest.mark.parametrize("options", [T5, BART], ids=["t5", "bart"])


def model(**options):
    sizes = {"width": 16, "heads": 2, "depth": 3, "encoder_depth": 2, "feedforward": 24}
    usual = {**sizes, "positions": 20, "dropout": 0.0, "direction": "encoder_decoder"}
    shape = BackboneShape(**usual | options)
    torch.manual_seed(0)
    backbone = EncoderDecoder(shape, vocabulary=30)
    return TransferModel(backbone, {"lm": LanguageModelHead(shape, 30)}).eval()


def texts(lengths, seed):
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    draw = torch.randint(30, mask.shape, generator=torch.Generator().manual_seed(seed))
    return draw, mask


@each_kind
def test_padding_and_packing_change_nothing_and_no_later_token_is_seen(options):
    backbone = model(**options).backbone
    (tokens, mask), (read, seen) = texts([5, 3], 1), texts([4, 7], 2)

    whole = backbone(tokens, mask, source=SourceText(read, seen))[-1]
    alone = backbone(tokens[1:, :3], mask[1:, :3], padded=False,
                     source=SourceText(read[1:], seen[1:], padded=False))[-1]  # fmt: skip
    packing = tiny.packing(mask)
    rows = backbone(tokens, mask, packing=packing,
                    source=SourceText(read, seen, packing=tiny.packing(seen)))[-1]  # fmt: skip
    later, other = tokens.clone(), read.clone()
    later[:, 2] = (later[:, 2] + 1) % 30
    other[0, 3] = (other[0, 3] + 1) % 30
    changed = backbone(later, mask, source=SourceText(read, seen))[-1]
    reread = backbone(tokens, mask, source=SourceText(other, seen))[-1]

    assert_close(whole[1:, :3], alone, rtol=0, atol=1e-5)
    assert_close(packing.unpack(rows)[mask], whole[mask], rtol=0, atol=1e-5)
    assert_close(changed[:, :2], whole[:, :2], rtol=0, atol=1e-6)
    assert not torch.allclose(reread[0, 0], whole[0, 0], atol=1e-4)
    assert_close(reread[1], whole[1], rtol=0, atol=0)


@each_kind
def test_a_cache_reads_the_source_once_and_changes_nothing(options):
    backbone = model(**options).backbone
    (tokens, mask), (read, seen) = texts([6, 6], 1), texts([4, 7], 2)
    source = backbone.encode(SourceText(read, seen))
    cache, parts = KVCache(backbone.shape.depth, 6), []

    for part in tokens.split([3, 1, 1, 1], dim=1):
        here = torch.ones_like(part, dtype=torch.bool)
        parts.append(backbone(part, here, padded=False, kv_cache=cache, source=source)[-1])
        source = SourceText(read, seen, states=source.states * torch.nan)  # nobody reads it again

    whole = backbone(tokens, mask, padded=False, source=SourceText(read, seen))[-1]
    assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-5)


def test_groups_are_a_partition_with_both_stacks():
    whole = model(**T5)
    groups = layer_groups(whole, set())

    assert [group.name for group in groups] == [
        "embeddings", "encoder.block.0", "encoder.block.1", "decoder.block.0", "decoder.block.1",
        "decoder.block.2", "head.lm",
    ]  # fmt: skip
    assert [group.depth for group in groups] == [0, 1, 2, 3, 4, 5, 6]
    names = [name for group in groups for name in group.parameters]
    assert sorted(names) == sorted(name for name, _ in whole.named_parameters())
    assert "backbone.encoder.final_norm.weight" in groups[2].parameters
    assert "backbone.decoder.final_norm.weight" in groups[5].parameters


@each_kind
@pytest.mark.parametrize(
    ("edit", "in_cross"),
    [
        (LoRA(rank=2, dropout=0.0, targets=("query", "key", "value", "output")), 4),
        (IA3(), 2),
        (Adapters(size=4), 0),
    ],
)
def test_edits_reach_the_attention_on_the_source_and_start_as_nothing(options, edit, in_cross):
    whole = model(**options)
    (tokens, mask), (read, seen) = texts([5, 3], 1), texts([4, 7], 2)

    def top():
        return whole.backbone(tokens, mask, source=SourceText(read, seen))[-1]

    before = top()
    edit(whole, {})
    assert_close(top(), before, rtol=0, atol=1e-6)
    added = [g for g in layer_groups(whole, set()) if g.name.startswith("added.")]
    assert [g.name for g in added] == [f"added.encoder.{n}" for n in range(2)] + [
        f"added.decoder.{n}" for n in range(3)
    ]
    of_cross = [n for n in added[-1].parameters if "cross_attention" in n]
    sizes = {"lora": 2 * in_cross, "factors": in_cross}
    assert len(of_cross) == next((n for k, n in sizes.items() if k in of_cross[0]), 4)
    with torch.no_grad():
        for name, parameter in whole.named_parameters():
            if any(name in group.parameters for group in added):
                parameter.add_(0.1 * torch.randn_like(parameter))
    moved = top()
    assert not torch.allclose(moved, before, atol=1e-4)
    if in_cross:
        merge(whole)
        assert_close(top(), moved, rtol=0, atol=1e-5)


@pytest.mark.parametrize("edits", [(), (LoRA(rank=2, dropout=0.0),)], ids=["full", "lora"])
@each_kind
def test_what_training_takes_is_what_torch_counts(options, edits):
    whole = model(**options).train()
    for edit in edits:
        edit(whole, {})
    names = [name for name, _ in whole.named_parameters()]
    trains = {name for name in names if not edits or "lora" in name}
    for name, parameter in whole.named_parameters():
        parameter.requires_grad_(name in trains)
    (tokens, mask), (read, seen) = texts([5, 3], 1), texts([4, 7], 2)
    batch = {"tokens": tokens, "mask": mask, "tokens_source": read, "mask_source": seen}
    tally = FlopCounter(whole, [trains])

    with tally.counting(0), counted() as counter:
        top = Encoding(whole, with_facts(batch)).top[mask]
        whole.heads["lm"](top, whole.backbone.token_embedding.weight).square().sum().backward()

    assert tally.take_flops().done == counter.get_total_flops()


def test_checkpointing_finds_the_same_gradients():
    (tokens, mask), (read, seen) = texts([5, 3], 1), texts([4, 7], 2)
    gradients = []
    for recomputed in (False, True):
        whole = model(**T5).train()
        whole.backbone.set_activation_checkpointing(recomputed)
        top = whole.backbone(tokens, mask, source=SourceText(read, seen))[-1]
        top[mask].square().sum().backward()
        gradients.append({name: parameter.grad for name, parameter in whole.named_parameters()})
    assert_close(gradients[1], gradients[0], rtol=1e-5, atol=1e-6)
