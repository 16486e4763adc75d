"""Legend: K points, T positions, W words, E size of an embedding, C classes."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests import subjects, tiny
from transfer_cli.analysis.attributions import (
    METHODS,
    MOST_STEPS,
    Attributions,
    attribute_words,
    faithfulness,
    integrated_gradients,
)
from transfer_cli.analysis.explained_text import ChosenTexts, Explainer, words_of
from transfer_cli.analysis.importance import (
    Importance,
    evaluate_subject,
    head_gradients,
    head_importance,
)
from transfer_cli.data.labelled import Example
from transfer_cli.data.split import Split
from transfer_cli.errors import ConfigError
from transfer_cli.model.probes import head_ones, set_gates
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.tasks.chat.task import SupervisedChat
from transfer_cli.tasks.choice.task import MultipleChoice
from transfer_cli.tasks.classification import ClassificationTask
from transfer_cli.tasks.multilabel import Multilabel, MultilabelTask
from transfer_cli.tasks.similarity.contrastive import Contrastive
from transfer_cli.tasks.similarity.task import SimilarityTask
from transfer_cli.tasks.text_to_text.task import PrefixLM

TEXTS = ("a cat sat", "the cat ate a hat", "that hat", "the tea at the sea", "eat the heat")
TASK = ClassificationTask(("even", "odd"))
EXAMPLES = [Example(text, number % 2) for number, text in enumerate(TEXTS)]
TOKENIZER = subjects.tokenizer_of(TEXTS)


def looked_at(
    objective=None, *, change=lambda model: None, direction="bidirectional", task=TASK, **changes
):
    """Return a classifier of the texts, which `change` is done to."""
    objective = objective or Classification(pooling="mean", dropout=0.0)
    model = tiny.model(objective, direction=direction, **changes)
    objective.setup(TaskInfo(TOKENIZER, TASK.labels, task=task))
    if isinstance(objective, Classification):
        model.heads = nn.ModuleDict(objective.modules(model.backbone))
    tiny.lively(model)
    change(model)
    data = TASK.encode(EXAMPLES, TOKENIZER, 32, direction)
    return subjects.subject(model, objective, data, task, TOKENIZER)


def bag_of_embeddings(model):
    """Make a model whose logits are linear in the embeddings; that of the mask token is 0."""
    model.backbone.final_norm = nn.Identity()
    with torch.no_grad():
        for block in model.backbone.blocks:
            for part in (block.attention, block.feed_forward):
                part.output.weight.zero_()
                part.output.bias.zero_()
        model.backbone.token_embedding.weight[TOKENIZER.mask] = 0
        model.heads["class"].linear.weight[1] = -model.heads["class"].linear.weight[0]


def of_text(subject, number=1, label=None):
    explainer = Explainer(subject)
    text = list(ChosenTexts(subject, explainer, label).evenly_spread(100))[number]
    return explainer, text, attribute_words(explainer, text, at_once=8)


def test_integrals_of_a_polynomial_are_exact():
    text_TE = torch.tensor([[2.0, 1.0], [0.5, -1.0]]).double()

    path = integrated_gradients(
        lambda points: (points**3).sum((1, 2)), text_TE, torch.zeros_like(text_TE), at_once=7
    )

    assert_close(path.scores, (text_TE**3).sum(-1))
    assert path.steps == 50


def test_steps_are_doubled_up_to_a_bound_where_scores_do_not_add_up():
    text_TE = torch.ones(1, 1)

    path = integrated_gradients(
        lambda points: torch.sign(points - 0.503).sum((1, 2)) + 0 * points.sum((1, 2)),
        text_TE, torch.zeros_like(text_TE),
    )  # fmt: skip

    assert (path.steps, path.residue, path.is_complete) == (MOST_STEPS, 2.0, False)


def test_all_methods_agree_on_a_bag_of_embeddings():
    subject = looked_at(change=bag_of_embeddings, position_kind="rotary")
    _, text, attribution = of_text(subject)
    weight_E = subject.model.heads["class"].linear.weight[text.output]
    table_VE = subject.model.backbone.token_embedding.weight

    with torch.no_grad():
        each_T = table_VE[text.row.tokens] @ weight_E / len(text.row.tokens)
    expected = [each_T[list(word.places)].sum().item() for word in text.words]

    for name in METHODS:
        np.testing.assert_allclose(attribution.scores[name], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "kind",
    [{}, {"residual": "post", "segments": 2}, tiny.MODERN, {"share": "all"},
     {"embedding_width": 8, "output_transform": True}],
    ids=str,
)  # fmt: skip
def test_scores_add_up_to_the_change_from_the_baseline(kind):
    explainer, text, attribution = of_text(looked_at(**kind))

    every = frozenset(range(len(text.words)))
    outputs, _ = explainer.score_without(text, [frozenset(), every])

    path, scores = attribution.path, attribution.scores["integrated_gradients"]
    assert path.change == pytest.approx(float(outputs[0] - outputs[1]), rel=1e-3, abs=1e-4)
    assert scores.sum() == pytest.approx(path.change, rel=0.05)
    assert path.is_complete


def test_a_deleted_word_is_as_if_it_had_not_been_there():
    subject = looked_at(direction="causal")
    explainer, text, _ = of_text(subject)
    number = [word.shown for word in text.words].index("ate")
    without = TASK.encode([Example("the cat a hat", 0)], TOKENIZER, 32, "causal").batch([0])

    outputs, _ = explainer.score_without(text, [frozenset(), frozenset({number})])

    assert explainer.removal == "delete"
    with torch.no_grad():
        expected = explainer.outputs(without)[0, text.output]
    assert float(outputs[1]) == pytest.approx(float(expected), abs=1e-5)


def test_pieces_belong_to_words_and_special_tokens_to_none():
    encoded = TASK.encode([Example("the heathat", 0, "sea")], TOKENIZER, 32, "bidirectional")
    tokens = encoded.batch([0])["tokens"][0].tolist()

    words = words_of(tokens, TOKENIZER)

    assert [word.shown for word in words] == ["the", "heathat", "sea"]
    assert len(words[1].places) > 1
    covered = [place for word in words for place in word.places]
    special = {TOKENIZER.cls, TOKENIZER.sep}
    assert covered == [at for at, token in enumerate(tokens) if token not in special]


def test_words_are_shown_as_they_were_written():
    text = "The HEAT & <b>"
    tokens = TASK.encode([Example(text, 0)], TOKENIZER, 32, "causal").batch([0])["tokens"][0]

    words = words_of(tokens.tolist(), TOKENIZER, [text])

    assert [word.shown for word in words] == ["The", "HEAT", "&", "<", "b", ">"]


def test_faithfulness_is_how_much_less_sure_a_model_is():
    explainer, text, _ = of_text(looked_at())
    order = list(range(len(text.words)))

    values = faithfulness(explainer, text, [order, order[::-1]])

    # Of five words a tenth is one word, and a half are two.
    _, sure = explainer.score_without(text, [frozenset(), frozenset({0}), frozenset({0, 1}),
                                       frozenset({2, 3, 4})])  # fmt: skip
    assert values.shape == (2, 2, 5)
    assert values[0, 0, [0, 4]] == pytest.approx((sure[0] - sure[1:3]).numpy(), abs=1e-6)
    assert values[0, 1, 4] == pytest.approx(float(sure[0] - sure[3]), abs=1e-6)


def test_a_model_is_as_sure_as_its_answers_say():
    explainer, text, _ = of_text(looked_at(task=replace(TASK, fitted={"temperature": 3.0})))

    _, (share,) = explainer.score_without(text, [frozenset()])

    with torch.no_grad():
        logits_C = explainer.outputs(explainer.batch_of([text.row]))[0]
    assert float(share) == pytest.approx(float((logits_C / 3).softmax(0)[text.output]), abs=1e-6)


@pytest.mark.parametrize("fitted", [{}, {"abstain_below": 1.0}], ids=str)
def test_only_wrong_answers_are_chosen(fitted):
    subject = looked_at(task=replace(TASK, fitted=fitted))

    result = Attributions(most=2, only_wrong=True, faithfulness=0)(subject)
    every = Attributions(faithfulness=0)(looked_at()).data["texts"]

    wrong = [answer for answer in every if answer["label"] != answer["prediction"]]
    assert 0 < len(wrong) < len(every)
    assert result.data["texts"] == wrong[:2]
    assert result.data["faithfulness"] == []


def test_that_a_text_has_no_label_may_be_right():
    task, examples = MultilabelTask.sample()
    objective = Multilabel(pooling="mean")
    model = lively(objective)
    objective.setup(TaskInfo(TOKENIZER, task.labels, task=task))
    model.heads = nn.ModuleDict(objective.modules(model.backbone)).eval()
    with torch.no_grad():
        model.heads["class"].linear.bias.fill_(-100.0)
    data = task.encode(examples, TOKENIZER, 32, "bidirectional")
    subject = subjects.subject(model, objective, data, task, TOKENIZER)

    result = Attributions(only_wrong=True, faithfulness=0)(subject)

    assert [text["example"] for text in result.data["texts"]] == [0, 1, 3]


def test_a_causal_language_model_says_what_it_goes_on_with():
    subject = looked_at(CausalLM(), direction="causal")

    data = Attributions(most=2, faithfulness=2)(subject).data

    text = data["texts"][0]
    assert text["words"] == ["a", "cat", "sat"]
    assert text["label"] is None
    assert text["output"] <= 0
    assert len(data["faithfulness"]) == 4


@pytest.mark.parametrize("objective", [PrefixLM(corrupt=0.3), PrefixLM(), SupervisedChat()])
def test_what_is_written_after_another_layout_than_a_prompts_is_not_explained(objective):
    subject = looked_at(CausalLM(), direction="causal")

    with pytest.raises(ConfigError, match=r"^run:"):
        Explainer(replace(subject, opened=replace(subject.opened, objective=objective)))


def test_texts_for_which_the_json_has_no_room_are_in_a_file(monkeypatch):
    monkeypatch.setattr("transfer_cli.analysis.analysis.MOST_JSON", 1500)

    result = Attributions(faithfulness=0)(looked_at())

    every = list(map(json.loads, result.files["texts.jsonl"].splitlines()))
    shown = result.data["texts"]
    assert 0 < len(shown) < len(every) == len(TEXTS)
    assert shown == every[: len(shown)]


@pytest.mark.parametrize(
    "analysis", [Attributions(most=2, faithfulness=3), Importance(left_out=[])], ids=str
)
def test_what_is_found_twice_is_the_same_and_the_model_is_as_it_was(analysis):
    subject = looked_at()
    before = tiny.weights_of(subject.model)

    first, second = (analysis(subject) for _ in range(2))

    assert first == second
    assert tiny.same(before, tiny.weights_of(subject.model))
    assert subject.model.backbone.probe is None
    for parameter in subject.model.parameters():
        assert parameter.requires_grad
        assert parameter.grad is None


def test_paths_begin_at_a_token_that_the_model_has_learnt():
    assert Explainer(looked_at()).baseline == "mask"
    assert Explainer(looked_at(direction="causal")).baseline == "pad"
    assert Explainer(looked_at(), baseline="zero").baseline == "zero"


# --- importance ----------------------------------------------------------------------------------


DATA = tiny.Questions(examples=12)


def lively(objective, **changes):
    made = tiny.model(objective, **changes).eval()
    tiny.lively(made)
    return made


def gradients(model, objective, data, batch=8, **facts):
    split = Split("validation", data, **facts)
    return head_gradients(model, objective, split, batch=batch, precision=tiny.FP32)


def loss(model, objective, data):
    measures = tiny.measures(model, objective, data)
    return measures["loss"] * len(data)


KINDS = [{}, {"residual": "post"}, {"residual": "parallel"}, {"share": "all"}, tiny.MODERN]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_gradient_says_how_the_loss_changes_when_a_head_counts_less(kind):
    objective = Classification()
    model = lively(objective, **kind).double()
    gradient = gradients(model, objective, DATA).sum(0)

    for layer, head in ((0, 1), (2, 0)):
        factors = head_ones(model.backbone).double()
        factors[layer, head] = 1 - 1e-4
        with set_gates(model.backbone, factors):
            change = loss(model, objective, DATA)
        change -= loss(model, objective, DATA)

        # What heads say is in float32, so the difference is known to some digits alone.
        assert change / 1e-4 == pytest.approx(-gradient[layer, head], rel=0.05, abs=0.05)


@pytest.mark.parametrize(
    ("objective", "data"),
    [(Classification(), DATA), (MultipleChoice(), tiny.groups(6))],
    ids=["texts", "choices"],
)
def test_gradients_of_an_example_are_its_own_whatever_its_batch(objective, data):
    model = lively(objective)

    together = gradients(model, objective, data)
    alone = gradients(model, objective, data, batch=1)

    assert together.shape == (len(data), 3, 2)
    np.testing.assert_allclose(together, alone, rtol=1e-3, atol=1e-5)


class AlsoGenerates(MultipleChoice):
    """As dialogs do: their measures take a further pass, over the right candidates alone."""

    def metric_sums(self, model, batch, encoded):
        sums = super().metric_sums(model, batch, encoded)
        with torch.no_grad():
            model.backbone(batch["tokens"][:, 0], batch["mask"][:, 0])
        return sums


def test_what_is_generated_beside_is_no_part_of_gradients():
    objective, data = AlsoGenerates(), tiny.groups(6)
    model = lively(objective)

    gradient = gradients(model, objective, data)

    np.testing.assert_array_equal(gradient, gradients(model, tiny.bound(MultipleChoice()), data))


def test_windows_of_an_example_are_added_up():
    objective = Classification()
    model = lively(objective)
    rows = gradients(model, objective, DATA)

    gradient = gradients(model, objective, DATA, example_of=np.arange(12) // 2)

    np.testing.assert_allclose(gradient, rows[0::2] + rows[1::2])


class FirstLogit(Classification):
    """Not a loss, but linear in the logits."""

    def metric_sums(self, model, batch, encoded):
        return {"loss": self.outputs(model, batch, encoded)[:, 0].sum()}


def test_gradients_of_a_linear_model_add_up_to_what_all_heads_do():
    objective = FirstLogit(pooling="mean", dropout=0.0)
    model = lively(objective, depth=1)
    model.backbone.final_norm = nn.Identity()
    nn.init.zeros_(model.backbone.blocks[0].feed_forward.output.weight)
    batch = DATA.batch(np.arange(12))

    def logits():
        with torch.no_grad():
            return objective.outputs(model, batch, Encoding(model, batch))[:, 0]

    with set_gates(model.backbone, torch.zeros(1, 2)):
        without = logits()

    sums = torch.from_numpy(gradients(model, objective, DATA).sum((1, 2))).float()
    assert_close(sums, logits() - without, rtol=1e-4, atol=1e-4)


def test_importance_does_not_cancel_out_between_examples():
    gradient = np.array([[[3.0, 4.0], [0.0, 0.0]], [[-3.0, 4.0], [0.0, 0.0]]])

    np.testing.assert_allclose(head_importance(gradient), [[0.6, 0.8], [0, 0]])


def test_what_is_left_out_is_scored_as_evaluate_scores_it():
    objective = Classification()
    model = lively(objective)

    result = Importance(most=None, random_orders=2)(subjects.subject(model, objective, DATA))

    content = result.as_json()
    whole = tiny.measures(model, objective, DATA)
    assert content["values"]["error_rate"] == whole["error_rate"]
    with set_gates(model.backbone, head_ones(model.backbone), without_feed_forward={2}):
        without = tiny.measures(model, objective, DATA)
    entry = content["left_out"]["feed_forward"][2]
    assert entry == {
        "layer": 2,
        "measure": whole["error_rate"] - without["error_rate"],
        "loss": whole["loss"] - without["loss"],
    }
    parts = [len(content["left_out"][kind]) for kind in ("heads", "blocks", "attention")]
    assert parts == [6, 3, 3]
    assert np.linalg.norm(content["heads"], axis=1) == pytest.approx(np.ones(3))
    shares = [step["heads"] for step in content["pruning"]]
    assert shares == [0, 1, 2, 3, 4, 5, 6]
    first, last = content["pruning"][0], content["pruning"][-1]
    assert first["measure"] == first["random"] == whole["error_rate"]
    with set_gates(model.backbone, torch.zeros(3, 2)):
        assert last["loss"] == tiny.measures(model, objective, DATA)["loss"]
    assert last["loss"] == last["random_loss"]


@pytest.mark.parametrize("kind", [{}, {"share": "all"}, {"embedding_width": 4}], ids=str)
def test_a_unit_that_is_left_out_is_0_in_every_state(kind):
    objective = Classification()
    model = lively(objective, **kind)
    given = Importance(left_out=["embeddings", "units"], prune=False)
    whole = tiny.measures(model, objective, DATA)

    result = given(subjects.subject(model, objective, DATA))

    assert result.data["left_out"] == {}
    written = list(map(json.loads, result.files["units.jsonl"].splitlines()))
    units = [entry for entry in written if "layer" in entry]
    width, depth = model.backbone.shape.width, model.backbone.shape.depth
    assert [(e["layer"], e["unit"]) for e in units] == [
        (layer, unit) for layer in range(depth) for unit in range(width)
    ]
    embeddings = [entry for entry in written if "layer" not in entry]
    assert len(embeddings) == kind.get("embedding_width", width)
    assert "embeddings" in result.tables[-1].rows[0]
    # The same by weights: nobody writes a dimension of the table, nobody reads the last state's.
    table, head = model.backbone.token_embedding.weight, model.heads["class"].linear.weight
    for weight, entry in ((table, embeddings[2]), (head, units[(depth - 1) * width + 2])):
        kept = weight[:, 2].clone()
        with torch.no_grad():
            weight[:, 2] = 0
        without = tiny.measures(model, objective, DATA)
        with torch.no_grad():
            weight[:, 2] = kept
        assert entry["loss"] == pytest.approx(whole["loss"] - without["loss"], abs=1e-6)
        assert abs(entry["loss"]) > 1e-4
    assert not any(block._forward_hooks for block in model.backbone.blocks)


def test_a_language_model_is_judged_by_perplexity():
    objective = CausalLM()
    given = subjects.subject(lively(objective), objective, tiny.blocks(120), task=None)

    content = Importance(left_out=["blocks"], prune=False)(given).as_json()

    assert content["measure"] == "token_perplexity"
    assert len(content["left_out"]["blocks"]) == 3
    assert content["pruning"] == []


def test_vectors_that_are_compared_are_judged_by_the_error_of_their_cosines():
    task, examples = SimilarityTask.sample()
    data = task.encode(examples, TOKENIZER, 32, "bidirectional")
    objective = Contrastive()
    model = lively(objective)
    objective.setup(TaskInfo(TOKENIZER, task=task))

    given = subjects.subject(model, objective, data, task, TOKENIZER)
    content = Importance(left_out=["blocks"], random_orders=1)(given).as_json()

    first, last = content["pruning"][0], content["pruning"][-1]
    assert first["loss"] == content["values"]["mse"]
    with set_gates(model.backbone, torch.zeros(3, 2)):
        assert last["loss"] == evaluate_subject(given, given.split).measures["mse"]
    assert all(math.isfinite(entry["loss"]) for entry in content["left_out"]["blocks"])
