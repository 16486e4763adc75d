"""`transfer generate`: text that goes on, by runs that were trained here."""

import json
import sys
from dataclasses import replace
from io import StringIO
from itertools import pairwise

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tests import published, tiny
from tests.functional.test_look import on_a_terminal
from transfer_cli.assembly.finished_run import open_trained
from transfer_cli.assembly.init_from import open_pretrained
from transfer_cli.cli import main
from transfer_cli.generation.decoding import Sampling


@pytest.fixture
def generate(transfer, pretrained):
    """Return how to let the pretrained run go on; gives what was printed."""

    def call(*words):
        ended = transfer("generate", f"run={pretrained}", "device=cpu", *words).ok()
        return ended.out

    return call


def rows_of(out):
    return [json.loads(line) for line in out.splitlines()]


def test_a_text_goes_on_and_the_same_seed_makes_the_same_text(generate):
    first = generate("What is", "max_tokens=10", "seed=3")

    assert first.startswith("What is ")
    assert len(first.split()) > 4
    assert generate("prompt=What is", "max_tokens=10", "seed=3") == first
    assert generate("What is", "max_tokens=10", "seed=4") != first


@pytest.mark.slow
@pytest.mark.parametrize("edit", ["adapters", "lora"])
def test_a_language_model_with_edits_goes_on_too(transfer, deep, adapting, tmp_path, edit):
    words = adapting(edit, "objective=clm", "loop.steps=1", f"run.dir={tmp_path / edit}")
    transfer("finetune", *words).ok()

    texts = [
        transfer("generate", f"run={tmp_path / edit}", "The", "max_tokens=8", cache)
        for cache in ("cache=true", "cache=false")
    ]

    assert texts[0] == texts[1]
    assert texts[0].out.startswith("The")


@pytest.mark.parametrize("prompt", ["a=b [x] ${y}", 'it\'s, "so" {a: 1}', "???", "null"])
def test_a_prompt_means_what_is_typed(generate, prompt):
    (row,) = rows_of(generate(f"prompt={prompt}", "max_tokens=1", "output=-"))

    assert row["prompt"] == prompt


def test_a_prompt_comes_from_standard_input(generate, type_in):
    type_in("Who är\r\nWhat is\n")

    (row,) = rows_of(generate("prompt=-", "max_tokens=3", "output=-"))

    assert row["prompt"] == "Who är\nWhat is"
    assert row["tokens"] == 3


def test_samples_differ_and_stand_below_each_other(generate, tmp_path):
    words = ("What is", "samples=3", "max_tokens=8", "temperature=2")

    shown = generate(*words, "output=texts.jsonl")

    rows = rows_of((tmp_path / "texts.jsonl").read_text())
    assert shown == "\n".join(f"What is{row['text']}\n" for row in rows)
    assert len({row["text"] for row in rows}) == 3
    assert {row["ended"] for row in rows} == {"max_tokens"}
    (alone,) = rows_of(generate(*words[:1], *words[2:], "output=-"))
    assert alone == rows[0]


def test_a_text_ends_before_a_stop(generate):
    whole = generate("What is", "max_tokens=20", "temperature=2")
    words = whole.split()
    stop = f"{words[4]} {words[5]}"

    (row,) = rows_of(
        generate("What is", "max_tokens=20", "temperature=2", f"stop=[never,'{stop}']", "output=-")
    )

    assert row["ended"] == "stop"
    assert "What is" + row["text"] == whole[: whole.index(stop)]


def test_a_text_ends_with_the_models_positions_and_says_so(transfer, pretrained):
    ended = transfer(
        "generate", f"run={pretrained}", "What is", "max_tokens=500", "output=-", "device=cpu"
    )

    (row,) = rows_of(ended.out)
    assert (ended.code, row["ended"]) == (0, "positions")
    assert ended.err == "the text ends here: the model's 64 positions are used up\n"


def test_each_token_is_shown_as_soon_as_it_is_there(pretrained, monkeypatch):
    shown, made = [], []

    class Watched(StringIO):
        def flush(self):
            shown.append((self.getvalue(), len(made)))

    def probabilities(sampling, logits_BV, plain=Sampling.probabilities):
        made.append(logits_BV)
        return plain(sampling, logits_BV)

    monkeypatch.setattr(Sampling, "probabilities", probabilities)
    monkeypatch.setattr(sys, "stdout", Watched())

    main(["generate", f"run={pretrained}", "What is", "max_tokens=30", "device=cpu"])

    assert shown[0] == ("What is", 0)
    assert [number for _, number in shown[1:6]] == [1, 2, 3, 4, 5]
    assert all(later.startswith(text) for (text, _), (later, _) in pairwise(shown))


@pytest.mark.slow
def test_a_terminal_is_shown_the_text_and_never_steered(pretrained, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)

    code, seen = on_a_terminal(
        "generate", f"run={pretrained}", "prompt=A\x1b[2J", "max_tokens=3", "device=cpu"
    )

    assert code == 0
    assert "A\\x1b[2J" in seen
    assert "\x1b[2J" not in seen


# --- a published model -------------------------------------------------------------------------


PROMPT = "The capital of France,\n\nwhich 🙂"


