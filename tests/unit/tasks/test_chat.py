"""Conversations: read, written by templates, cut at turns; what of them is learnt."""

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from tests import tiny
from transfer_cli.batch import IGNORE
from transfer_cli.data.chat_template import ChatTemplate, chatml, with_end_token
from transfer_cli.errors import DataError
from transfer_cli.interop.vocabulary import read_chat_template, read_tokenizer
from transfer_cli.objectives.base import Encoding
from transfer_cli.seeds import ExampleNoise
from transfer_cli.tasks.chat.conversations import ChatExample
from transfer_cli.tasks.chat.task import ChatTask, Conversations, SupervisedChat

TEMPLATES = Path(__file__).parents[2] / "inputs/chat_templates"

# Template -> its end of a turn, the other special tokens that it writes, and whether spaces are
# letters of pieces, as in SentencePiece.
FAMILIES = {
    "chatml": ("<|im_end|>", ["<|im_start|>"], False),
    "llama2": ("</s>", [], True),
    "llama3": ("<|eot_id|>", ["<|start_header_id|>", "<|end_header_id|>"], False),
    "mistral": ("</s>", ["[INST]", "[/INST]"], True),
    "gemma": ("<end_of_turn>", ["<start_of_turn>"], True),
    "phi3": ("<|end|>", ["<|user|>", "<|assistant|>", "<|system|>"], True),
    "zephyr": ("</s>", [], True),
    "vicuna": ("</s>", [], True),
    "deepseek": (
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
        ["<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>"],
        False,
    ),
    "olmo": ("<|endoftext|>", [], False),
}  # fmt: skip

TURNS = [
    {"role": "system", "content": "You are brief."},
    {"role": "user", "content": "Where is it?\n\nSay  more: <b>"},
    {"role": "assistant", "content": "In the sea, 12 m deep."},
    {"role": "user", "content": "Why?"},
    {"role": "assistant", "content": "It fell in \u2014 \u4f60\u597d."},
]


def conversation(family="chatml"):
    return TURNS[1:] if family == "gemma" else TURNS


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """Return how to make the folder of a tokenizer with a template."""

    def made(family):
        folder = tmp_path_factory.mktemp(family)
        end, others, is_pieces = FAMILIES[family]
        begin, eos = ("<s>", "</s>") if is_pieces else ("<|begin_of_text|>", "<|endoftext|>")
        eos = end if family in ("chatml", "deepseek") else eos
        special = list(dict.fromkeys(["<unk>", begin, "</s>", "<|endoftext|>", eos, end, *others]))
        backend = tokenizers.Tokenizer(models.BPE(byte_fallback=is_pieces))
        if is_pieces:
            backend.normalizer = normalizers.Sequence(
                [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
            )
            backend.decoder = decoders.Sequence([
                decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ])  # fmt: skip
            alphabet = [f"<0x{byte:02X}>" for byte in range(256)]
        else:
            backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            backend.decoder = decoders.ByteLevel()
            alphabet = []
        trainer = trainers.BpeTrainer(
            vocab_size=700, show_progress=False, special_tokens=[*special, *alphabet],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if not is_pieces else [],
        )  # fmt: skip
        texts = [str(turn["content"]) for turn in TURNS] * 3
        backend.train_from_iterator(
            [*texts, "user assistant system model USER: ASSISTANT:"], trainer
        )
        data = json.loads(backend.to_str())
        data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] not in alphabet]
        (folder / "tokenizer.json").write_text(json.dumps(data))
        options = {
            "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": begin, "eos_token": eos,
            "unk_token": "<unk>", "clean_up_tokenization_spaces": False,
        }  # fmt: skip
        source = (TEMPLATES / f"{family}.jinja").read_text()
        if family in ("chatml", "phi3"):  # where transformers writes it, and where it wrote it
            options["chat_template"] = source
        else:
            (folder / "chat_template.jinja").write_text(source)
        (folder / "tokenizer_config.json").write_text(json.dumps(options))
        return folder

    return made


def written(folder, turns, length=10_000, **options):
    """Return conversations, encoded by the template of a folder, with its tokenizer."""
    tokenizer = read_tokenizer(folder)
    template = read_chat_template(folder)
    task = ChatTask(**options).written_by(lambda: with_end_token(template, tokenizer))
    examples = [ChatExample(messages) for messages in turns]
    return task.encode(examples, tokenizer, length, "causal"), task


