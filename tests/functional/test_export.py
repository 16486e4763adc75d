"""`transfer export`: what others load gives what we give."""

import itertools
import json
import re
import shutil
import signal
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.torch import load_file

from tests.functional.conftest import LOOP, TINY, finished
from tests.published import TEXT, publish, reference
from transfer_cli.assembly.finished_run import open_trained
from transfer_cli.assembly.init_from import open_pretrained
from transfer_cli.batch import with_facts
from transfer_cli.data.encoded_task import encode_texts
from transfer_cli.data.labelled import Example
from transfer_cli.engine.precision import Precision
from transfer_cli.interop import inputs
from transfer_cli.objectives.base import Encoding

CPU = Precision("fp32", torch.device("cpu"))
HEADS = {
    "bert": ("", "MaskedLM", "PreTraining"), "distilbert": ("", "MaskedLM"),
    "roberta": ("", "MaskedLM"), "electra": ("", "PreTraining", "MaskedLM"),
    "gpt2": ("", "LMHeadModel"), "xlm-roberta": ("MaskedLM",), "mpnet": ("MaskedLM",),
    "albert": ("", "MaskedLM", "PreTraining"), "gpt_neox": ("CausalLM",),
    "modernbert": ("MaskedLM", "SequenceClassification"),
}  # fmt: skip
QUICK = ("bert", "gpt2")
ALL = [*QUICK, *(pytest.param(f, marks=pytest.mark.slow) for f in HEADS if f not in QUICK)]
CAUSAL = {"gpt2": "LMHeadModel", "gpt_neox": "CausalLM"}


LENGTH = 15
"""Of the adapted models, which have positions for 40 tokens and more: an odd number of tokens is
left to a pair's texts in some layouts, an even one in others."""


def read_texts(run, texts, pairs=None):
    """Return a model, texts as it reads them, and what it encodes them as."""
    trained = open_trained(str(run), CPU)
    data = encode_texts(
        [Example(t, pair=p) for t, p in zip(texts, pairs or [None] * len(texts), strict=True)],
        trained.start.tokenizer,
        trained.length,
        trained.start.description.shape.direction,
    )
    batch = with_facts(data.batch(np.arange(len(texts))))
    return trained, batch, Encoding(trained.model, batch)


@torch.inference_mode()
def our_logits(run, texts, pairs=None):
    trained, *read = read_texts(run, texts, pairs)
    return trained.objective.outputs(trained.model, *read)


def their_logits(folder, texts, pairs=None, **options):
    lib = reference()
    with warnings.catch_warnings(action="ignore"):
        model = lib.AutoModelForSequenceClassification.from_pretrained(folder, **options).eval()
        tokenizer = lib.AutoTokenizer.from_pretrained(folder, **options)
        given = tokenizer(texts, pairs, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        return model(**given).logits, model


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        pytest.param(family, kind, marks=[] if family in QUICK else [pytest.mark.slow])
        for family, kinds in HEADS.items()
        for kind in kinds
    ],
)
def test_import_export_import_gives_identical_tensors(transfer, tmp_path, family, kind):
    publish(tmp_path / "first", family, kind)

    transfer("export", "run=first", "to=second").ok()

    first, second = open_pretrained("first"), open_pretrained("second")
    assert second.description == first.description
    one, other = first.tensors(), second.tensors()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert len(one) > 20
    assert kind or all("pooler" in name for name in first.published.dropped)


@pytest.fixture(scope="module", params=ALL)
def adapted(request, tmp_path_factory, questions):
    """Return a run that fine-tuned a published model of each family, by low-rank updates."""
    folder = tmp_path_factory.mktemp(request.param)
    publish(folder / "published", request.param)
    words = (
        "data=table", f"data.train={questions}", f"init_from={folder / 'published'}", *LOOP,
        "loop.steps=4", "adaptation=lora", "optimizer.lr=1e-2", f"run.dir={folder / 'run'}",
        f"data.length={LENGTH}",
        f"objective.pooling={'cls_last' if request.param in CAUSAL else 'auto'}",
    )  # fmt: skip
    finished("finetune", *words)
    return folder / "run"


