"""What training takes is what torch counts, whatever the shape of the model and whatever trains."""

import itertools
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests import tiny
from transfer_cli.adaptation import edits, plans
from transfer_cli.assembly.run import attach_tally
from transfer_cli.batch import IdleBatch, split_batch, with_facts, with_packed_rows
from transfer_cli.engine.carried_memory import CarriedMemory
from transfer_cli.engine.cost import pairs_seen, prices_of, training_flops
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.heads import LanguageModelHead
from transfer_cli.model.meta_device import without_weights
from transfer_cli.model.patterns import window_mask
from transfer_cli.model.products import TOKEN, ProductCounter
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, Loss
from transfer_cli.objectives.beside_main_head import CrossView
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.objectives.consistency import Consistency
from transfer_cli.objectives.masked_lm import MaskedLM
from transfer_cli.objectives.replaced_tokens import ReplacedTokens
from transfer_cli.objectives.with_teachers import SourceDistillation
from transfer_cli.tasks.choice.task import MultipleChoice
from transfer_cli.tasks.similarity.contrastive import Contrastive

SHAPES = {
    "bert": {
        "residual": "post", "direction": "bidirectional", "segments": 2, "pooler": "tanh",
        "output_transform": True,
    },
    "gpt2": {},
    "llama": tiny.MODERN,
    "neox": {"residual": "parallel", "position_kind": "rotary"},
    "gemma": {"residual": "sandwich", "norm": "rms", "feedforward_kind": "gated"},
    "strided": {"attention": "strided", "window": 5},
    "fixed": {"attention": "fixed", "window": 5, "summary": 2, "sparse": "alternate"},
    "shared": {"share": 1, "depth": 4},
    "xl": {"position_kind": "relative", "residual": "post", "recurrence": 24},
    "factorised": {"embedding_width": 8, "output_transform": True},
}  # fmt: skip
FROZEN = plans.NewWeights()
SCHEMES = {
    "full": ((), plans.AllAtOnce()),
    "frozen": ((), FROZEN),
    "top_k": ((), plans.TopBlocks(1)),
    "lora": ((edits.LoRA(rank=2),), FROZEN),
    "adapters": ((edits.Adapters(size=4),), plans.NewWeights(norms=True)),
    "beside": ((edits.ParallelAdapters(size=4),), FROZEN),
    "factors": ((edits.IA3(),), FROZEN),
    "prefix": ((edits.GatedPrefix(length=3),), FROZEN),
    "pals": ((edits.PALs(head_width=4),), FROZEN),
    "one_block": ((), plans.Only(("block.0", "head.*"))),
}  # fmt: skip
SPECIAL = {"cls": 2, "sep": 3, "mask": 4, "unk": 1, "pad": 0}
QUICK = {
    *itertools.product(("bert", "gpt2", "llama"), ("full", "lora")), ("gpt2", "frozen"),
    ("bert", "top_k"), ("strided", "full"), ("fixed", "full"),
}  # fmt: skip
"""The others are tried where there is time."""


def in_place(added, left, right, out_shape=None, **_):
    """Return what a product takes that is added in place, which torch's counter passes over."""
    return 2 * left[0] * left[1] * right[1]


@contextmanager
def counted():
    """Yield torch's counter; attention is computed by products that it knows."""
    counter = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: in_place})
    with sdpa_kernel(SDPBackend.MATH), counter:
        yield counter


def step_of(shape, scheme, objective, losses=None, **recipe):
    """Return a training step of a scheme."""
    added, plan = SCHEMES[scheme]
    model = tiny.model(objective, **SHAPES[shape])
    inherited = frozenset(n for n, _ in model.named_parameters() if n.startswith("backbone."))
    for edit in added:
        edit(model, SPECIAL)
    chosen = tiny.Recipe(plan=plan, inherited=inherited, **recipe)
    return counting(tiny.train_step(model, losses or objective, chosen))


def counting(step):
    """Return a step with its tally beside it."""
    step.tally = attach_tally(step)
    return step


def batch_of(objective, *, causal=True):
    if isinstance(objective, CausalLM | MaskedLM | ReplacedTokens):
        return tiny.all_of(tiny.blocks(100, 16))
    return tiny.all_of(tiny.Questions(causal=causal, examples=16))


def compared(step, *batches):
    """Return what we and torch count for one step."""
    step([{"main": batch} for batch in batches[:1]], 0)  # buffers and caches are made here
    step.tally.take_flops()
    with counted() as counter:
        step([{"main": batch} for batch in batches], 1)
    return step.tally.take_flops().done, counter.get_total_flops()


