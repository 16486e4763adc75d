"""The number of processes changes how long a run takes, and nothing else."""

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

from tests import several, tiny
from transfer_cli.batch import micro_batches, shard
from transfer_cli.data.sampler import StepSampler, num_micro_batches
from transfer_cli.data.split import Split
from transfer_cli.engine import distributed
from transfer_cli.engine.distributed import full_tensor
from transfer_cli.engine.distributed.sharded import shard_model
from transfer_cli.engine.evaluation import EachExample, evaluate
from transfer_cli.errors import NotFiniteError
from transfer_cli.model.readout import ScalarMix
from transfer_cli.objectives.base import Loss
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.objectives.masked_lm import MaskedLM
from transfer_cli.objectives.replaced_tokens import ReplacedTokens
from transfer_cli.tasks.similarity.contrastive import Contrastive

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

UNFREEZING = tiny.Given(
    (("head.*",), "3 steps"), (("head.*", "block.2"), "3 steps"), (("*",), "6 steps")
)
"""Freezes, unfreezes, and never trains the same set twice."""
CASES = {
    "clm": (CausalLM, lambda: tiny.blocks(tokens=1100), {}, {}),
    "mlm": (MaskedLM, lambda: tiny.blocks(tokens=1100), {"direction": "bidirectional"}, {}),
    "replaced": (
        lambda: ReplacedTokens(width=0.5, detect_weight=1.0),
        lambda: tiny.blocks(tokens=1100),
        {"direction": "bidirectional"},
        {},
    ),
    "classification": (
        lambda: Classification(class_weight={"animal": 0.1, "place": 7.0}),
        lambda: tiny.Questions(examples=65),
        {},
        {},
    ),
    "pairs": (lambda: Contrastive(scale=4.0), lambda: tiny.pairs(examples=65), {}, {}),
    "unfreezing": (
        Classification,
        lambda: tiny.Questions(examples=65),
        tiny.MODERN,
        {"plan": UNFREEZING},
    ),
    "mix": (Classification, lambda: tiny.Questions(examples=65), {}, {}),
}
COPIED = ("clm", "mlm", "replaced", "classification", "pairs", "unfreezing")
SHARDED = ("mlm", "replaced", "pairs", "unfreezing", "mix")
STEPS, BATCH, MICRO = 12, 32, 8


