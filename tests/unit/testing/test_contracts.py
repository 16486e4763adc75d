"""Contracts of edits, objectives, penalties and plans: ours keep them, broken parts do not."""

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests import tiny
from transfer_cli.adaptation.edit import Edit
from transfer_cli.adaptation.edits import Adapters, FreshTop, LoRA, MixLayers, NewRows
from transfer_cli.adaptation.penalties import L2SP
from transfer_cli.adaptation.plans import AllAtOnce, GradualUnfreezing, Only, Stage
from transfer_cli.batch import IGNORE
from transfer_cli.data.encoded_task import encode_texts
from transfer_cli.data.tokenizer_recipes import BytePairs, WordPiece
from transfer_cli.lengths import Length
from transfer_cli.model.adapters import Adapter
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import TaskInfo
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.objectives.masked_lm import MaskedLM
from transfer_cli.optim.layer_scale import Geometric, PerGroup, Uniform
from transfer_cli.optim.schedules import Constant, Cosine, InverseSqrt, Linear, Slanted
from transfer_cli.tasks.base import Result
from transfer_cli.tasks.chat.task import ChatTask, SupervisedChat
from transfer_cli.tasks.choice.task import ChoiceTask, MultipleChoice
from transfer_cli.tasks.classification import ClassificationTask
from transfer_cli.tasks.cloze.task import Cloze, ClozeTask
from transfer_cli.tasks.dialog.task import DialogTask, NextUtterance
from transfer_cli.tasks.multilabel import Multilabel, MultilabelTask
from transfer_cli.tasks.regression import Regression, RegressionTask
from transfer_cli.tasks.similarity.contrastive import Contrastive
from transfer_cli.tasks.similarity.task import SimilarityTask
from transfer_cli.tasks.span.task import SpanExtraction, SpanTask
from transfer_cli.tasks.tagging.objective import TokenTagging
from transfer_cli.tasks.tagging.task import TaggingTask
from transfer_cli.tasks.text_to_text.task import PrefixLM, TextToTextTask
from transfer_cli.testing.edits import check_edit
from transfer_cli.testing.objectives import check_objective
from transfer_cli.testing.penalties import check_penalty
from transfer_cli.testing.plans import check_layer_scale, check_plan, check_schedule, example_models
from transfer_cli.testing.tasks import check_task


class Reports(Edit):
    """Changes nothing, and reports some names."""

    def __init__(self, *names):
        self.names = set(names)

    def __call__(self, model, special):
        return self.names


class OnBothSites(Edit):
    """Adapters in every block, each changed in place."""

    def __init__(self, change=lambda adapter: None):
        self.change = change

    def __call__(self, model: TransferModel, special):
        like = model.backbone.token_embedding.weight
        for block in model.backbone.blocks:
            adapter = Adapter(like.shape[1], 4, "relu")
            self.change(adapter)
            block.sites["after_attention"] = adapter.to(like)
        return set()


def starts_elsewhere(adapter):
    nn.init.normal_(adapter.up.weight, std=0.01)


def never_moves(adapter):
    nn.init.zeros_(adapter.down.weight)


DRAWS = itertools.count()


def draws_from_its_own(adapter):
    generator = torch.Generator().manual_seed(next(DRAWS))
    adapter.down.weight.data.normal_(std=0.02, generator=generator)


class WrapsALayer(Edit):
    def __call__(self, model, special):
        for block in model.backbone.blocks:
            block.attention.output = nn.Sequential(block.attention.output)
        return set()


class KeepsQuiet(FreshTop):
    def __call__(self, model, special):
        super().__call__(model, special)
        return set()


class HidesInABlock(Edit):
    def __call__(self, model, special):
        like = model.backbone.token_embedding.weight
        model.backbone.blocks[0].register_parameter("extra", nn.Parameter(torch.zeros_like(like)))
        return set()


class MixesAtOnce(MixLayers):
    """Says that heads read the same as before, and mixes."""

    def __call__(self, model, special):
        super().__call__(model, special)
        model.readout.keeps_outputs = True
        return set()


class MergesWrongly(LoRA):
    def __call__(self, model, special):
        super().__call__(model, special)
        for block in model.backbone.blocks:
            packed = block.attention.packed
            packed.merged = lambda: nn.Linear(16, 48)
        return set()


class ForgetsItsAdapters(Adapters):
    structural = False


class HoldsWhatNoWeightsHold(Edit):
    """Adds a constant that depends on the seed, and does not save it."""

    def __call__(self, model, special):
        NewRows()(model, special)
        table = model.backbone.token_embedding.weight
        rows = model.backbone.new_rows
        rows.register_buffer("scale", torch.rand(()).to(table), persistent=False)
        rows.register_forward_hook(lambda module, _, added: added * module.scale)
        return set()