# --- against torch's counter -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "scheme"),
    [
        pytest.param(shape, scheme, marks=() if (shape, scheme) in QUICK else pytest.mark.slow)
        for shape in SHAPES
        for scheme in SCHEMES
    ],
)
def test_flops_are_those_of_torchs_counter(shape, scheme):
    objective = Classification(dropout=0.0)
    step = step_of(shape, scheme, objective)

    ours, theirs = compared(step, batch_of(objective))

    assert ours == pytest.approx(theirs, rel=0.01)


@pytest.mark.parametrize(
    ("shape", "scheme", "objective"),
    [
        ("gpt2", "full", CausalLM()), ("gpt2", "frozen", CausalLM()),
        ("llama", "top_k", CausalLM()),
        ("bert", "full", MaskedLM()), ("bert", "lora", MaskedLM()),
        ("factorised", "full", MaskedLM()),
        ("bert", "full", ReplacedTokens(width=0.5)),
        ("factorised", "full", ReplacedTokens("all_tokens", width=0.5)),
        ("llama", "full", ReplacedTokens("replace", width=0.5)),
        ("bert", "top_k", ReplacedTokens("detect_selected", width=0.5)),
    ],
)  # fmt: skip
def test_the_head_of_a_language_model_is_counted_at_scored_positions(shape, scheme, objective):
    step = step_of(shape, scheme, objective)

    ours, theirs = compared(step, batch_of(objective), batch_of(objective))

    assert ours == pytest.approx(theirs, rel=0.01)


def test_a_memory_is_counted():
    objective = CausalLM()
    step = step_of("xl", "full", objective)
    step._memories = CarriedMemory(step.model.backbone.shape, 7, 7, 9, torch.device("cpu"))
    batch = batch_of(objective)
    step([{"main": batch}], 0)

    flops = []
    for number in (1, 2, 3):
        step.tally.take_flops()
        with counted() as counter:
            step([{"main": batch}], number)
        flops.append(step.tally.take_flops())
        assert flops[-1].done == pytest.approx(counter.get_total_flops(), rel=0.01)

    assert flops[0].done < flops[1].done == flops[2].done
    assert flops[1].real < flops[1].done


FURTHER = {
    "none": None, "masked": partial(Consistency, "mask"), "fewer": partial(Consistency, "delete"),
    "dropout": partial(Consistency, "dropout"),
    "symmetric": partial(Consistency, "delete", symmetric=True), "views": CrossView,
}  # fmt: skip


