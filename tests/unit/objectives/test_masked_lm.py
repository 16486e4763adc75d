"""Legend: B batch, T positions."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import tiny
from transfer_cli.batch import IGNORE
from transfer_cli.data.split import TextStats
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.objectives.masked_lm import MaskedLM
from transfer_cli.seeds import ExampleNoise
from transfer_cli.testing.objectives import check_objective

LARGE = tiny.Vocabulary(size=1000)
SPECIALS = torch.tensor(sorted(LARGE.special))


def at_work(vocabulary=tiny.VOCABULARY, **options):
    objective = MaskedLM(**options)
    objective.setup(TaskInfo(vocabulary))
    return objective


def noise(step=0):
    return ExampleNoise(0, "train", step)


def drawn_batch(rows, positions, seed=0):
    """Return random tokens, specials and unknown ones among them, padded by random lengths."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(LARGE.size, (rows, positions), generator=generator)
    specials = torch.rand(rows, positions, generator=generator) < 0.05
    tokens = torch.where(specials, tokens % 5, tokens)
    lengths = torch.randint(positions // 2, positions + 1, (rows, 1), generator=generator)
    mask = torch.arange(positions) < lengths
    return {"tokens": tokens.where(mask, LARGE.pad), "mask": mask, "index": torch.arange(rows)}


def eligible(batch):
    return batch["mask"] & ~torch.isin(batch["tokens"], SPECIALS)


# Which tokens, how many, and what becomes of them.


@pytest.fixture(scope="module")
def million():
    """Return a batch of a million eligible tokens and more, before and after."""
    batch = drawn_batch(rows=2900, positions=512)
    return batch, at_work(LARGE).prepare(batch, noise())


def test_fifteen_percent_of_the_eligible_are_selected(million):
    batch, prepared = million
    candidates = int(eligible(batch).sum())

    selected = int((prepared["target"] != IGNORE).sum())

    assert candidates >= 1e6
    assert selected / candidates == pytest.approx(0.15, abs=0.0015)


def test_of_the_selected_80_percent_are_masked_10_replaced_and_10_kept(million):
    batch, prepared = million
    selected = prepared["target"] != IGNORE
    now, before = prepared["tokens"][selected], batch["tokens"][selected]

    masked = (now == LARGE.mask).float().mean()
    kept = (now == before).float().mean()

    assert float(masked) == pytest.approx(0.8, abs=0.005)
    assert float(kept) == pytest.approx(0.1, abs=0.005)
    assert float(1 - masked - kept) == pytest.approx(0.1, abs=0.005)


def test_a_drawn_token_is_never_special_and_can_be_any_other(million):
    batch, prepared = million
    changed = (prepared["tokens"] != batch["tokens"]) & (prepared["tokens"] != LARGE.mask)

    drawn = prepared["tokens"][changed].unique()

    assert drawn.tolist() == list(range(5, LARGE.size))


def test_targets_are_eligible_tokens_as_they_stood_there_and_nothing_elsewhere_changes(million):
    batch, prepared = million
    selected = prepared["target"] != IGNORE

    assert not (selected & ~eligible(batch)).any()
    assert torch.equal(prepared["target"][selected], batch["tokens"][selected])
    assert torch.equal(prepared["tokens"][~selected], batch["tokens"][~selected])


UNITS = [{}, {"whole_word": True}, {"spans": True}]


@settings(max_examples=50)
@given(
    rate=st.floats(0.01, 0.9),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    unit=st.sampled_from(UNITS),
    step=st.integers(0, 99),
)
def test_every_sample_with_something_to_hide_hides_something(rate, lengths, unit, step):
    batch = tiny.rows_to_batch([[2, *range(5, 5 + length), 3] for length in lengths])

    prepared = at_work(rate=rate, **unit).prepare(batch, noise(step))

    assert (prepared["target"] != IGNORE).any(1).all()


# What the draw depends on.


@pytest.mark.parametrize("unit", UNITS)
def test_masked_lm_keeps_the_contract_of_objectives(unit):
    data = tiny.Questions(causal=False)

    check_objective(
        MaskedLM(0.4, **unit), TaskInfo(tiny.VOCABULARY, tiny.LABELS), data.batch(np.arange(6))
    )


def test_each_visit_hides_other_tokens_and_each_seed_too():
    batch, objective = drawn_batch(8, 64), at_work(LARGE)

    visits = [noise(0), noise(1), ExampleNoise(1, "train", 0)]
    targets = [objective.prepare(batch, visit)["target"] for visit in visits]

    assert not torch.equal(targets[0], targets[1])
    assert not torch.equal(targets[0], targets[2])


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("padding", [0, 9])
def test_an_example_is_hidden_alike_in_any_company_and_padding(unit, padding):
    objective = at_work(**unit)
    rows = [[2, *range(5, 25), 3], [2, *range(30, 40), 3], [2, 11, 12, 3]]
    rows[0] += [7] * padding
    batch = tiny.rows_to_batch(rows, np.array([7, 3, 9]))
    together = objective.prepare(batch, noise())

    for number, row in enumerate(rows):
        alone = objective.prepare(tiny.rows_to_batch([row], batch["index"][[number]]), noise())
        assert torch.equal(alone["tokens"][0], together["tokens"][number, : len(row)])
        assert torch.equal(alone["target"][0], together["target"][number, : len(row)])


# Whole words.


def pieces_batch(seed=0):
    """Return words of one to three pieces, `cls` first and `sep` last."""
    generator = np.random.default_rng(seed)
    starts = np.flatnonzero(LARGE.starts_word)[5:]
    continues = np.flatnonzero(~LARGE.starts_word)
    rows = []
    for _ in range(400):
        row = [LARGE.cls]
        for _ in range(generator.integers(20, 60)):
            row += [generator.choice(starts), *generator.choice(continues, generator.integers(3))]
        rows.append([*row, LARGE.sep])
    return tiny.rows_to_batch(rows)


@pytest.mark.parametrize("unit", UNITS[1:])
def test_words_and_spans_of_them_are_hidden_whole_and_at_about_the_rate(unit):
    batch = pieces_batch()
    selected = at_work(LARGE, **unit).prepare(batch, noise())["target"] != IGNORE

    continues = torch.from_numpy(~LARGE.starts_word)[batch["tokens"]] & batch["mask"]
    torn = continues[:, 1:] & (selected[:, 1:] != selected[:, :-1])

    assert not torn.any()
    assert not (selected & ~eligible(batch)).any()
    # Words are taken until the rate is reached, so a fraction of a word more is.
    assert float(selected.sum() / eligible(batch).sum()) == pytest.approx(0.16, abs=0.01)


def test_the_pieces_of_a_hidden_word_have_fates_of_their_own():
    batch = pieces_batch()
    prepared = at_work(LARGE, whole_word=True).prepare(batch, noise())
    selected = prepared["target"] != IGNORE

    masked = (prepared["tokens"] == LARGE.mask)[selected]

    assert float(masked.float().mean()) == pytest.approx(0.8, abs=0.02)
    neighbours = masked[1:] != masked[:-1]
    assert neighbours.any()


def test_a_word_that_a_special_token_cuts_is_two():
    objective = at_work(whole_word=True, rate=0.01)
    piece = int(np.flatnonzero(~tiny.VOCABULARY.starts_word)[0])
    batch = tiny.rows_to_batch([[5, piece, 3, piece, piece]])

    chosen = {
        tuple((objective.prepare(batch, noise(step))["target"] != IGNORE)[0].tolist())
        for step in range(30)
    }

    assert chosen == {(True, True, False, False, False), (False, False, False, True, True)}


# Spans.


def spans_in(prepared, batch):
    """Return the selected spans of a batch, as rows of (position, token as it is now)."""
    for row in range(len(batch["tokens"])):
        selected = (prepared["target"][row] != IGNORE).nonzero().squeeze(1).tolist()
        spans = []
        for place in selected:
            if spans and spans[-1][-1] == place - 1:
                spans[-1].append(place)
            else:
                spans.append([place])
        yield from ((row, span) for span in spans)


def test_spans_are_as_long_as_those_of_spanbert():
    """1 to 10 words, 3.8 on average."""
    objective, starts = at_work(LARGE, spans=True), torch.arange(200)
    lengths = []

    for draws in noise().uniform(torch.arange(4000), 200, 2):
        start, stop = next(objective._row_spans(starts, starts * 0 + 1, *draws.unbind(-1)))
        lengths += [stop - start] if start < 190 else []  # or the text ends it

    shares = np.bincount(lengths, minlength=11)[1:] / len(lengths)
    expected = 0.8 ** np.arange(1, 11)
    assert np.mean(lengths) == pytest.approx(3.8, abs=0.15)
    assert shares == pytest.approx(expected / expected.sum(), abs=0.025)


def test_all_of_a_span_has_one_fate():
    batch = pieces_batch()
    prepared = at_work(LARGE, spans=True, rate=0.02).prepare(batch, noise())
    fates = []

    for row, span in spans_in(prepared, batch):
        now, before = prepared["tokens"][row, span], batch["tokens"][row, span]
        masked, kept = now == LARGE.mask, now == before
        assert masked.all() or not masked.any()
        assert kept.all() or int(kept.sum()) <= 1  # a drawn token may be the same by chance
        fates.append("masked" if masked.all() else "kept" if kept.all() else "replaced")

    shares = [fates.count(fate) / len(fates) for fate in ("masked", "kept", "replaced")]
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=0.06)


