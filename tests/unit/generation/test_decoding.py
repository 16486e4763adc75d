"""From logits to tokens, with and without a cache. Legend: B texts, T positions, V vocabulary."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from tests import recorded_graph, tiny
from transfer_cli.adaptation.edits import IA3, GatedPrefix, LoRA, PALs, ParallelAdapters
from transfer_cli.data.tokenizer_recipes import BytePairs
from transfer_cli.errors import RunError
from transfer_cli.generation import decoding
from transfer_cli.generation.decoding import Sampling, TokenSampler, generate
from transfer_cli.generation.prompt_layout import PromptLayout
from transfer_cli.generation.streaming import GeneratedText, StopStrings, StreamingDetokenizer
from transfer_cli.generation.token_graph import takes_graph
from transfer_cli.model.adapters import Adapter
from transfer_cli.model.kv_cache import KVCache
from transfer_cli.model.meta_device import without_weights
from transfer_cli.model.readout import ScalarMix
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.language_model import token_logits

PROMPT = [3, 9, 17, 30]
POSITIONS = 32
ORDINARY_V = torch.arange(tiny.VOCABULARY.size) > 4
SHAPES = [
    {"residual": residual, "position_kind": kind}
    for residual in ("pre", "post", "tutorial")
    for kind in ("learned", "sinusoidal")
]


EDITS = {
    "lora": LoRA(rank=2, alpha=4.0), "dora": LoRA(rank=2, dora=True), "ia3": IA3(),
    "parallel_adapters": ParallelAdapters(4), "gated_prefix": GatedPrefix(3),
    "pals": PALs(3),
}  # fmt: skip


def lively_model(edited="plain", **changes):
    made = tiny.model(CausalLM(), **changes)
    if edited in EDITS:
        EDITS[edited](made, {})
    if edited == "adapters":
        for block in made.backbone.blocks:
            block.sites["after_attention"] = Adapter(16, 4, "gelu")
            block.sites["after_feed_forward"] = Adapter(16, 4, "relu")
    if edited == "scalar_mix":
        made.readout = ScalarMix(4, norm=True)
    tiny.lively(made, std=0.25)
    return made.eval()


def written(model, *, cached, rows=1, most=20, sampling=None, seed=0, prompt=PROMPT):
    """Return the tokens of each text."""
    with torch.inference_mode():
        steps = list(generate(
            model, prompt, rows=rows, use_cache=cached,
            max_new_tokens=most, sampling=sampling or Sampling(), sampler=TokenSampler(seed, rows),
            allowed_V=ORDINARY_V,
        ))  # fmt: skip
    assert len(steps) == most
    return torch.tensor(steps).T.tolist()


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(shape.values()))
@pytest.mark.parametrize(
    "edited",
    [
        "plain",
        *(pytest.param(n, marks=pytest.mark.slow) for n in (*EDITS, "adapters", "scalar_mix")),
    ],
)
def test_the_cache_changes_no_token(shape, edited):
    model = lively_model(edited, **shape)
    samplings = (Sampling(0.0), Sampling(1.0, top_k=20, top_p=0.95), Sampling(2.0))

    for sampling in samplings:
        texts = written(model, cached=True, rows=3, sampling=sampling, seed=5)
        assert texts == written(model, cached=False, rows=3, sampling=sampling, seed=5)
        assert (texts[0] == texts[1]) == (sampling.temperature == 0)


@pytest.mark.parametrize(
    ("edited", "shape"),
    [
        *(("plain", shape) for shape in SHAPES),
        ("plain", {**tiny.MODERN, "attention": "full"}),
        ("pals", {}),
    ],
)
@pytest.mark.parametrize("most", [20, POSITIONS - len(PROMPT) + 1])
def test_a_captured_token_is_the_same(edited, shape, most, monkeypatch):
    model = lively_model(edited, **shape)
    options = {"cached": True, "rows": 3, "sampling": Sampling(2.0), "most": most}
    expected = written(model, **options)

    monkeypatch.setattr(decoding, "takes_graph", lambda backbone, most, device: True)
    graphs = recorded_graph.replace_graphs(monkeypatch)
    assert written(model, **options) == expected
    assert len(graphs) == 1


@pytest.mark.parametrize(
    ("changes", "most", "on_gpu", "takes"),
    [
        ({}, 32, True, True),
        ({"position_kind": "rotary"}, 32, True, True),
        ({}, 31, True, False),
        ({}, 32, False, False),
        ({"attention": "window", "window": 5}, 32, True, False),
        ({"attention": "strided", "window": 4}, 32, True, False),
        ({"position_kind": "bias"}, 32, True, False),
    ],
)
def test_a_graph_is_for_passes_that_differ_in_their_place_alone(changes, most, on_gpu, takes):
    with without_weights():
        backbone = tiny.backbone(**changes)
    device = torch.device("cuda" if on_gpu else "cpu")

    assert takes_graph(backbone, most, device) == takes


def test_the_first_of_several_texts_is_the_one_that_comes_alone():
    model = lively_model()

    assert written(model, cached=True, rows=1) == written(model, cached=True, rows=4)[:1]


def test_greedy_decoding_takes_what_the_whole_model_finds_likeliest():
    model = lively_model()
    (tokens,) = written(model, cached=True, sampling=Sampling(0.0), most=10)

    tokens_BT = torch.tensor([[*PROMPT, *tokens]])
    top_BTD = model.readout(model.backbone(tokens_BT, torch.ones_like(tokens_BT) > 0))
    logits_BTV = token_logits(model, top_BTD)
    likeliest_BT = logits_BTV.masked_fill(~ORDINARY_V, -torch.inf).argmax(-1)
    assert likeliest_BT[0, len(PROMPT) - 1 : -1].tolist() == tokens


def test_what_may_not_be_said_is_never_said():
    model = lively_model()
    with torch.no_grad():
        model.heads["lm"].bias[:5] += 100.0

    texts = written(model, cached=True, rows=10, sampling=Sampling(3.0))

    assert min(token for text in texts for token in text) > 4


@pytest.mark.parametrize("cached", [True, False])
def test_a_text_may_fill_every_position(cached):
    (tokens,) = written(lively_model(), cached=cached, most=POSITIONS - len(PROMPT) + 1)

    assert len(PROMPT) + len(tokens) == POSITIONS + 1  # the last one was never read


# --- the cache itself --------------------------------------------------------------------------


@pytest.mark.parametrize("portions", [(12,), (5, 7), (1,) * 12, (4, 1, 1, 6)])
@pytest.mark.parametrize("residual", ["pre", "post", "tutorial"])
def test_portions_have_the_states_of_the_whole(portions, residual):
    backbone = tiny.backbone(residual=residual).eval()
    tiny.lively(backbone)
    tokens_BT = torch.randint(5, 48, (2, 12), generator=torch.Generator().manual_seed(0))
    mask_BT = torch.ones_like(tokens_BT, dtype=torch.bool)
    whole = backbone(tokens_BT, mask_BT, padded=False)

    kv_cache = KVCache(3, 12)
    portion_states = [
        backbone(
            part_BT, torch.ones_like(part_BT, dtype=torch.bool), padded=False, kv_cache=kv_cache
        )
        for part_BT in tokens_BT.split(portions, dim=1)
    ]

    for layer, state_BTD in enumerate(whole):
        parts_BTD = torch.cat([states[layer] for states in portion_states], dim=1)
        assert_close(parts_BTD, state_BTD, rtol=0, atol=2e-5)
    assert kv_cache.length == 12


def test_more_than_the_models_positions_are_refused():
    backbone, kv_cache = tiny.backbone(), KVCache(3, 100)
    tokens_BT = torch.full((1, POSITIONS), 7)
    backbone(tokens_BT, tokens_BT > 0, kv_cache=kv_cache)

    with pytest.raises(ValueError, match="a sequence of 33 tokens is longer"):
        backbone(tokens_BT[:, :1], tokens_BT[:, :1] > 0, kv_cache=kv_cache)


@pytest.mark.parametrize(
    ("direction", "room", "said"),
    [("causal", 4, "5 positions exceed the cache's 4"), ("bidirectional", 9, "bidirectional")],
)
def test_more_than_the_caches_room_and_what_looks_ahead_are_refused(direction, room, said):
    tokens_BT = torch.full((1, 5), 7)

    with pytest.raises(ValueError, match=said):
        tiny.backbone(direction=direction)(tokens_BT, tokens_BT > 0, kv_cache=KVCache(3, room))


@pytest.mark.parametrize(("value", "refused"), [(-torch.inf, False), (torch.nan, True)])
def test_a_head_may_rule_out_a_token_but_not_give_none(value, refused):
    model = lively_model()
    model.heads["lm"].register_forward_hook(
        lambda head, given, logits: logits.index_fill(-1, torch.tensor([9]), value)
    )
    made = generate(
        model, PROMPT, rows=1, max_new_tokens=5, use_cache=True, sampling=Sampling(1.0, None, 1.0),
        sampler=TokenSampler(0, 1), allowed_V=ORDINARY_V,
    )  # fmt: skip

    if refused:
        with pytest.raises(RunError, match="prediction is not finite"):
            list(made)
    else:
        assert [9] not in list(made)


LOGITS = st.lists(
    st.integers(-8, 8).map(lambda n: n / 2), min_size=1, max_size=12
)  # few values, so that some are equal


def by_definition(logits, temperature, top_k, top_p):
    """Return the probabilities as the papers write them, one token after the other."""
    exponentials = [math.exp((logit - max(logits)) / temperature) for logit in logits]
    shares = {token: power / sum(exponentials) for token, power in enumerate(exponentials)}
    ranked = sorted(shares, key=lambda token: (-shares[token], token))[:top_k]
    whole = sum(shares[token] for token in ranked)
    kept, reached = [], 0.0
    for token in ranked:
        if reached >= top_p * whole * (1 - 1e-12) and kept:
            break
        kept.append(token)
        reached += shares[token]
    return [shares[token] / reached if token in kept else 0.0 for token in range(len(logits))]


@pytest.mark.slow
@settings(deadline=None)
@given(
    logits=LOGITS,
    temperature=st.sampled_from([0.25, 1.0, 3.0]),
    top_k=st.sampled_from([None, 1, 2, 5, 100]),
    top_p=st.sampled_from([0.11, 0.53, 0.907, 1.0]),
)
def test_probabilities_are_those_of_the_definition(logits, temperature, top_k, top_p):
    shares = Sampling(temperature, top_k, top_p).probabilities(torch.tensor([logits]))

    expected = by_definition(logits, temperature, top_k, top_p)
    assert_close(shares, torch.tensor([expected], dtype=torch.float64), rtol=1e-9, atol=1e-12)


def test_a_temperature_of_zero_takes_the_likeliest_and_of_equal_ones_the_first():
    shares_BV = Sampling(0.0).probabilities(torch.tensor([[1.0, 3.0, 3.0], [2.0, 1.0, 0.0]]))

    assert shares_BV.tolist() == [[0, 1, 0], [1, 0, 0]]


def test_the_smallest_temperature_overflows_nowhere():
    shares_BV = Sampling(1e-300).probabilities(torch.tensor([[1e4, 1e4 - 1, -1e4]]))

    assert shares_BV.tolist() == [[1, 0, 0]]


def test_tokens_are_drawn_as_often_as_they_are_likely():
    rows = 20_000
    shares_V = torch.tensor([0.5, 0.0, 0.3, 0.15, 0.05, 0.0], dtype=torch.float64)

    drawn_B = TokenSampler(3, rows)(shares_V.expand(rows, -1))

    counts_V = torch.bincount(drawn_B, minlength=6)
    spread_V = (shares_V * (1 - shares_V) / rows).sqrt()
    assert ((counts_V / rows - shares_V).abs() <= 4 * spread_V).all()
    assert counts_V[[1, 5]].tolist() == [0, 0]


def test_the_largest_random_number_finds_a_token_that_can_be_drawn(monkeypatch):
    largest = torch.tensor([1 - 2**-53], dtype=torch.float64)
    monkeypatch.setattr(torch, "rand", lambda *_, **__: largest)
    shares_BV = torch.tensor([[0.1] * 10 + [0.0]], dtype=torch.float64)

    assert TokenSampler(0, 1)(shares_BV).tolist() == [9]


# --- streaming -----------------------------------------------------------------------------------


TEXT = 'the cat sat on the mat , the cats are sitting ; a naïve 🙂 cat said " mew " .'
LETTERS = "ab\n."


@pytest.fixture(scope="module")
def byte_pairs():
    return BytePairs(size=280).make(lambda: iter([TEXT] * 20))


def spelt(tokenizer, before, tokens):
    """Return what a detokenizer shows of each token, and at the end."""
    detokenizer = StreamingDetokenizer(tokenizer, tokenizer.sep, before)
    return [*map(detokenizer.add, tokens), detokenizer.flush()]


def test_a_text_that_comes_by_tokens_is_the_text(tokenizer):
    tokens = tokenizer.encode(TEXT)

    for place in range(len(tokens)):
        before, after = tokens[:place], tokens[place:]
        shown = spelt(tokenizer, [tokenizer.sep, *before], after)
        if tokenizer.decode(before).endswith("\ufffd"):
            continue  # a prompt holds no half characters
        assert tokenizer.decode(before) + "".join(shown) == tokenizer.decode(tokens)


def test_half_a_character_waits_for_the_other_half(byte_pairs):
    tokens = byte_pairs.encode("🙂")
    assert len(tokens) > 2

    shown = spelt(byte_pairs, [byte_pairs.sep], tokens)

    assert [part for part in shown if part] == ["🙂"]
    assert "\ufffd" not in "".join(shown)


def test_a_character_that_stays_half_is_shown_at_the_end(byte_pairs):
    tokens = byte_pairs.encode("🙂")[:-1]

    *shown, rest = spelt(byte_pairs, [byte_pairs.sep], tokens)

    assert "".join(shown) == ""
    assert "\ufffd" in rest


def test_the_end_of_a_line_is_one_and_the_next_line_begins_without_a_space(tokenizer):
    the_cat = tokenizer.encode("the cat")

    shown = spelt(tokenizer, [tokenizer.sep], [*the_cat, tokenizer.sep, *the_cat])

    assert "".join(shown) == "the cat\nthe cat"


# --- where a text ends -------------------------------------------------------------------------


def cut_by_definition(text, stops):
    """Return the text before the first string that is complete, the longest that ends there."""
    for end in range(1, len(text) + 1):
        matches = [stop for stop in stops if text[:end].endswith(stop)]
        if matches:
            return text[: end - max(map(len, matches))], True
    return text, False


@settings(max_examples=300, deadline=None)
@given(
    text=st.text(LETTERS, max_size=20),
    stops=st.lists(st.text(LETTERS, min_size=1, max_size=4), max_size=3),
    seed=st.integers(0, 100),
)
def test_a_text_is_cut_by_its_letters_however_they_come(text, stops, seed):
    draws, cut, shown, place = np.random.default_rng(seed), StopStrings(stops), "", 0
    expected, ends = cut_by_definition(text, stops)

    while place < len(text):
        step = int(draws.integers(1, 5))
        shown += cut.add(text[place : place + step])
        place += step
        assert expected.startswith(shown)  # nothing that is taken back has been shown
    shown += cut.flush()

    assert (shown, cut.found is not None) == (expected, ends)


@given(text=st.text(LETTERS, max_size=20), stop=st.text(LETTERS, min_size=1, max_size=4))
def test_no_more_waits_than_may_belong_to_a_stop(text, stop):
    cut = StopStrings([stop])
    shown = cut.add(text)

    if cut.found is None:
        waiting = text.removeprefix(shown)
        assert waiting == "" or stop.startswith(waiting)


# --- a whole text ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "stops", "said", "text", "held", "reason"),
    [
        ("the cat", ["the mat"], "sat on the mat , the cat", " sat on ", "", "stop"),
        ("the cat", ["the mat is"], "sat on the mat", " sat on ", "the mat", ""),
        ("the cat ", [], "sat on", "sat on", "", ""),  # the prompt has the space
    ],
)
def test_a_text_is_shown_up_to_a_stop_and_what_waited_in_vain_at_the_end(
    prompt, stops, said, text, held, reason, word_pieces
):
    generated = GeneratedText(PromptLayout(word_pieces), prompt, stops)

    shown = [generated.add(token) for token in word_pieces.encode(said)]

    assert "".join(shown) == generated.text == text
    assert generated.flush() == held
    assert (generated.text, generated.finish_reason) == (text + held, reason)
    assert (generated.tokens < len(shown)) == (reason == "stop")


def test_a_prompt_is_laid_out_as_text_to_pretrain_on(tokenizer):
    layout = PromptLayout(tokenizer)
    line = tokenizer.encode("the cat")

    assert layout.encode("the cat") == [tokenizer.sep, *line]
    assert layout.encode("the cat\n\nthe cat") == [
        tokenizer.sep, *line, tokenizer.sep, tokenizer.sep, *line,
    ]  # fmt: skip
    assert layout.encode("the cat\n") == [tokenizer.sep, *line, tokenizer.sep]


def test_names_of_special_tokens_in_a_prompt_are_ordinary_text(word_pieces):
    tokens = PromptLayout(word_pieces).encode("[SEP] [MASK] [PAD] [CLS]")

    assert not set(tokens[1:]) & (word_pieces.special - {word_pieces.unk})


def test_a_text_without_tokens_is_no_prompt(word_pieces):
    assert PromptLayout(word_pieces).encode(" \n ") == []


def test_of_the_special_tokens_only_the_end_of_a_line_may_be_said(word_pieces):
    allowed_V = PromptLayout(word_pieces).allowed_tokens()

    said = {token for token in word_pieces.special if allowed_V[token]}
    assert said == {word_pieces.sep}
    assert allowed_V.sum() == word_pieces.size - 4