def learnt(data, row=0):
    """Return the texts that are learnt of a row, each up to its end."""
    batch = data.batch(np.array([row]))
    target = batch["next_tokens"][0].tolist()
    parts, part = [], []
    for token in [*target, IGNORE]:
        if token == IGNORE and part:
            parts.append(data.tokenizer.decode(part))
            part = []
        elif token != IGNORE:
            part.append(token)
    return parts


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_transformers_and_answers_with_their_ends_are_learnt(family, folder_of):
    from transformers import AutoTokenizer

    folder = folder_of(family)
    theirs = AutoTokenizer.from_pretrained(folder)
    turns = conversation(family)

    data, task = written(folder, [turns, turns[:-1]])

    options = {"tokenize": True, "return_dict": False}
    whole = theirs.apply_chat_template(turns, **options)
    asked = theirs.apply_chat_template(turns[:-1], add_generation_prompt=True, **options)
    batch = data.batch(np.array([0, 1]))
    assert batch["tokens"][0][batch["mask"][0]].tolist() == whole
    assert batch["tokens"][1][batch["mask"][1]].tolist() == asked
    assert task.end == FAMILIES[family][0]
    expected = [f"{turn['content']}{task.end}" for turn in turns if turn["role"] == "assistant"]
    gap = " " if family == "llama2" else ""
    assert [part.strip() for part in learnt(data)] == [
        answer.replace(task.end, gap + task.end) for answer in expected
    ]
    assert learnt(data, 1) == []


def test_what_a_template_marks_is_what_transformers_masks(folder_of):
    from transformers import AutoTokenizer

    folder = folder_of("chatml")
    theirs = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        TURNS, return_dict=True, return_assistant_tokens_mask=True
    )

    batch = written(folder, [TURNS])[0].batch(np.array([0]))

    is_learnt = [False, *(batch["next_tokens"][0] != IGNORE).tolist()[:-1]]
    assert is_learnt == [bool(mark) for mark in theirs["assistant_masks"]]


def test_a_long_conversation_ends_with_an_earlier_answer_and_the_first_one_is_cut(folder_of):
    folder = folder_of("llama3")
    first = written(folder, [TURNS[:3]])[0]
    length = int(first.lengths[0])

    whole, earlier, cut = (
        written(folder, [TURNS], most)[0] for most in (1000, length + 3, length - 3)
    )

    assert [data.num_cut for data in (whole, earlier, cut)] == [0, 1, 1]
    assert torch.equal(earlier.batch(np.array([0]))["tokens"], first.batch(np.array([0]))["tokens"])
    assert learnt(earlier) == learnt(whole)[:1]
    assert cut.lengths.tolist() == [length - 3]
    assert earlier.given == first.given != whole.given
    assert [data.is_compared for data in (whole, earlier, cut)] == [[True], [True], [False]]
    assert learnt(whole)[0].startswith(learnt(cut)[0])
    with pytest.raises(DataError, match="no answer begins within 5 tokens"):
        written(folder, [TURNS], 5)


def asked(folder, turns, **options):
    """Return an objective, its small model, and a batch of conversations."""
    data, task = written(folder, turns, answer_tokens=6)
    objective = SupervisedChat(**options)
    model = tiny.at_work(objective, task, data.tokenizer, positions=200)
    batch = data.batch(np.arange(len(turns)))
    return objective, model, objective.prepare(batch, ExampleNoise(0, "test"))


@pytest.mark.parametrize("tokens", ["answers", "all"])
def test_padding_is_not_learnt_though_its_token_ends_answers(tokens, folder_of):
    folder = folder_of("olmo")
    objective, model, both = asked(folder, [TURNS, TURNS[:3]], tokens=tokens)
    _, _, alone = asked(folder, [TURNS[:3]], tokens=tokens)

    assert objective.info.vocabulary.pad == objective.info.vocabulary.token("<|endoftext|>")
    size = alone["tokens"].shape[1]
    assert both["tokens"].shape[1] > size
    assert torch.equal(both["target"][1, :size], alone["target"][0])
    assert (both["target"][1, size:] == IGNORE).all()
    assert ((alone["target"] != IGNORE).sum() == size - 1) == (tokens == "all")
    results = objective.example_results(model, both, Encoding(model, both))
    single = objective.example_results(model, alone, Encoding(model, alone))
    assert results.loss[1].item() == pytest.approx(single.loss[0].item(), rel=1e-5)


READ = {
    "messages": (
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                      {"role": "user", "content": "c"}]},
        [("user", "a"), ("assistant", "b")],
    ),
    "sharegpt": (
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
        [("user", "a"), ("assistant", "b")],
    ),
    "alpaca": (
        {"instruction": "a", "input": "c", "output": "b"},
        [("user", "a\n\nc"), ("assistant", "b")],
    ),
    "alpaca without input": (
        {"instruction": "a", "input": "", "output": "b"}, [("user", "a"), ("assistant", "b")],
    ),
    "prompt": ({"prompt": "a", "completion": "b"}, [("user", "a"), ("assistant", "b")]),
    "parts": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]},
                      {"role": "assistant", "content": "b"}]},
        [("user", "a"), ("assistant", "b")],
    ),
}  # fmt: skip