def test_a_classifier_gives_the_same_logits_elsewhere(adapted, transfer):
    texts = ["Where is the bridge, number 3 ?", "Who built it ?", *TEXT[:3]]

    transfer("export", f"run={adapted}", "to=out").ok()

    theirs, model = their_logits("out", texts)
    ours = our_logits(adapted, texts)
    assert ours.std() > 1e-3
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=0)
    assert model.config.id2label == {0: "person", 1: "place"}
    pairs = ["It is old .", "Why ?", "a b", "c", "d e f"]
    theirs, _ = their_logits("out", texts[:2] * 2 + texts[1:2], pairs)
    of_pairs = our_logits(adapted, texts[:2] * 2 + texts[1:2], pairs)
    assert (of_pairs[:2] - ours[:2]).abs().max() > 1e-5
    torch.testing.assert_close(theirs, of_pairs, atol=1e-5, rtol=0)


def texts_of(tokenizer, counts):
    """Return texts of so many tokens, made of words that are one token each."""
    words = [w for w in ("the", "is", "of", "a", "s") if len(tokenizer.encode(f"{w} {w}")) == 2]
    texts = [" ".join(words[(n * n + n) % len(words)] for n in range(count)) for count in counts]
    assert [len(tokenizer.encode(text)) for text in texts] == list(counts)
    return texts


@pytest.mark.slow
def test_a_long_text_gets_the_same_answer_elsewhere_and_back_here(adapted, transfer, tmp_path):
    transfer("export", f"run={adapted}", "to=out").ok()
    tokenizer = open_pretrained(str(adapted)).tokenizer
    texts = texts_of(tokenizer, (0, 1, 5, 6, 7, *range(LENGTH - 4, LENGTH + 3), 36, 37, 227))
    texts += ["A [SEP] b [CLS] <s> c </s> <|endoftext|>", f"{'Ünd ' * 40}", "  ", "?" * 99]
    firsts, seconds = zip(*itertools.product(texts, texts[1:]), strict=True)

    ours, ours_of_pairs = our_logits(adapted, texts), our_logits(adapted, firsts, seconds)

    theirs, model = their_logits("out", texts)
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=0)
    theirs, _ = their_logits("out", list(firsts), list(seconds))
    torch.testing.assert_close(theirs, ours_of_pairs, atol=1e-5, rtol=0)
    if reads_back := model.config.model_type not in CAUSAL:  # whose classifiers are not read
        torch.testing.assert_close(our_logits("out", texts), ours, atol=1e-5, rtol=0)
        again = our_logits("out", firsts, seconds)
        torch.testing.assert_close(again, ours_of_pairs, atol=1e-5, rtol=0)
    # As the card has it.
    code = re.search(r"ask = (pipeline\(.*\))", (tmp_path / "out" / "README.md").read_text())[1]
    ask = eval(code, {"pipeline": reference().pipeline})  # noqa: S307 - our own card
    labels = [model.config.id2label[int(row.argmax())] for row in ours]
    assert [ask(text)[0]["label"] if text else labels[0] for text in texts] == labels
    # What was cut makes a difference.
    whole = Path("out/tokenizer_config.json")
    whole.write_text(whole.read_text().replace(f": {LENGTH},", ": 40,"))
    if reads_back:
        assert (our_logits("out", texts)[-5] - ours[-5]).abs().max() > 5e-6


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_published_classifier_of_modernbert_pools_as_its_config_says(tmp_path, pooling):
    theirs = publish(
        tmp_path, "modernbert", "SequenceClassification", classifier_pooling=pooling, num_labels=3
    )
    _, batch, _ = read_texts(tmp_path, TEXT)

    with torch.no_grad():
        expected = theirs(batch["tokens"], batch["mask"].long()).logits

    assert expected.std() > 0.1
    torch.testing.assert_close(our_logits(tmp_path, TEXT), expected, atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "kind", "objective"),
    [("bert", "MaskedLM", "mlm"), ("gpt2", "LMHeadModel", "clm"), ("roberta", "MaskedLM", "mlm")],
)
def test_a_language_model_that_is_read_back_goes_on_as_before(
    transfer, tmp_path, corpus, family, kind, objective
):
    publish(tmp_path / "first", family, kind)
    words = (f"objective={objective}", "data=text", f"data.train={corpus}", "data.length=16",
             "optimizer.lr=1e-2", *LOOP)  # fmt: skip
    transfer("pretrain", "init_from=first", *words, "loop.steps=2", "run.dir=run").ok()
    transfer("export", "run=run", "to=out").ok()

    if objective == "mlm":
        asked = ("fill", "the [MASK] is old", "top=3")
    else:
        asked = ("generate", "Where is", "max_tokens=8", "temperature=0")
    rows = []
    for run in ("run", "out"):
        transfer(*asked, f"run={run}", f"output={run}.jsonl").ok()
        rows.append(json.loads(Path(f"{run}.jsonl").read_text()))

    assert rows[0] == rows[1]
    if objective == "clm":
        ask = reference().pipeline("text-generation", model="out")
        text = ask("Where is", max_new_tokens=8, do_sample=False)[0]["generated_text"]
        assert text.startswith(f"Where is{rows[0]['text']}")


