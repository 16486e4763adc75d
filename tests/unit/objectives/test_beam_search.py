"""The likeliest texts: beside the reference, beside all texts that there are, and what is read."""

import itertools
import random
import warnings

import pytest
import torch

from tests import published, tiny
from transfer_cli.assembly.finished_run import open_trained
from transfer_cli.errors import ConfigError
from transfer_cli.objectives.beam_search import BeamSearch, repeating_tokens
from transfer_cli.objectives.replies import Continued

END = 0
FAMILIES = {"gpt2": "LMHeadModel", "llama": "CausalLM"}


@pytest.fixture(scope="module", params=FAMILIES)
def models(request, tmp_path_factory):
    """Return a model of the reference, and the same as it is opened here."""
    folder = tmp_path_factory.mktemp("published") / request.param
    reference = published.publish(folder, request.param, FAMILIES[request.param])
    return reference, open_trained(str(folder), tiny.FP32).model


def prompts_of(rng, count):
    return [[rng.randrange(5, 300) for _ in range(rng.randint(1, 12))] for _ in range(count)]


def found_here(model, prompts, search, most, **options):
    """Return the texts after prompts that are read at once, padded, with a cache."""
    longest = max(map(len, prompts))
    tokens_RT = torch.tensor([prompt + [0] * (longest - len(prompt)) for prompt in prompts])
    lengths_R = torch.tensor([len(prompt) for prompt in prompts])
    texts = Continued(model, tokens_RT, torch.zeros_like(tokens_RT), lengths_R, max_tokens=most)
    with torch.inference_mode():
        options |= {"max_tokens": most, "end_tokens": [END], "contexts": prompts}
        return search(texts.first(), texts.next, **options)


def found_there(reference, prompt, most, **options):
    tokens_1T = torch.tensor([prompt])
    with warnings.catch_warnings(action="ignore"), torch.inference_mode():
        made = reference.generate(
            tokens_1T, attention_mask=torch.ones_like(tokens_1T), max_new_tokens=most,
            do_sample=False, pad_token_id=END, eos_token_id=END, **options,
        )  # fmt: skip
    return made[0, len(prompt) :].tolist()


@pytest.mark.parametrize(("batches", "seed"), [(1, 0), pytest.param(25, 1, marks=pytest.mark.slow)])
def test_texts_are_those_of_the_reference_token_for_token(models, batches, seed):
    reference, model = models
    rng = random.Random(seed)
    for _ in range(batches):
        prompts, most = prompts_of(rng, 4), rng.choice([1, 5, 20])
        options = {
            "length_penalty": rng.choice([1.0, 0.0, 2.0, -1.0]),
            "early_stopping": rng.choice([False, True, "never"]),
            "no_repeat_ngram_size": rng.choice([0, 0, 2, 3]),
        }

        texts = found_here(model, prompts, BeamSearch(4, **options), most)

        assert texts == [
            found_there(reference, prompt, most, num_beams=4, **options) for prompt in prompts
        ]


def test_a_first_token_is_forced_as_in_the_reference(models):
    reference, model = models

    texts = found_here(model, [[7], [9]], BeamSearch(4), 8, first=11)

    assert texts == [
        found_there(reference, [prompt], 8, num_beams=4, forced_bos_token_id=11)
        for prompt in (7, 9)
    ]
    assert {tokens[0] for tokens in texts} == {11}


class Table:
    """A model whose next token depends on the last one alone; it notes how many rows it reads."""

    def __init__(self, vocabulary, seed):
        draws = torch.randn(vocabulary, vocabulary, generator=torch.Generator().manual_seed(seed))
        self.log_VV = (2 * draws).log_softmax(-1)
        self.rows = []

    def read(self, tokens_N, rows_N):
        self.rows.append(len(rows_N))
        return self.log_VV[tokens_N]

    def best(self, begin, most):
        """Return the likeliest text by its mean log-probability, of all that there are."""
        texts = {}
        for tokens in itertools.product(range(len(self.log_VV)), repeat=most):
            cut = tokens[: tokens.index(END) + 1] if END in tokens else tokens
            pairs = itertools.pairwise((begin, *cut))
            texts[cut] = sum(float(self.log_VV[a, b]) for a, b in pairs) / len(cut)
        return list(max(texts, key=texts.__getitem__))


@pytest.mark.parametrize("seed", range(4))
def test_with_beams_for_all_texts_the_likeliest_one_is_found(seed):
    table = Table(4, seed)

    texts = BeamSearch(64, early_stopping="never")(
        table.log_VV[[1, 2, 3]], table.read, max_tokens=4, end_tokens=[END]
    )

    assert texts == [table.best(begin, 4) for begin in (1, 2, 3)]


def test_a_text_whose_search_has_ended_is_read_no_more():
    table = Table(6, 0)
    table.log_VV[1] = torch.tensor([0.99, *[0.002] * 5]).log()

    alone = BeamSearch(3)(table.log_VV[[2]], table.read, max_tokens=9, end_tokens=[END])
    rows, table.rows = table.rows, []
    both = BeamSearch(3)(table.log_VV[[2, 1]], table.read, max_tokens=9, end_tokens=[END])

    assert both == [*alone, [END]]
    assert rows[-1] == table.rows[-1] < table.rows[0]


def test_a_text_that_nothing_may_follow_ends():
    allowed_V = torch.tensor([False, True, True, True])
    table, search = Table(4, 0), BeamSearch(3, no_repeat_ngram_size=1)

    (text,) = search(
        table.log_VV[[1]], table.read, max_tokens=9, end_tokens=[END], allowed_V=allowed_V
    )

    assert sorted(text) == [1, 2, 3]


@pytest.mark.parametrize(
    ("tokens", "size", "expected"),
    [("abcab", 3, "c"), ("abcab", 2, "c"), ("aab", 1, "ab"), ("ab", 3, ""), ("abab", 3, "a"),
     ("", 1, ""), ("abacab", 2, "a")],
)  # fmt: skip
def test_tokens_that_would_repeat_what_was_said_are_known(tokens, size, expected):
    assert repeating_tokens(list(tokens), size) == set(expected)


def test_more_beams_than_tokens_are_refused():
    with pytest.raises(ConfigError, match="beams"):
        BeamSearch(49).check(tiny.VOCABULARY)