@pytest.mark.parametrize(
    "lay_out", [with_facts, pytest.param(with_packed_rows, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("main", "further"),
    [
        *((Classification, further) for further in FURTHER),
        *((MultipleChoice, further) for further in ("none", "views")),
        (MaskedLM, "none"), (CausalLM, "none"), (partial(ReplacedTokens, width=0.5), "none"),
    ],
)  # fmt: skip
def test_every_pass_of_a_step_is_counted_and_none_computes_padding(main, further, lay_out):
    data = tiny.groups() if main is MultipleChoice else tiny.Questions(causal=False, examples=16)
    chosen = main(dropout=0.0) if main in (Classification, MultipleChoice) else main()
    more = [FURTHER[further]()] if FURTHER[further] else []
    direction = "causal" if main is CausalLM else "bidirectional"
    model = tiny.model(chosen, *more, direction=direction)
    for extra in more:
        extra.on_data(data)
    losses = [Loss("main", chosen), *(Loss("further", extra) for extra in more)]
    step = counting(tiny.train_step(model, losses, tiny.Recipe()))
    step._add_facts = lay_out

    ours, theirs = compared(step, tiny.all_of(data))
    step([{"main": tiny.all_of(data)}], 2)

    tokens = [counts for (unit, _), counts in step.tally.amounts().items() if unit.endswith(TOKEN)]
    done, real = map(sum, zip(*tokens, strict=True))
    assert ours == pytest.approx(theirs, rel=0.01)
    assert done == real if lay_out is with_facts else real <= done < 1.2 * real


def test_a_source_that_is_asked_in_each_step_is_counted():
    main = CausalLM()
    source = SourceDistillation(CausalLM())
    model = tiny.model(main, source)
    source.on_train_start(model, {name for name, _ in model.named_parameters()})
    losses = [Loss("main", main), Loss("source", source)]
    step = counting(tiny.train_step(model, losses, tiny.Recipe()))

    ours, theirs = compared(step, batch_of(main))

    assert ours == pytest.approx(theirs, rel=0.01)


# --- what counts -------------------------------------------------------------------------------


def test_recomputation_adds_a_forward_pass_of_what_the_gradient_reaches():
    def price(*, recompute, trains):
        model = tiny.model(CausalLM())
        model.backbone.set_activation_checkpointing(recompute)
        names = {name for name, _ in model.named_parameters() if trains in name}
        return prices_of(model, names)["token"]

    whole, top = price(recompute=False, trains=""), price(recompute=False, trains="blocks.2")

    assert price(recompute=True, trains="").backward == whole.backward + whole.forward
    assert price(recompute=True, trains="blocks.2").backward == top.backward + whole.forward // 3


class OwnMatrix(nn.Module):
    """A layer that says itself what it multiplies."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(5, 7))

    def count_products(self, counter, unit, *, needs_grad):
        trains = counter.trains(self.weight)
        counter.add(unit, self.weight.numel(), needs_grad=needs_grad, trains=trains)
        return needs_grad or trains


def test_what_a_layer_says_that_it_multiplies_is_counted_and_moves_what_follows():
    layer = OwnMatrix()
    counter = ProductCounter({id(layer.weight)})

    assert counter.count(nn.Sequential(layer, nn.Linear(7, 3)), needs_grad=False)

    # Backward: of the first the gradient of its matrix, of the second that of its input.
    assert counter.prices == {TOKEN: [2 * (5 * 7 + 7 * 3)] * 2}


def test_padding_is_done_and_is_not_real():
    objective = Classification(dropout=0.0)
    step = step_of("bert", "full", objective)
    even, ragged = (
        {**tiny.rows_to_batch(rows), "label": torch.tensor([0, 1])}
        for rows in ([[5, 6, 7, 8], [5, 6, 7, 8]], [[5, 6, 7, 8], [5]])
    )

    flops = []
    for number, batch in enumerate((even, ragged)):
        step([{"main": batch}], number)
        flops.append(step.tally.take_flops())

    assert flops[0].done == flops[0].real
    # Only attention computes padding; the rest sees five of the eight tokens.
    assert 0.5 * flops[0].done < flops[1].done < flops[0].done
    assert flops[1].real < flops[1].done


@pytest.mark.parametrize("objective", [CausalLM(), Classification(dropout=0.0), Contrastive()])
def test_what_only_keeps_step_with_other_processes_is_done_and_is_not_real(objective):
    step, flops = step_of("gpt2", "full", objective), []
    pairs = isinstance(objective, Contrastive)
    micros = split_batch(tiny.all_of(tiny.pairs(8)) if pairs else batch_of(objective), 4)

    for number, idle in enumerate(([], [IdleBatch(split_batch(micros[0], 1)[0])])):
        step([{"main": micro} for micro in micros + idle], number)
        flops.append(step.tally.take_flops())

    assert flops[0].done < flops[1].done
    assert flops[0].real == flops[1].real


def test_kept_states_leave_the_head_alone():
    objective = Classification(dropout=0.0)
    step = step_of("gpt2", "frozen", objective)
    batch = batch_of(objective)

    step([{"main": {**batch, "pooled": torch.zeros(16, 16)}}], 0)

    # 16 texts, 16 x 3 weights: the product and the gradient of its matrix.
    assert step.tally.take_flops() == (2 * 2 * 16 * 16 * 3,) * 2


def test_each_stage_is_counted_at_its_own_price():
    objective = Classification(dropout=0.0)
    plan = plans.GradualUnfreezing(every="1 steps")
    model = tiny.model(objective)
    names = frozenset(n for n, _ in model.named_parameters() if n.startswith("backbone."))
    recipe = tiny.Recipe(plan=plan, inherited=names, total=6)
    step = counting(tiny.train_step(model, objective, recipe))
    batch = batch_of(objective)

    flops = []
    for number in range(5):
        step([{"main": batch}], number)
        flops.append(step.tally.take_flops().done)

    assert flops == sorted(flops)
    assert flops[4] > 2.5 * flops[0]


def test_what_is_not_asked_for_is_not_counted():
    objective = Classification(dropout=0.0)
    step = step_of("gpt2", "full", objective)
    batch = with_facts(batch_of(objective))

    step.model(lambda model: objective.loss_sums(model, batch, Encoding(model, batch)))

    assert step.tally.take_flops() == (0, 0)


@pytest.mark.parametrize("window", [1, 2, 3, 5, 8, 40])
@pytest.mark.parametrize("causal", [True, False])
def test_pairs_that_are_seen_are_those_of_the_mask(causal, window):
    lengths = [0, 1, 2, 5, 9]
    cpu = torch.device("cpu")
    masks = [window_mask(n, 0, window, causal=causal, device=cpu) for n in lengths]

    assert pairs_seen(lengths, causal=causal, window=window) == sum(int(m.sum()) for m in masks)


def test_pairs_of_whole_texts_are_squares_or_half_of_them():
    assert pairs_seen([3, 0, 4], causal=False) == 9 + 16
    assert pairs_seen([3, 0, 4], causal=True) == 6 + 10


def test_a_token_of_the_base_size_takes_314_million():
    shape = replace(tiny.preset("base"), direction="causal")
    with without_weights():
        backbone = Backbone(shape, 29_056)
        model = TransferModel(backbone, {"lm": LanguageModelHead(shape, 29_056)})

    assert training_flops(model, 256) == pytest.approx(314e6, rel=0.002)