@pytest.mark.parametrize("adapted", ["bert"], indirect=True)
def test_an_export_whose_tokenizer_cuts_otherwise_is_refused(adapted, transfer, monkeypatch):
    monkeypatch.setitem(inputs.CUT, "direction", "Left")

    refused = transfer("export", f"run={adapted}", "to=out")

    refused.refusal("makes another input than the run reads")
    assert not Path("out").exists()


@pytest.mark.parametrize("adapted", ["bert"], indirect=True)
def test_a_model_without_its_run_says_that_its_length_is_not_known(adapted, transfer):
    shutil.copytree(adapted / "model", "alone/model")

    ended = transfer("export", "run=alone/model", "to=out").ok()

    assert "whether texts were cut in training is not known" in ended.err
    assert json.loads(Path("out/tokenizer_config.json").read_text())["model_max_length"] == 42


@pytest.mark.parametrize("adapted", ["bert"], indirect=True)
def test_other_data_is_scored_at_the_length_of_the_run(adapted, transfer, tmp_path):
    rows = [f"{'the ' * 20}{end},{label}" for end, label in (("is", "place"), ("of", "person"))]
    (tmp_path / "long.csv").write_text("\n".join(["text,label", *rows * 5]) + "\n")
    words = ("data=table", "data.train=long.csv", "split=train", "data.duplicates=keep")

    ended = transfer("evaluate", f"run={adapted}", *words)

    assert f"to {LENGTH} tokens" in ended.err


@pytest.mark.parametrize("adapted", ["bert"], indirect=True)
def test_the_card_says_where_the_model_comes_from_and_names_no_folder(adapted, transfer, tmp_path):
    transfer("export", f"run={adapted}", "to=out")

    card = (tmp_path / "out" / "README.md").read_text()

    assert card.startswith("---\nlicense: ")
    for part in ("| data | table |", "| trained on | questions.csv", "| trained until | 20",
                 "has a 95 % interval of 0.", "| scheme | lora |", "| seed | 0 |",
                 "transfer finetune",
                 "| seen | 4 steps, 32 examples, ", "| parameters that trained | ",
                 "init_from=published", "| accuracy |", "`person`, `place`"):  # fmt: skip
        assert part in card, part
    assert str(adapted.parent) not in card
    command = next(line for line in card.splitlines() if line.startswith("transfer finetune"))
    assert "data.train=questions.csv" in command
    assert not [word for word in command.split() if word.partition("=")[2].startswith("/")]


