import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.adaptation.penalties import EWC, L2SP, Start
from transfer_cli.errors import ConfigError
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.testing.penalties import check_penalty


def drawn(model, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.rand(p.shape, generator=generator) for n, p in model.named_parameters()}


def started(penalty, model, inherited=None, information=None):
    """Let the penalty see the model; without `inherited`, everything is but the classifier."""
    if inherited is None:
        inherited = {n for n, _ in model.named_parameters() if not n.startswith("heads.class")}
    information = drawn(model) if information is None else information
    penalty.start(Start(model, frozenset(inherited), lambda _sequences, _kind: information))
    return penalty


def moved(model, seed=0):
    """Move every parameter at random; return how far."""
    generator = torch.Generator().manual_seed(seed)
    far = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            before = parameter.clone()
            parameter.add_(torch.randn(parameter.shape, generator=generator))
            far[name] = parameter - before
    return far


@pytest.mark.parametrize(
    "penalty",
    [L2SP(), L2SP(3.0, 0.0), EWC(), EWC(strength=20.0, normalise="none")],
    ids=["l2_sp", "l2_sp strong", "ewc", "ewc as it is"],
)
def test_a_penalty_keeps_the_contract(penalty):
    check_penalty(penalty)


def test_the_gradient_of_l2_sp_is_its_strength_times_the_distance():
    model = tiny.model(CausalLM(), Classification())
    penalty = started(L2SP(strength=0.3, new_strength=0.7), model)
    far = moved(model)

    penalty(model).backward()

    for name, parameter in model.named_parameters():
        wanted = 0.7 * parameter if name.startswith("heads.class") else 0.3 * far[name]
        assert_close(parameter.grad, wanted.detach(), rtol=1e-6, atol=1e-6)


def test_at_the_start_l2_sp_costs_only_what_is_new():
    model = tiny.model(CausalLM(), Classification())
    penalty = started(L2SP(strength=0.3, new_strength=0.7), model)

    value = penalty(model)
    value.backward()

    head = model.heads["class"].parameters()
    assert float(value.detach()) == pytest.approx(
        0.35 * sum(float(p.detach().square().sum()) for p in head), rel=1e-6
    )
    assert not any(p.grad.any() for p in model.backbone.parameters())


@pytest.mark.parametrize("normalise", ["mean", "none"])
def test_the_gradient_of_ewc_is_strength_times_information_times_the_distance(normalise):
    model = tiny.model(CausalLM())
    information = drawn(model)
    penalty = started(EWC(strength=0.3, normalise=normalise), model, information=information)
    mean = torch.cat([value.flatten() for value in information.values()]).mean()
    scale = 1 / mean if normalise == "mean" else 1.0
    far = moved(model)

    penalty(model).backward()

    for name, parameter in model.named_parameters():
        assert_close(
            parameter.grad, 0.3 * scale * information[name] * far[name], rtol=1e-5, atol=1e-6
        )


def test_normalised_information_is_1_on_average_over_what_is_inherited():
    model = tiny.model(CausalLM(), Classification())
    information = {**drawn(model), "heads.class.linear.weight": torch.full((3, 16), 1e9)}

    penalty = started(EWC(), model, information=information)

    entries = torch.cat([value.flatten() for value in penalty.information.values()])
    assert float(entries.mean()) == pytest.approx(1, rel=1e-5)
    assert not any(name.startswith("heads.class") for name in penalty.information)


def test_ewc_leaves_new_parameters_and_those_without_information_free():
    model = tiny.model(CausalLM(), Classification())
    information = drawn(model)
    del information["backbone.final_norm.weight"]
    penalty = started(EWC(), model, information=information)
    moved(model)

    penalty(model).backward()

    free = {name for name, p in model.named_parameters() if p.grad is None}
    assert free == {
        "backbone.final_norm.weight", "heads.class.linear.weight", "heads.class.linear.bias"
    }  # fmt: skip


@pytest.mark.parametrize(("kind", "asked"), [("true", "true"), (True, "true"), ("empirical",) * 2])
def test_ewc_asks_for_the_information_that_it_is_told_to(kind, asked):
    model, calls = tiny.model(CausalLM()), []

    def fisher(*request):
        calls.append(request)
        return drawn(model)

    EWC(sequences=7, fisher=kind).start(
        Start(model, frozenset(dict(model.named_parameters())), fisher)
    )

    assert calls == [(7, asked)]


def test_a_tied_matrix_counts_once():
    model = tiny.model(CausalLM(), tie_output=True)
    penalty = started(L2SP(strength=2.0), model)
    matrix = model.backbone.token_embedding.weight

    with torch.no_grad():
        matrix.add_(0.5)

    assert float(penalty(model).detach()) == pytest.approx(0.25 * matrix.numel(), rel=1e-5)


@pytest.mark.parametrize("make", [L2SP, EWC])
def test_a_penalty_of_half_precision_weights_is_in_float32(make):
    model = tiny.model(CausalLM()).bfloat16()
    penalty = started(make(), model)
    moved(model)

    value = penalty(model)
    value.backward()

    assert value.dtype == torch.float32
    assert all(anchor.dtype == torch.float32 for anchor in penalty.anchors.values())


def test_a_penalty_on_weights_of_which_none_trains_has_no_gradient():
    model = tiny.model(CausalLM())
    penalty = started(L2SP(), model)
    model.requires_grad_(False)

    value = penalty(model)

    assert float(value) == 0
    assert not value.requires_grad


@pytest.mark.parametrize(("factor", "what"), [(0.0, "0"), (float("nan"), "not finite")])
@pytest.mark.parametrize("normalise", ["mean", "none"])
def test_information_that_holds_nothing_is_refused(factor, what, normalise):
    model = tiny.model(CausalLM())
    information = {name: factor * value for name, value in drawn(model).items()}

    with pytest.raises(ConfigError, match=f"information of the pretraining objective is {what}"):
        started(EWC(normalise=normalise), model, information=information)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (L2SP, {"strength": -1}, "strength must be 0 or more, got -1"),
        (L2SP, {"new_strength": float("nan")}, "new_strength must be 0 or more, got nan"),
        (EWC, {"strength": float("inf")}, "strength must be 0 or more, got inf"),
        (EWC, {"sequences": 0}, "sequences must be at least 1, got 0"),
        (EWC, {"fisher": "exact"}, "fisher: 'exact' is not one of true, empirical"),
        (EWC, {"normalise": "sum"}, "normalise: 'sum' is not one of mean, none"),
    ],
)
def test_an_option_that_cannot_work_is_refused(make, options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_only_l2_sp_stands_in_place_of_weight_decay():
    assert L2SP.replaces_weight_decay
    assert not EWC.replaces_weight_decay