def test_the_token_that_ends_a_published_models_text_ends_it(transfer, tmp_path):
    eager = tmp_path / "eager"
    published.publish(eager, "gpt2", "LMHeadModel")
    with safe_open(eager / "model.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    end, norm = tensors["transformer.wte.weight"][0], "transformer.ln_f"
    tensors[f"{norm}.weight"].zero_()
    tensors[f"{norm}.bias"].copy_(end * 100)
    save_file(tensors, eager / "model.safetensors", {"format": "pt"})

    ended = transfer("generate", f"run={eager}", PROMPT, "output=-", "device=cpu")

    (row,) = rows_of(ended.out)
    assert (row["text"], row["ended"], row["tokens"]) == ("", "end", 1)


@pytest.mark.parametrize(
    "family",
    [
        "gpt2",
        "gemma3_text",
        *(pytest.param(f, marks=pytest.mark.slow) for f in published.LLAMAS[:4]),
    ],
)
@pytest.mark.parametrize(
    ("how", "options"),
    [(["temperature=0"], {}),
     (["beams=3", "length_penalty=0.5", "no_repeat_ngram_size=2"],
      {"num_beams": 3, "length_penalty": 0.5, "no_repeat_ngram_size": 2})],
)  # fmt: skip
def test_a_published_model_says_what_its_own_implementation_says(
    transfer, tmp_path, family, how, options
):
    kind = "LMHeadModel" if family == "gpt2" else "CausalLM"
    model = published.publish(tmp_path / "given", family, kind)
    tokenizer = open_pretrained(str(tmp_path / "given")).tokenizer
    tokens = torch.tensor([tokenizer.encode(PROMPT)])
    with torch.no_grad():
        expected = model.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=8, do_sample=False,
            suppress_tokens=[tokenizer.sep], pad_token_id=tokenizer.pad, **options,
        )[0]  # fmt: skip

    ended = transfer(
        "generate", f"run={tmp_path / 'given'}", PROMPT, *how, "max_tokens=8", "device=cpu"
    )

    assert (ended.code, ended.err) == (0, "")
    assert ended.out == tokenizer.decode(expected.tolist()) + "\n"


@pytest.mark.parametrize(
    ("words", "key"),
    [("beams=2 temperature=0", "temperature"), ("beams=2 samples=2", "samples"),
     ("length_penalty=2", "length_penalty"), ("beams=2 cache=false", "beams"),
     ("beams=100000", "beams"), ("beams=2 top_k=5", "top_k"),
     ("beams=2 first_token=nowhere", "first_token"), ("first_token=a", "first_token")],
)  # fmt: skip
def test_what_does_not_go_with_a_search_is_refused(transfer, pretrained, words, key):
    ended = transfer("generate", f"run={pretrained}", "What is", *words.split(), "device=cpu")

    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"transfer generate: {key}: ")


# --- fill ----------------------------------------------------------------------------------------


@pytest.fixture
def fill(transfer, language_model):
    """Return how to fill gaps; gives what was printed."""

    def call(*words):
        ended = transfer("fill", f"run={language_model('mlm')}", "device=cpu", *words)
        assert (ended.code, ended.err) == (0, "")
        return ended.out

    return call


@pytest.mark.slow
def test_a_gap_gets_candidates_with_their_probabilities_and_the_best_in_place(fill):
    head, *rows, empty, best = fill("The capital of [MASK] is large .").splitlines()

    assert head.split() == ["word", "probability"]
    assert len(rows) == 5
    shares = [float(row.split()[-1]) for row in rows]
    assert shares == sorted(shares, reverse=True)
    assert empty == ""
    word = rows[0].split()[0].removeprefix("##")
    assert best == f"The capital of {word} is large ."


def test_each_gap_has_its_own_lines(fill):
    head, *rows, _, best = fill("The [MASK] of <mask> .", "top=2").splitlines()

    assert head.split() == ["gap", "word", "probability"]
    assert [row.split()[0] for row in rows[::2]] == ["1", "2"]
    words = [row.split()[1].removeprefix("##") for row in rows[::2]]
    assert best == f"The {words[0]} of {words[1]} ."


def test_all_of_it_goes_to_a_file_or_to_standard_output(fill, tmp_path):
    words = ("text=a=b, [MASK] ${y}", "top=3")

    shown = json.loads(fill(*words, "output=-"))
    table = fill(*words, "output=found.jsonl")

    assert json.loads((tmp_path / "found.jsonl").read_text()) == shown
    assert shown["text"] == "a=b, [MASK] ${y}"
    (candidates,) = shown["gaps"]
    assert [set(candidate) for candidate in candidates] == [{"text", "token", "probability"}] * 3
    word = candidates[0]["text"].removeprefix("##")
    assert shown["filled"] == f"a=b, {word} ${{y}}"
    assert shown["filled"] in table


def test_a_gap_stands_in_lines_where_the_model_was_trained_on_those_last(language_model):
    trained = open_trained(str(language_model("mlm")), tiny.FP32)
    of_a_task = replace(trained.start.description, labels=("city", "river"))

    assert trained.start.around == "lines"
    adapted = replace(trained, start=replace(trained.start, description=of_a_task))
    assert adapted.start.around == "sentence"


def test_a_published_model_fills_gaps_as_its_own_implementation_does(transfer, tmp_path):
    model = published.publish(tmp_path / "bert", "bert", "MaskedLM")
    tokenizer = open_pretrained(str(tmp_path / "bert")).tokenizer
    before, after = tokenizer.encode("The capital of"), tokenizer.encode("is Paris.")
    row = [tokenizer.cls, *before, tokenizer.mask, *after, tokenizer.sep]
    with torch.no_grad():
        shares_V = model(torch.tensor([row])).logits[0, 1 + len(before)].softmax(-1)

    ended = transfer(
        "fill", f"run={tmp_path / 'bert'}", "The capital of [MASK] is Paris.", "top=3",
        "output=-", "device=cpu",
    )  # fmt: skip

    (candidates,) = json.loads(ended.out)["gaps"]
    shares_V[sorted(tokenizer.special)] = 0
    best = shares_V.topk(3)
    assert [word["token"] for word in candidates] == tokenizer.pieces(best.indices.tolist())
    probabilities = [word["probability"] for word in candidates]
    assert probabilities == pytest.approx(best.values.tolist(), rel=1e-4)
