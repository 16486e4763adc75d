"""A published chat model is tuned on conversations, talked to, and exported with its template."""

import json
from pathlib import Path

import pytest
import torch

from tests import tiny
from tests.published import publish, reference
from transfer_cli.assembly.finished_run import open_trained
from transfer_cli.commands.conversation import open_chat_prompter

TEMPLATE = (Path(__file__).parents[1] / "inputs/chat_templates/llama2.jinja").read_text()


def said(*turns):
    return {"messages": [{"role": role, "content": text} for role, text in turns]}


ROWS = [
    said(("user", f"word {n % 4}"), ("assistant", ("Paris", "Seine", "play", "prince")[n % 4]))
    for n in range(40)
]
PIRATE = said(("system", "Be brief."), ("user", "Who wrote it?"))


def write(path, rows):
    Path(path).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return the folder of a small published model with a chat template."""
    folder = tmp_path_factory.mktemp("llama")
    publish(folder, "llama", "CausalLM", max_position_embeddings=128, initializer_range=0.5)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    options = folder / "tokenizer_config.json"
    named = {"bos_token": "<|im_start|>", "eos_token": "<|endoftext|>"}
    options.write_text(json.dumps({**json.loads(options.read_text()), **named}))
    return folder


@pytest.fixture
def tune(transfer, model):
    """Return how to tune the model on rows."""

    def call(*words, rows=ROWS):
        write("rows.jsonl", rows)
        return transfer(
            "finetune", f"init_from={model}", "data=chat", "objective=sft", "run.dir=run",
            "data.train=rows.jsonl", "data.duplicates=keep", "device=cpu", "loop.steps=2",
            "data.answer_tokens=12", *words,
        )  # fmt: skip

    return call


@pytest.mark.parametrize("adaptation", [pytest.param("full", marks=pytest.mark.slow), "lora"])
def test_an_export_has_the_template_and_says_the_same(adaptation, tune, transfer, model, read_json):
    lib = reference()
    tune(f"adaptation={adaptation}", "optimizer.lr=1e-2").ok()
    write("asked.jsonl", [PIRATE])

    transfer("export", "run", "to=there").ok()
    answers = [
        transfer(
            "generate", place, "messages=asked.jsonl", "temperature=0", "max_tokens=6",
            "device=cpu", f"output={place}.jsonl",
        ).out
        for place in ("run", "there")
    ]  # fmt: skip

    assert answers[0] == answers[1] != ""
    theirs = lib.AutoTokenizer.from_pretrained("there")
    turns = PIRATE["messages"]
    asked = theirs.apply_chat_template(turns, return_dict=False, return_tensors="pt")
    original = lib.AutoTokenizer.from_pretrained(model)
    original.chat_template = TEMPLATE
    assert asked[0].tolist() == original.apply_chat_template(turns, return_dict=False)
    loaded = lib.AutoModelForCausalLM.from_pretrained("there").eval()
    best = loaded.generate(asked, max_new_tokens=6, do_sample=False)[0, asked.shape[1] :]
    rows = [json.loads(line) for line in Path("run.jsonl").read_text().splitlines()]
    assert rows[0]["prompt"] == "Who wrote it?"
    first = theirs.decode(best, skip_special_tokens=True)
    assert first.strip().startswith(rows[0]["text"].strip()[:4])
    if adaptation == "lora":
        transfer("export", "run", "to=added", "format=peft").ok()
        assert Path("added/chat_template.jinja").read_text() == TEMPLATE
        assert read_json(Path("added/adapter_config.json"))["task_type"] == "CAUSAL_LM"


def test_it_is_talked_to(transfer, model, type_in):
    words = ("chat", model, "temperature=0", "max_tokens=4", "device=cpu")
    type_in(
        "Who wrote it?\nAnd the play?\n/reset\nAnd the play?\n/system Be brief.\nWho wrote it?\n"
    )
    whole = transfer(*words).ok().out.split("\n")[:-1]
    type_in("And the play?\n")
    alone = transfer(*words).ok().out.split("\n")[:-1]
    write("asked.jsonl", [PIRATE])
    write("turns.jsonl", [*PIRATE["messages"], {"role": "assistant", "content": "Nobody."}])
    system = transfer(
        "generate", model, "messages=asked.jsonl", "temperature=0", "max_tokens=4", "device=cpu"
    ).ok()

    answered = transfer("generate", model, "messages=turns.jsonl", *words[2:]).ok()

    assert answered.out == system.out
    assert len(whole) == 4
    assert whole[2] == alone[0] != whole[1]
    assert whole[3] == system.out.split("\n")[0]
    transfer("chat", model, "persona=I am old.", "device=cpu").refusal("persona: ", "system=")


def test_a_line_that_is_too_long_is_said_and_the_talk_goes_on(transfer, model, type_in):
    words = ("chat", model, "temperature=0", "max_tokens=4", "device=cpu")
    type_in("Who wrote it?\nAnd the play?\n")
    expected = transfer(*words).ok().out

    type_in(f"Who wrote it?\n{'word ' * 200}\nAnd the play?\n")
    ended = transfer(*words).ok()

    assert ended.out == expected
    assert [line for line in ended.err.splitlines() if "128 positions" in line]


def test_a_conversation_that_is_too_long_is_named_before_the_first_is_answered(transfer, model):
    write("asked.jsonl", [PIRATE, said(("user", "word " * 200))])

    ended = transfer("generate", model, "messages=asked.jsonl", "max_tokens=4", "device=cpu")

    ended.refusal("messages: ", "number 2", "positions")
    assert ended.out == ""


@pytest.mark.parametrize("most", [10_000, 90, 10])
def test_a_reply_that_may_be_long_does_not_push_out_what_fits(most, model):
    turns = said(("user", "a"), ("assistant", "b"), ("user", "c"))["messages"]

    with open_chat_prompter(open_trained(str(model), tiny.FP32)) as prompter:
        prompter.prompt_within(turns, most)

    assert len(turns) == 3


def test_a_published_model_is_scored_as_a_run_that_did_not_learn(tune, transfer, model, pretrained):
    asked = ("data.validation=rows.jsonl", "data.answer_tokens=12", "data.system=Be brief.")
    tune("optimizer.lr=1e-30", "adaptation=lora", *asked).ok()
    scored = ("data=chat", "data.train=rows.jsonl", *asked, "split=validation", "device=cpu")
    for name, run in (("theirs", model), ("ours", "run")):
        transfer("evaluate", run, *scored, f"output={name}.json").ok()
    transfer("evaluate", pretrained, *scored).refusal("run", "chat template")

    theirs, ours = (
        json.loads(Path(f"{n}.json").read_text())["measures"] for n in ("theirs", "ours")
    )
    assert {"exact_match", "f1", "loss"} <= theirs["validation"].keys()
    assert theirs == ours


WRONG = {
    "roles": (
        [*ROWS, said(("user", "a"), ("user", "b"), ("assistant", "c"))],
        [],
        "rows.jsonl, line 41: ",
    ),
    "empty": ([*ROWS[:3], said(("user", ""), ("assistant", "b"))], [], "rows.jsonl, line 4"),
    "no answer": ([*ROWS[:3], said(("user", "a"))], [], "rows.jsonl, line 4"),
    "loops": (ROWS, ["tokenizer.chat_template=loops.jinja"], "takes more than"),
    "files": (ROWS, ["tokenizer.chat_template=files.jinja"], "files.jinja"),
    "no file": (ROWS, ["tokenizer.chat_template=none.jinja"], "none.jinja"),
    "short": (ROWS, ["data.length=3"], "data.length"),
    "tokens": (ROWS, ["objective.tokens=some"], "objective.tokens"),
}


@pytest.mark.parametrize(
    "fault",
    [pytest.param(f, marks=[pytest.mark.slow] if f == "loops" else []) for f in WRONG],
)
def test_what_is_wrong_is_said_in_a_line_and_nothing_is_written(fault, tune, monkeypatch):
    monkeypatch.setattr("transfer_cli.data.chat_template.MAX_SECONDS", 0)
    loops = "{% for a in range(9999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    Path("loops.jinja").write_text(loops)
    Path("files.jinja").write_text("{% include '/etc/passwd' %}")
    rows, words, names = WRONG[fault]

    ended = tune(*words, rows=rows)

    assert (ended.code, ended.out) == (2, "")
    assert names in ended.err.strip().splitlines()[-1]
    assert not Path("run").exists()


def test_a_model_without_a_template_learns_chatml(transfer, pretrained, type_in):
    write("rows.jsonl", ROWS)
    words = (
        "finetune", f"init_from={pretrained}", "data=chat", "objective=sft", "run.dir=run",
        "data.train=rows.jsonl", "data.duplicates=keep", "device=cpu", "loop.steps=2",
    )  # fmt: skip

    refused = transfer(*words)
    transfer(*words, "tokenizer.chat_template=chatml", "data.answer_tokens=3").ok()
    type_in("Paris\n")
    transfer("chat", "run", "device=cpu", "max_tokens=3").ok()

    assert refused.code == 2
    assert "tokenizer.chat_template=chatml" in refused.err
    names = json.loads(Path("run/model/tokenizer.json").read_text())["added_tokens"]
    assert {"<|im_start|>", "<|im_end|>"} <= {token["content"] for token in names}
    type_in("Paris\n")
    other = transfer("chat", pretrained, "device=cpu")
    assert (other.code, "chat template" in other.err) == (2, True)


def test_weights_move_where_answers_are_learnt_alone(tune):
    tune("adaptation=lora", "objective.tokens=all", "loop.steps=1").ok()
    results = json.loads(Path("run/results.json").read_text())

    assert results["measures"]["validation"]["loss"] > 0
    assert torch.isfinite(torch.tensor(results["measures"]["validation"]["f1"]))