def trained(case, *, sharded=False, steps=STEPS):
    """Return weights and losses after some steps: 65 examples make each third step one of one."""
    objective, data, changes, recipe = CASES[case]
    made = tiny.Recipe(rate=0.1, total=steps, clip=0.5, optimizer=torch.optim.SGD, **recipe)
    objective, data = objective(), data()
    model = tiny.model(objective, **changes)
    if case == "mix":  # one of its parameters is a single number
        model.readout = ScalarMix(4, norm=False)
    if sharded:
        shard_model(model, torch.device("cpu"))
    step = tiny.train_step(model, objective, made, epoch=-(-len(data) // BATCH))
    run = tiny.Run(step, data, made, BATCH, MICRO)
    tiny.without_dropout(run.step.model)
    run.go()
    measures = tiny.measures(model, objective, data, batch=16)
    return {
        "measures": measures,
        "weights": {name: full_tensor(t) for name, t in tiny.weights_of(model).items()},
        "losses": run.losses,
        "norms": [float(report.gradient_norm) for report in run.reports],
        "seen": [[report.tokens, report.examples] for report in run.reports],
        "rates": run.rates,
    }


def two_streams():
    """Return weights after steps that draw one of two streams each, one of them with two losses."""
    main, other = Classification(), CausalLM()
    model = tiny.model(main, other)
    losses = [Loss("main", main), Loss("lm", other, weight=0.3), Loss("text", other, "text")]
    for loss in losses:
        tiny.bound(loss.objective)
    step = tiny.train_step(model, losses, tiny.Recipe(rate=0.1, optimizer=torch.optim.SGD, total=6))
    tiny.without_dropout(model)
    questions, text = tiny.Questions(examples=65), tiny.blocks(tokens=500)
    for number in range(6):
        name, data = ("text", text) if number % 3 == 1 else ("main", questions)
        order = StepSampler(len(data), 9, seed=0)
        portion = shard(order.indices(number), distributed.rank(), distributed.world_size())
        step([{name: data.batch(indices)} for indices in micro_batches(portion, 3)], number)
    return tiny.weights_of(model)


def measured():
    """Return the measures of 501 examples, and of fewer examples than there may be processes."""
    measures = {}
    for examples in (501, 2):
        objective = Classification()
        model = tiny.lively(tiny.model(objective))
        data = tiny.Questions(examples=examples)
        measures[str(examples)] = tiny.measures(model, objective, data, batch=16)
    return measures


def noted(case, *, sharded=False):
    """Return what became of each example, of which there may be fewer than processes."""
    objective, data, changes, _ = CASES[case]
    objective, data = objective(), data()
    model = tiny.lively(tiny.model(objective, **changes))
    if sharded:
        shard_model(model, torch.device("cpu"))
    rows = []
    for order in (None, torch.arange(2).numpy()):
        results, split = EachExample(), Split("test", data, order=order)
        evaluate(model, objective, split, batch=1, precision=tiny.FP32, each=results)
        rows += [
            [one.index, one.loss, one.targets, *one.predicted.values()]
            for one in results.gathered()
        ]
    return rows


def not_finite(*, sharded=False):
    """Return what an evaluation says of two examples whose loss is infinite."""
    objective, data = Classification(), tiny.Questions(examples=21)
    model = tiny.model(objective)
    for row in data.rows:
        row[:] = [5 if token == 6 else token for token in row]
    data.rows[17][0] = data.rows[12][0] = 6
    with torch.no_grad():
        model.backbone.token_embedding.weight[6] = 3e38
    if sharded:
        shard_model(model, torch.device("cpu"))
    split = Split("test", data, order=torch.arange(20, -1, -1).numpy())
    try:
        evaluate(model, objective, split, batch=2, precision=tiny.FP32)
    except NotFiniteError as error:
        return str(error)


def exchanges():
    """Return how often gradients stay with a process in one step of four micro-batches."""
    kept, no_sync = [], DistributedDataParallel.no_sync

    def note(module):
        kept.append(module)
        return no_sync(module)

    DistributedDataParallel.no_sync = note
    try:
        run = tiny.run(CausalLM(), tiny.blocks(), tiny.Recipe(total=1), batch=32, micro_batch=4)
        run.go()
    finally:
        DistributedDataParallel.no_sync = no_sync
    return len(kept)


def everything():
    """Return all of the above, and what processes say to each other."""
    rank = distributed.rank()
    return {
        **{case: trained(case) for case in COPIED},
        **{
            f"{case}, sharded": trained(case, sharded=distributed.world_size() > 1)
            for case in SHARDED
        },
        "noted": [noted(case) for case in ("mlm", "classification")],
        "noted, sharded": [
            noted(case, sharded=distributed.world_size() > 1) for case in ("mlm", "classification")
        ],
        "streams": two_streams(),
        "measures": measured(),
        "not finite": [not_finite(), not_finite(sharded=distributed.world_size() > 1)],
        "exchanges": exchanges(),
        "words": [
            distributed.all_reduce_sum([1.0, rank]),
            distributed.all_reduce_max(rank * 7),
            distributed.broadcast_text(f"from {rank}: ü"),
            distributed.all_gather_text("x" * rank),
        ],
    }


def a_part_of_it():
    """Return what three processes do, some of which have nothing to do in every third step."""
    return {
        "classification": trained("classification"),
        "measures": measured(),
        "noted": [noted(case) for case in ("mlm", "classification")],
    }


@pytest.fixture(scope="module")
def alone():
    return everything()


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    return several.on_processes(2, everything, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    return several.on_processes(3, a_part_of_it, tmp_path_factory.mktemp("three"))


ALL = [*COPIED, *(f"{case}, sharded" for case in SHARDED)]


@pytest.mark.parametrize("case", ALL)
def test_losses_and_weights_are_those_of_one_process(alone, together, case):
    for results in together:
        assert results[case]["seen"] == alone[case]["seen"]
        assert results[case]["rates"] == alone[case]["rates"]
        # Of a loss above 1, a float32 has fewer digits behind the point.
        losses = pytest.approx(alone[case]["losses"], rel=1e-6, abs=1e-6)
        assert results[case]["losses"] == losses
        assert results[case]["measures"] == pytest.approx(alone[case]["measures"], abs=1e-5)
        assert results[case]["norms"] == pytest.approx(alone[case]["norms"], rel=1e-4)
        for name, weight in alone[case]["weights"].items():
            assert_close(results[case]["weights"][name], weight, rtol=0, atol=1e-6, msg=name)


def test_all_processes_have_bitwise_the_same_weights(together):
    for case in ALL:
        for other in together[1:]:
            assert tiny.same(other[case]["weights"], together[0][case]["weights"])
            assert other[case]["losses"] == together[0][case]["losses"]


def test_streams_and_several_losses_are_those_of_one_process(alone, together):
    for results in together:
        for name, weight in alone["streams"].items():
            assert_close(results["streams"][name], weight, rtol=0, atol=1e-6, msg=name)


def assert_measured_and_noted(alone, processes):
    for results in processes:
        assert results["measures"].keys() == alone["measures"].keys()
        for size, measures in results["measures"].items():
            assert measures == pytest.approx(alone["measures"][size], abs=1e-9)
        for kind in ("noted", "noted, sharded"):
            for one, other in zip(alone[kind], results.get(kind, alone[kind]), strict=True):
                assert [row[0] for row in one] == [row[0] for row in other]
                for mine, theirs in zip(one, other, strict=True):
                    assert theirs == pytest.approx(mine, rel=1e-4, abs=1e-5)


def test_every_example_is_measured_and_noted_once_by_all_processes(alone, together):
    assert_measured_and_noted(alone, together)


def test_three_processes_give_what_one_gives(alone, three):
    assert_measured_and_noted(alone, three)
    for results in three:
        assert results["classification"]["seen"] == alone["classification"]["seen"]
        for name, weight in alone["classification"]["weights"].items():
            assert_close(
                results["classification"]["weights"][name], weight, rtol=0, atol=1e-6, msg=name
            )


def test_all_processes_name_the_first_example_that_is_not_finite(alone, together):
    for results in (alone, *together):
        for said in results["not finite"]:
            assert said.startswith("test: the loss of block 13 is not finite")


def test_gradients_are_exchanged_once_a_step(together):
    assert [results["exchanges"] for results in together] == [3, 3]


def test_processes_hear_each_other(together):
    count = len(together)
    for results in together:
        sums, largest, from_main, texts = results["words"]
        assert sums == [count, sum(range(count))]
        assert largest == 7 * (count - 1)
        assert from_main == "from 0: ü"
        assert texts == ["x" * rank for rank in range(count)]


def test_alone_a_process_hears_itself(alone):
    assert alone["words"] == [[1.0, 0], 0, "from 0: ü", [""]]
    assert distributed.is_main()


def test_shares_cover_all_and_come_in_equally_many_rounds():
    for count in (1, 2, 3, 5):
        items = list(range(11))
        shares = [shard(items, rank, count) for rank in range(count)]
        assert sorted(item for share in shares for item in share) == items
        assert num_micro_batches(11, 2, count) == max(-(-len(share) // 2) for share in shares)