class LooksAtValues(OnBothSites):
    def __call__(self, model, special):
        largest = float(model.backbone.token_embedding.weight.detach().max())
        return super().__call__(model, special) if largest < 1e9 else {"never"}


class StaysOnTheCPU(Edit):
    def __call__(self, model, special):
        width = model.backbone.token_embedding.weight.shape[1]
        with torch.device("cpu"):
            for block in model.backbone.blocks:
                block.sites["after_attention"] = Adapter(width, 4, "relu")
        return set()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (WrapsALayer(), "attention.output.weight has lost its name"),
        (OnBothSites(starts_elsewhere), "changes the states of layer 1 before the first step"),
        (OnBothSites(never_moves), "gets no gradient"),
        (KeepsQuiet(), "does not report it"),
        (Reports("backbone.token_embedding.weight"), "which is as it was loaded"),
        (Reports("backbone.nothing"), "not in the model"),
        (HidesInABlock(), "is taken for a part of block.0"),
        (MixesAtOnce(), "changes what the heads read before the first step"),
        (MergesWrongly(), "computes something else when it is merged"),
        (OnBothSites(draws_from_its_own), "differs for the same seed"),
        (ForgetsItsAdapters(), "says that it is not structural"),
        (HoldsWhatNoWeightsHold(), "give other outputs in a model that is edited again"),
        (StaysOnTheCPU(), "is not on the model's device"),
        (LooksAtValues(), "meta tensors"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_contract_of_edits_catches(edit, message):
    with pytest.raises((AssertionError, RuntimeError), match=message):
        check_edit(edit)


@pytest.mark.parametrize("edit", [Reports(), OnBothSites()], ids=lambda value: type(value).__name__)
def test_an_edit_of_a_users_own_can_pass(edit):
    check_edit(edit)


class MeanInsteadOfSum(Classification):
    def loss_sums(self, model, batch, encoded):
        return {"loss": F.cross_entropy(self.outputs(model, batch, encoded), batch["label"])}


class CountsPadding(CausalLM):
    def counts(self, batch):
        return {"loss": batch["target"].numel()}


class LearnsPadding(CausalLM):
    def prepare(self, batch, noise):
        prepared = super().prepare(batch, noise)
        return {**prepared, "target": prepared["target"].clamp(min=0)}


class DrawsFromTheGlobalGenerator(MaskedLM):
    def prepare(self, batch, noise):
        prepared = super().prepare(batch, noise)
        hidden = torch.rand(prepared["tokens"].shape) < 0.3
        return {**prepared, "tokens": torch.where(hidden, 4, prepared["tokens"])}


class ChangesItsInput(CausalLM):
    def prepare(self, batch, noise):
        batch["tokens"][0, 0] = 4
        return super().prepare(batch, noise)


class LooksAtItsCompany(Classification):
    def prepare(self, batch, noise):
        return {**batch, "tokens": batch["tokens"].flip(0)}


class NamesTermsDifferently(Classification):
    @property
    def weights(self):
        return {"class": 1.0}


class NotesHalfOfItsLoss(Classification):
    def example_results(self, model, batch, encoded):
        results = super().example_results(model, batch, encoded)
        return replace(results, loss=results.loss / 2)


class NotesTokensAsTargets(CausalLM):
    def example_results(self, model, batch, encoded):
        results = super().example_results(model, batch, encoded)
        return replace(results, targets=batch["mask"].sum(1) + 1)


class NotesOneForAll(Classification):
    def example_results(self, model, batch, encoded):
        results = super().example_results(model, batch, encoded)
        return replace(results, predicted={"probability": results.predicted["probability"].mean()})


class DeclaresAnIdleModule(Classification):
    def modules(self, backbone):
        return {**super().modules(backbone), "idle": torch.nn.Linear(16, 2)}


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (MeanInsteadOfSum(), "no sum over the examples"),
        (CountsPadding(), "targets, and counts are"),
        (LearnsPadding(), "changes the counts to"),
        (DrawsFromTheGlobalGenerator(), "does not come from its noise"),
        (ChangesItsInput(), "changes the batch that it is given"),
        (LooksAtItsCompany(), "differently when it is alone"),
        (NamesTermsDifferently(), r"loss_sums names \['loss'\]"),
        (NotesHalfOfItsLoss(), "the losses of example_results and metric_sums differ"),
        (NotesTokensAsTargets(), "targets, and counts are"),
        (NotesOneForAll(), "no probability for each example"),
        (DeclaresAnIdleModule(), r"heads\.idle\.weight gets no gradient"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_contract_of_objectives_catches(objective, message):
    batch = tiny.Questions().batch(np.arange(6))

    with pytest.raises(AssertionError, match=message):
        check_objective(objective, TaskInfo(tiny.VOCABULARY, tiny.LABELS), batch)


def test_a_batch_without_padding_cannot_show_anything():
    batch = tiny.rows_to_batch([[5, 6], [7, 8]])

    with pytest.raises(AssertionError, match="examples of different lengths"):
        check_objective(CausalLM(), TaskInfo(tiny.VOCABULARY), batch)


class Lenient(L2SP):
    def start(self, start):
        if start.inherited:
            super().start(start)


class PullsToZero(L2SP):
    def __call__(self, model):
        return sum((p.square().sum() for p in model.parameters()), start=torch.zeros(()))


class KeepsNoCopy(L2SP):
    def start(self, start):
        super().start(start)
        self.anchors = dict(start.model.named_parameters())


class Changed(L2SP):
    """The pull, made into something else."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def __call__(self, model):
        return self.change(super().__call__(model))


class CountsTheFrozen(L2SP):
    def __call__(self, model):
        pulls = [(p - self.anchors[name]).square().sum() for name, p in model.named_parameters()]
        return torch.stack(pulls).sum()


class ForgetsTheFrozen(L2SP):
    def start(self, start):
        super().start(start)
        named = start.model.named_parameters()
        self.anchors = {name: self.anchors[name] for name, p in named if p.requires_grad}


@pytest.mark.parametrize(
    ("penalty", "message"),
    [
        (Lenient(), "inherits nothing"),
        (PullsToZero(), "at the start"),
        (KeepsNoCopy(), "is 0.0 away from the start"),
        (Changed(lambda value: value.detach()), "does not lead back"),
        (Changed(lambda value: 2 * value.detach() - value), "pushes it away"),
        (Changed(lambda value: value + 0.2 * (value - value.detach())), "finite differences"),
        (CountsTheFrozen(), "frozen parameters add"),
        (ForgetsTheFrozen(), "thaw where they started"),
        (Changed(lambda value: value.double()), "not float32"),
        (Changed(lambda value: value[None]), "no scalar"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_contract_of_penalties_catches(penalty, message):
    with pytest.raises(AssertionError, match=message):
        check_penalty(penalty)


REMAINDER = Length(None)


def one(*patterns):
    return [Stage(patterns, REMAINDER)]


def counting():
    count = itertools.count(1)
    return lambda groups: [Stage(("*",), Length(next(count))), *one("*")]


def emptying(groups):
    groups.clear()
    return one("*")


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (lambda groups: [], "a pretrained model: there is no stage"),
        (lambda groups: one(), "stage 1 trains nothing"),
        (lambda groups: one("block.7"), "a pretrained model: 'block.7' matches no parameter"),
        (lambda groups: one("added.*", "*"), r"a pretrained model: 'added\.\*' matches no"),
        (lambda groups: one("block.*"), r"head\.class is new and never trains"),
        (lambda groups: one("head.*"), r"a model with added modules: .*added\.0 is new and never"),
        (lambda groups: [*one("head.*"), *one("*")], "stage 1 takes the rest of the run"),
        (lambda groups: [Stage("*", REMAINDER)], "its patterns are no tuple: '\\*'"),
        (lambda groups: [("*",)], "stage 1 is no Stage"),
        (lambda groups: [Stage(("*",), Length(2000)), *one("*")], "but the run has 1000"),
        (counting(), "gives other stages when it is asked again"),
        (emptying, "changes the layer groups"),
    ],
)
def test_the_contract_of_plans_catches(plan, message):
    with pytest.raises(AssertionError, match=message):
        check_plan(plan)


def test_a_plan_can_be_for_some_models_and_longer_runs_only():
    check_plan(Only(("head.*",)), {"plain": example_models()["a pretrained model"]})
    check_plan(GradualUnfreezing("300 steps"), total=2000)

    with pytest.raises(AssertionError, match="make stages shorter or the run longer"):
        check_plan(GradualUnfreezing("300 steps"))


def test_the_example_models_differ_in_what_plans_look_at():
    models = example_models(depth=2)

    names = {what: [group.name for group in groups] for what, groups in models.items()}
    assert names["a pretrained model"] == ["embeddings", "block.0", "block.1", "head.class"]
    assert names["a model with added modules"][-3:] == ["added.0", "added.1", "head.class"]
    assert not any(group.inherited for group in models["a model from scratch"])
    assert all(group.inherited for group in models["a model that inherits all"])
    check_plan(AllAtOnce(), models)


class Forgetful:
    """A schedule that falls whenever it is asked."""

    def __init__(self):
        self.value = 1.0

    def __call__(self, step, total):
        self.value *= 0.9
        return self.value


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (Forgetful(), "depends on which were asked for before"),
        (lambda step, total: step / total, "the first step of 1 has a rate of 0"),
        (lambda step, total: 1 - 2 * step / total, "step 2 of 3 has the multiplier -0.3"),
        (lambda step, total: 1.5, r"step 0 of 1 has the multiplier 1.5, which is not in \[0, 1\]"),
        (lambda step, total: float("nan"), "step 0 of 1 has the multiplier nan"),
    ],
)
def test_the_contract_of_schedules_catches(schedule, message):
    with pytest.raises(AssertionError, match=message):
        check_schedule(schedule)


@pytest.mark.parametrize(
    "schedule",
    [Constant(), Constant(5), Linear(10), Linear(0.1), Cosine(0.02), Cosine(0.2, floor=0.1),
     InverseSqrt(10), Slanted(), Slanted(0.5, 4.0)],
)  # fmt: skip
def test_our_schedules_keep_the_contract(schedule):
    check_schedule(schedule)


def slower_each_time():
    count = itertools.count(1)
    return lambda name, depth, top: 1 / next(count)


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (slower_each_time(), "depends on which were asked for before"),
        (lambda name, depth, top: float(depth), "embeddings, at depth 0 of 2, has the multiplier"),
        (lambda name, depth, top: float("inf"), "the multiplier inf"),
        (lambda name, depth, top: 1.0 if name != "added.0" else -1.0, r"added\.0, at depth 2"),
        (PerGroup({"block.7": 0.5}), r"rates\.block\.7 matches no layer group"),
    ],
)
def test_the_contract_of_layer_scales_catches(scale, message):
    with pytest.raises(AssertionError, match=message):
        check_layer_scale(scale)


def test_our_layer_scales_keep_the_contract_one_for_a_single_model():
    for scale in (Uniform(), Geometric(2.6), Geometric(1.2), PerGroup({"block.*": 0.5})):
        check_layer_scale(scale)
    names = ["embeddings", *(f"block.{number}" for number in range(8)), "head.class"]
    check_layer_scale(PerGroup({"block.7": 0.5}), names)


# --- tasks ---------------------------------------------------------------------------------------


class CausalCloze(Cloze):
    direction = "causal"


class BidirectionalCloze(Cloze):
    direction = "bidirectional"


class TagsAllPieces(TaggingTask):
    @classmethod
    def sample(cls):
        task, examples = super().sample()
        return replace(task, label_all=True), examples


@pytest.fixture(scope="module")
def tokenizer():
    _, examples = ClassificationTask.sample()
    return WordPiece(size=60).make(lambda: iter([example.text for example in examples]))


@pytest.mark.parametrize(
    ("task", "objective"),
    [
        (ClassificationTask, Classification(pooling="mean")),
        (RegressionTask, Regression(pooling="mean")),
        (ChoiceTask, MultipleChoice(pooling="mean")),
        (SimilarityTask, Contrastive(matryoshka=(4, 8))),
        (SpanTask, SpanExtraction(mask_question=True)),
        (SpanTask, SpanExtraction(mask_question=False)),
        (MultilabelTask, Multilabel(pooling="mean")),
        (MultilabelTask, Multilabel(pooling="mean", pos_weight="balanced")),
        (DialogTask, NextUtterance(pooling="mean", reply_tokens=3)),
        (TextToTextTask, PrefixLM()),
        (ChatTask, SupervisedChat()),
        (ChatTask, SupervisedChat(tokens="all")),
        (ClozeTask, CausalCloze("{text} {mask}")),
        (ClozeTask, BidirectionalCloze("{text} {mask}")),
        (TaggingTask, TokenTagging()),
        (TagsAllPieces, TokenTagging()),
    ],
    ids=lambda part: getattr(part, "name", type(part).__name__),
)
def test_our_tasks_keep_the_contract(task, objective, tokenizer, monkeypatch):
    monkeypatch.setattr("transfer_cli.config.build._plugins", {"tests"})
    check_task(task, objective, tokenizer)


class LosesAnExample(ClassificationTask):
    def encode(self, examples, tokenizer, length, direction):
        return encode_texts(examples[1:], tokenizer, length, direction)


class NamesOtherFields(ClassificationTask):
    fields = ("labels",)


class LacksACell(ClassificationTask):
    @property
    def cell_names(self):
        return super().cell_names[1:]


class IsTooSure(ClassificationTask):
    def result(self, data, example, rows):
        return Result("a", "b", 2.0)


class ScoresWhatIsNotDeclared(ClassificationTask):
    def scores(self, data, rows):
        return {"rank": 1.0}


class IgnoresTheLength(ClassificationTask):
    def encode(self, examples, tokenizer, length, direction):
        return encode_texts(examples, tokenizer, 64, direction)


@dataclass(frozen=True)
class ForgetsItsOption(ClassificationTask):
    options: Sequence[str] = ("a",)

    def as_node(self):
        return super().node()

    @classmethod
    def sample(cls):
        _, examples = super().sample()
        return cls(("number", "place"), options=("b",)), examples


@pytest.mark.parametrize(
    ("task", "claim"),
    [
        (LosesAnExample, "rows belong to the examples"),
        (NamesOtherFields, "an answer has the keys"),
        (LacksACell, "there are 4 cells"),
        (IsTooSure, "a probability is 2.0"),
        (ScoresWhatIsNotDeclared, "answer_metrics does not declare {'rank'}"),
        (IgnoresTheLength, "a row is longer than 6"),
        (ForgetsItsOption, "builds another task"),
    ],
)
def test_the_contract_says_which_claim_does_not_hold(task, claim, tokenizer, monkeypatch):
    monkeypatch.setattr("transfer_cli.config.build._plugins", {"tests"})

    with pytest.raises(AssertionError, match=claim):
        check_task(task, Classification(pooling="mean"), tokenizer)


def test_an_objective_for_something_else_is_found(tokenizer):
    with pytest.raises(AssertionError, match="the objective is for None, not classification"):
        check_task(ClassificationTask, CausalLM(), tokenizer)


EXAMPLE = Path(__file__).parents[3] / "docs" / "example"
WORDS = ["Where", "does", "the", "Old", "Man", "end", "?", "Nothing", "here", "Rhine", "and",
         "Main"]  # fmt: skip


@pytest.fixture
def tagging(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(EXAMPLE)])
    monkeypatch.setattr("transfer_cli.config.build._plugins", {"mylab"})
    from mylab import tagging

    yield tagging
    for name in [name for name in sys.modules if name.partition(".")[0] == "mylab"]:
        del sys.modules[name]


@pytest.fixture(params=["wordpiece", "bytes"])
def words_tokenizer(request):
    recipe = {"wordpiece": WordPiece(size=60), "bytes": BytePairs(size=280)}[request.param]
    return recipe.make(lambda: iter([" ".join(WORDS)]))


def test_the_own_task_keeps_the_contract(tagging, words_tokenizer):
    check_task(tagging.Tagging, tagging.TagWords(), words_tokenizer)


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_every_word_has_its_tag_in_exactly_one_window(tagging, words_tokenizer, direction):
    task = tagging.Tagging(("O", "B-CITY", "I-CITY"))
    tags = ["O", "B-CITY", "I-CITY", "O"] * 3
    examples = [tagging.Sentence(WORDS, tags), tagging.Sentence(WORDS[:2], tags[:2])]
    whole = task.encode(examples, words_tokenizer, 200, direction)
    assert whole.example_of.tolist() == [0, 1]

    for length in (6, 8, 11):
        data = task.encode(examples, words_tokenizer, length, direction)

        assert (data.example_of == 0).sum() > 1
        target_RT = data.batch(np.arange(len(data)))["target"]
        rows = {row: {"tags": target.tolist()} for row, target in enumerate(target_RT)}
        windows = {row: said for row, said in rows.items() if data.example_of[row] == 0}
        assert task.answer(data, 0, windows) == {"words": WORDS, "tags": tags}
        assert int((target_RT != IGNORE).sum()) == 14
        result = task.result(data, 0, windows)
        assert result.expected == result.predicted == " ".join(tags)


def test_the_f1_is_of_whole_sentences(tagging, words_tokenizer):
    task = tagging.Tagging(("O", "B-CITY", "I-CITY"))
    examples = [tagging.Sentence(WORDS, ["B-CITY", *["I-CITY"] * 11])]
    data = task.encode(examples, words_tokenizer, 6, "causal")
    target_RT = data.batch(np.arange(len(data)))["target"]
    said = {row: {"tags": target.tolist()} for row, target in enumerate(target_RT)}

    assert task.scores(data, {0: said}) == {"span_f1": 1.0}
    said[1]["tags"][data.read_at[1][0]] = 0
    assert task.scores(data, {0: said}) == {"span_f1": 0.0}