def test_a_published_classifier_answers_here(transfer, tmp_path):
    names = {0: "no", 1: "yes", 2: "maybe"}
    theirs = publish(
        tmp_path / "judge", "bert", "SequenceClassification",
        id2label=names, label2id={name: number for number, name in names.items()},
    )  # fmt: skip
    (tmp_path / "texts.txt").write_text("\n".join(TEXT) + "\n")

    transfer("predict", "run=judge", "input=texts.txt", "output=labels.jsonl").ok()

    tokenizer = reference().AutoTokenizer.from_pretrained("judge")
    rows = [json.loads(line) for line in (tmp_path / "labels.jsonl").read_text().splitlines()]
    assert len(rows) == len(TEXT)
    for row in rows:
        given = tokenizer(row["text"], return_tensors="pt")
        with torch.no_grad():
            expected = theirs(**given).logits.softmax(-1)[0].tolist()
        assert list(row["probabilities"]) == ["no", "yes", "maybe"]
        assert list(row["probabilities"].values()) == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("kind", ["half", "bfloat16", "pickle", "pickled shards", "old names"])
def test_weights_are_read_however_they_are_stored(tmp_path, kind):
    model = publish(tmp_path, "bert")
    expected = dict(open_pretrained(str(tmp_path)).tensors())
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    if kind in ("half", "bfloat16"):
        number = getattr(torch, kind)
        model.to(number).save_pretrained(tmp_path, max_shard_size="4KB")
        assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
        expected = {name: tensor.to(number).float() for name, tensor in expected.items()}
    else:
        if kind == "old names":
            tensors = {
                n.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                    "LayerNorm.bias", "LayerNorm.beta"
                ): t
                for n, t in tensors.items()
            }
        if kind == "pickled shards":
            names = sorted(tensors)
            parts = {"a.bin": names[:9], "b.bin": names[9:]}
            for file, part in parts.items():
                torch.save({n: tensors[n] for n in part}, tmp_path / file)
            places = {n: file for file, part in parts.items() for n in part}
            index = tmp_path / "pytorch_model.bin.index.json"
            index.write_text(json.dumps({"weight_map": places}))
        else:
            torch.save(tensors, tmp_path / "pytorch_model.bin")

    loaded = open_pretrained(str(tmp_path)).tensors()

    assert loaded.keys() == expected.keys()
    for name, tensor in loaded.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, expected[name])


def test_what_was_loaded_dropped_and_new_is_said(transfer, tmp_path, questions):
    publish(tmp_path / "judge", "bert", "SequenceClassification")
    words = ("data=table", f"data.train={questions}", "init_from=judge", *LOOP, "loop.steps=1")

    ended = transfer("finetune", *words, "run.dir=run").ok()

    assert "loaded 43 tensors from judge" in ended.err
    assert "new: heads.class.linear.bias, heads.class.linear.weight" in ended.err


def test_what_a_published_model_forgets_is_measured_on_a_given_text(
    transfer, tmp_path, questions, corpus
):
    publish(tmp_path / "first", "bert", "MaskedLM")
    words = ("data=table", f"data.train={questions}", "init_from=first", *LOOP, "loop.steps=2")

    transfer("finetune", *words, f"forgetting.data={corpus}", "run.dir=run").ok()
    lost = transfer("finetune", *words, "forgetting.data=source", "run.dir=other")

    forgetting = json.loads((tmp_path / "run" / "results.json").read_text())["forgetting"]
    assert forgetting["before"]["loss"] > 0
    lost.refusal("brings no text along")


def test_a_published_model_is_scored_on_data_that_is_named(transfer, tmp_path, corpus):
    publish(tmp_path / "first", "gpt2", "LMHeadModel")

    nothing = transfer("evaluate", "run=first")
    ended = transfer("evaluate", "run=first", "data=text", f"data.train={corpus}", "split=train")

    nothing.refusal("brings no data along")
    assert "token_perplexity" in ended.ok().out