def test_a_span_ends_before_a_special_token():
    objective = at_work(spans=True, rate=0.9)
    batch = tiny.rows_to_batch([[5, 6, 3, 7, 8]])
    draws = torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.5]])

    _, begin = objective._select_spans(
        batch["tokens"], batch["tokens"] > 4, draws, torch.full_like(draws, 0.99)
    )

    assert begin.tolist() == [[0, 0, 0, 3, 3]]


# Static masks.


def of_epoch(batch, epoch):
    return {**batch, "epoch": torch.full_like(batch["index"], epoch)}


@pytest.mark.parametrize("unit", UNITS)
def test_static_masks_come_again_after_as_many_epochs_as_there_are_copies(unit):
    batch, objective = drawn_batch(8, 64), at_work(LARGE, masks="static", copies=3, **unit)

    visits = [objective.prepare(of_epoch(batch, n), noise(100 + n))["tokens"] for n in range(7)]

    for first, second in itertools.combinations(range(7), 2):
        is_same = torch.equal(visits[first], visits[second])
        assert is_same == ((second - first) % 3 == 0)


def test_dynamic_masks_and_those_of_evaluation_know_no_epoch():
    batch, static = drawn_batch(8, 64), at_work(LARGE, masks="static", copies=3)
    dynamic = at_work(LARGE)

    plain = dynamic.prepare(batch, noise())["tokens"]

    assert torch.equal(dynamic.prepare(of_epoch(batch, 2), noise())["tokens"], plain)
    assert torch.equal(static.prepare(batch, noise())["tokens"], plain)
    of_seeds = [
        static.prepare(of_epoch(batch, 0), ExampleNoise(seed, "train", 0))["tokens"]
        for seed in (0, 1)
    ]
    assert not torch.equal(*of_seeds)


# Numbers.


@pytest.mark.parametrize("unit", UNITS)
def test_a_batch_with_nothing_to_hide_has_no_targets_and_a_loss_of_zero(unit):
    objective = at_work(**unit)
    model = tiny.model(MaskedLM(), direction="bidirectional")
    batch = objective.prepare(tiny.rows_to_batch([[2, 1, 1, 3], [2, 3]]), noise())

    loss = objective.loss_sums(model, batch, Encoding(model, batch))["loss"]
    loss.backward()

    assert objective.counts(batch) == {"loss": 0}
    assert float(loss.detach()) == 0
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(gradient.isfinite().all() for gradient in grads)


def test_measures_are_the_mean_and_its_perplexity():
    measures = MaskedLM().compute_metrics(
        {"loss": torch.tensor(30.0)}, {"loss": 10}, TextStats(words=99)
    )

    assert measures == {"loss": 3.0, "masked_token_perplexity": pytest.approx(np.exp(3))}