def loaded(path, rows, **options):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    source = Conversations(train=str(path), **options)
    return source.given_splits(path.parent).splits["train"]


@pytest.mark.parametrize("form", READ)
def test_conversations_are_recognised_by_their_columns(form, tmp_path, caplog):
    caplog.set_level("INFO")
    row, expected = READ[form]

    (example,) = loaded(tmp_path / "rows.jsonl", [row])

    assert [(turn["role"], turn["content"]) for turn in example.messages] == expected
    assert "text from " in caplog.text


def turns(*said):
    return {"messages": [{"role": role, "content": text} for role, text in said]}


BROKEN = {
    "no answer": turns(("user", "a")),
    "empty": turns(("user", " "), ("assistant", "b")),
    "unknown role": turns(("usr", "a"), ("assistant", "b")),
    "no list": {"messages": "a"},
    "no object": {"messages": ["a"]},
    "no content": {"messages": [{"role": "user"}, {"role": "assistant", "content": "b"}]},
    "a picture": {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_conversation_is_named_with_file_and_line(fault, tmp_path):
    path, sound = tmp_path / "rows.jsonl", turns(("user", "a"), ("assistant", "b"))

    with pytest.raises(DataError, match=r"rows\.jsonl, line 2"):
        loaded(path, [sound, BROKEN[fault]])

    assert len(loaded(path, [sound, BROKEN[fault]], errors="skip")) == 1


HOSTILE = {
    "file": "{% include '/etc/passwd' %}",
    "python": "{{ ''.__class__.__mro__ }}",
    "change": "{{ messages.append(1) }}",
    "memory": "{{ 'x' * 10 ** 10 }}",
    "output": "{% for a in range(9999) %}{{ 'x' * 9999 }}{% endfor %}",
    "refusal": "{{ raise_exception('no') }}",
    "syntax": "{% if %}",
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_a_hostile_template_is_refused(fault):
    with (
        ChatTemplate(HOSTILE[fault]).open_renderer() as render,
        pytest.raises(DataError) as refused,
    ):
        render(TURNS)

    assert "\n" not in str(refused.value)


def test_a_template_that_loops_is_stopped(monkeypatch):
    monkeypatch.setattr("transfer_cli.data.chat_template.MAX_SECONDS", 0)
    loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"

    with (
        ChatTemplate(loops).open_renderer() as render,
        pytest.raises(DataError, match="more than 0 s"),
    ):
        render(TURNS)


def test_a_template_whose_process_ends_is_not_called_slow(monkeypatch):
    monkeypatch.setattr("transfer_cli.data.chat_template._SANDBOX", "no_such_module")

    with ChatTemplate("").open_renderer() as render, pytest.raises(DataError, match="ended with 1"):
        render(TURNS)


def test_a_template_that_writes_turns_otherwise_later_is_refused(folder_of):
    source = "{% for turn in messages %}{{ turn.content if loop.last else '' }}{% endfor %}"
    tokenizer, task = read_tokenizer(folder_of("llama2")), ChatTask(template=source)

    with pytest.raises(DataError, match="turn 3 is written otherwise"):
        task.encode([ChatExample(TURNS)], tokenizer, 100, "causal")


def test_a_system_text_stands_before_conversations_without_one(folder_of):
    data, _ = written(folder_of("llama3"), [TURNS, TURNS[1:]], system=TURNS[0]["content"])

    batch = data.batch(np.array([0, 1]))

    assert torch.equal(*batch["tokens"])


def test_tools_and_their_turns_reach_the_template():
    source = "{{ tools[0].name }}|{% for turn in messages %}{{ turn | tojson }}{% endfor %}"
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}

    with ChatTemplate(source).open_renderer() as render:
        text = render([call, {"role": "tool", "content": "1"}], [{"name": "f"}]).text

    assert text.startswith(
        'f|{"role": "assistant", "content": null, "tool_calls": [{"name": "f"}]}'
    )


def test_chatml_marks_turns_with_tokens_of_its_own(folder_of):
    tokenizer = read_tokenizer(folder_of("llama2")).with_added(["<|im_start|>", "<|im_end|>"])

    assert with_end_token(chatml(), tokenizer).end == "<|im_end|>"


@pytest.mark.parametrize("generate", [True, False])
def test_evaluations_bound_how_many_answers_they_have_written(generate):
    assert SupervisedChat(generate=generate).writes_answers is generate