@pytest.mark.slow
@pytest.mark.parametrize("adapted", ["bert", "gpt2"], indirect=True)
def test_a_graph_and_its_tokenizer_give_the_answers_of_the_run(adapted, transfer):
    onnxruntime = pytest.importorskip("onnxruntime")
    ended = transfer("export", f"run={adapted}", "to=out", "format=onnx").ok()
    assert "checked" in ended.out
    facts = json.loads(Path("out/onnx.json").read_text())
    assert (facts["length"], facts["positions"] > 39) == (LENGTH, True)
    assert facts["labels"] == ["person", "place"]
    texts = texts_of(open_pretrained(str(adapted)).tokenizer, (0, 1, 5, LENGTH - 1, LENGTH, 99))
    texts.append("A [SEP] b [CLS] c <|endoftext|>")
    pairs = list(itertools.product(texts, repeat=2))
    backend = tokenizers.Tokenizer.from_file("out/tokenizer.json")
    backend.encode_special_tokens = True
    session = onnxruntime.InferenceSession("out/model.onnx")

    def theirs(*given):
        row = backend.encode(*given)
        values = {
            "input_ids": row.ids, "attention_mask": row.attention_mask,
            "token_type_ids": row.type_ids,
        }  # fmt: skip
        return session.run(None, {name: [values[name]] for name in facts["inputs"]})[0][0]

    alone = torch.tensor(np.array([theirs(text) for text in texts]))
    of_pairs = torch.tensor(np.array([theirs(*pair) for pair in pairs]))

    torch.testing.assert_close(alone, our_logits(adapted, texts), atol=1e-4, rtol=1e-4)
    ours = our_logits(adapted, *zip(*pairs, strict=True))
    torch.testing.assert_close(of_pairs, ours, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_a_graph_that_is_refused_leaves_nothing(transfer, finetuned, tmp_path, monkeypatch):
    onnxruntime = pytest.importorskip("onnxruntime")
    run = onnxruntime.InferenceSession.run
    monkeypatch.setattr(
        onnxruntime.InferenceSession, "run", lambda self, *given: [run(self, *given)[0] + 0.25]
    )

    refused = transfer("export", f"run={finetuned}", "to=graph", "format=onnx")

    refused.refusal("the graph's outputs differ from the model's by up to 0.25")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_text_with_a_gap_has_the_same_tokens_after_an_export(transfer, tmp_path, family):
    publish(tmp_path / "first", family, "MaskedLM")
    lib = reference()
    old = lib.AutoTokenizer.from_pretrained("first")
    if family == "roberta":  # as that of the published model has it
        old.add_special_tokens({"mask_token": lib.AddedToken("<mask>", lstrip=True)})
    old.save_pretrained("first")
    old = lib.AutoTokenizer.from_pretrained("first")

    transfer("export", "run=first", "to=second")

    new = lib.AutoTokenizer.from_pretrained("second")
    mask = old.mask_token
    for text in (f"the {mask} is old", f"{mask}, and {mask}."):
        assert new(text)["input_ids"] == old(text)["input_ids"], text
    assert new("a b", "c d")["input_ids"] == old("a b", "c d")["input_ids"]


def test_an_export_leaves_nothing_where_it_is_refused(transfer, tmp_path, pretrained):
    refused = transfer("export", f"run={pretrained}", "to=new/folder/out", "family=gpt2")
    refused.refusal("run: ", "family=null")
    assert not list(tmp_path.iterdir())

    ended = transfer("export", f"run={pretrained}", "to=new/folder/out", "head=false").ok()

    assert "GPT2Model" in ended.out
    assert [path.name for path in tmp_path.rglob("*") if path.name.startswith(".")] == []
    out = tmp_path / "new" / "folder" / "out"
    modes = {path.name: path.stat().st_mode & 0o777 for path in out.iterdir()}
    assert modes["model.safetensors"] == modes["config.json"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_export_that_is_ended_leaves_nothing(number, shell, finetuned, tmp_path):
    pytest.importorskip("onnxruntime")
    command = shell("export", f"run={finetuned}", "to=out", "format=onnx")
    while command.poll() is None and not list(tmp_path.glob(".out.*")):
        time.sleep(0.05)

    command.send_signal(number)

    _, err = command.communicate(timeout=60)
    # Python dies of an interrupt that came while it ran the text of an `exec`, as imports do;
    # a shell says 130 of both.
    codes = (130, -signal.SIGINT) if number == signal.SIGINT else (75,)
    assert command.returncode in codes, err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["clm", "mlm"])
def test_an_own_language_model_is_a_graph_as_its_plan_says(objective, transfer, corpus):
    words = ("data=text", f"data.train={corpus}", "data.length=32", *TINY, *LOOP, "loop.steps=4")
    transfer("pretrain", *words, f"objective={objective}", "run.dir=run")

    transfer("export", "run=run", "to=out").refusal("format=onnx")
    transfer("export", "run=run", "to=out", "format=onnx").ok()

    assert "exports: format=onnx" in Path("run/plan.txt").read_text()
    assert Path("out/model.onnx").exists()


# --- GGUF ----------------------------------------------------------------------------------------


gguf = pytest.importorskip("gguf", reason="the extra `gguf` is not installed")

MODELS = {
    "gpt2": ("model.output_bias=false",),
    "qwen3": ("model=modern", "model.query_key_norm=true", "model.key_value_heads=1"),
    "llama": ("model=modern", "model.query_key_norm=false", "model.key_value_heads=1"),
}
"""Own models, by the family that each is."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return a run of each family on the embedded sample."""
    folder = tmp_path_factory.mktemp("causal")
    for name, words in MODELS.items():
        size = [word for word in TINY if "=modern" not in " ".join(words) or word[:7] != "model=t"]
        finished(
            "pretrain", "data=sample_text", "data.length=32", *size, *LOOP, "loop.steps=2", *words,
            "tokenizer=bpe", "objective=clm", f"run.dir={folder / name}",
        )  # fmt: skip
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("family", MODELS)
def test_a_file_holds_the_model_and_its_tokenizer(family, models, transfer):
    ended = transfer("export", f"run={models / family}", "to=out", "format=gguf").ok()

    assert "llama.cpp" in ended.out
    assert [file.name for file in Path("out").iterdir()] == ["model.gguf"]
    reader, start = gguf.GGUFReader("out/model.gguf"), open_pretrained(str(models / family))
    there, ours = {tensor.name: tensor.data for tensor in reader.tensors}, start.tensors()
    values = {key: reader.fields[key].contents() for key in reader.fields}
    shape = start.description.shape
    assert values["general.architecture"] == family
    assert values[f"{family}.embedding_length"] == shape.width
    assert values[f"{family}.attention.head_count_kv"] == shape.kv_heads
    assert values["tokenizer.ggml.pre"] == "gpt-2"
    assert values["tokenizer.ggml.tokens"] == start.tokenizer.pieces(range(start.tokenizer.size))
    np.testing.assert_array_equal(
        there["token_embd.weight"], ours["backbone.token_embedding.weight"]
    )
    packed = ours["backbone.blocks.0.attention.packed.weight"]
    if family == "gpt2":
        np.testing.assert_array_equal(there["blk.0.attn_qkv.weight"], packed)
        return
    query = packed[: shape.heads * shape.head_size]
    if family == "llama":  # pairs that turn together are neighbours there
        halves = query.view(shape.heads, 2, -1, shape.width)
        query = torch.stack([halves[:, 0], halves[:, 1]], 2).flatten(0, 2)
    np.testing.assert_array_equal(there["blk.0.attn_q.weight"], query)


@pytest.mark.parametrize(
    ("family", "part"),
    [("bert", "causal"), ("gpt_neox", "GPT-NeoX"), ("llama", "activation=gelu in a Llama")],
)
def test_what_llama_cpp_would_not_read_is_refused(family, part, transfer, tmp_path):
    kind = "MaskedLM" if family == "bert" else "CausalLM"
    publish(tmp_path / "model", family, kind, hidden_act="gelu")

    transfer("export", "run=model", "to=out", "format=gguf").refusal("format", part)

    assert not Path("out").exists()
