"""`transfer embed`: vectors of texts, in three formats, and the nearest of them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import transfer_cli
from tests import published
from transfer_cli.commands import embed
from transfer_cli.errors import CheckpointError
from transfer_cli.interop.sentence_folder import SentenceModules, sentence_modules

TEXTS = ["Where is Miryar ?", "Who wrote it ?", "", "where is miryar ? " * 90, "Is 漢字 here ?"]
MEAN = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
KINDS = ("Transformer", "Pooling", "Normalize")


def modules(folder, pooling=None, kinds=KINDS, **options):
    """Write what a sentence-transformers folder has beside the model."""
    written = {
        "modules.json": [{"type": f"sentence_transformers.models.{kind}"} for kind in kinds],
        "sentence_bert_config.json": options,
        "1_Pooling/config.json": MEAN if pooling is None else pooling,
    }
    (folder / "1_Pooling").mkdir(parents=True, exist_ok=True)
    for name, content in written.items():
        (folder / name).write_text(json.dumps(content))


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """Return the folder of a small BERT that makes sentence vectors, of 24 tokens at most."""
    folder = tmp_path_factory.mktemp("bert")
    published.publish(folder, "bert")
    modules(folder, max_seq_length=24)
    return folder


@pytest.fixture
def table(tmp_path):
    rows = [json.dumps({"id": n, "text": text}) for n, text in enumerate(TEXTS)]
    (tmp_path / "texts.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return tmp_path / "texts.jsonl"


def reference(folder):
    """Return the vectors as sentence-transformers makes them, one by one."""
    library = published.reference()
    tokenizer = library.AutoTokenizer.from_pretrained(folder)
    model = library.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        tokens = [
            tokenizer(text, truncation=True, max_length=24, return_tensors="pt") for text in TEXTS
        ]
        means = [model(**encoding).last_hidden_state.mean(1) for encoding in tokens]
    return F.normalize(torch.cat(means), dim=1).numpy()


def test_vectors_are_those_of_the_reference_in_every_format(bert, table, transfer, tmp_path):
    pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for ending in ("npy", "parquet", "jsonl"):
        ended = transfer("embed", bert, table, f"output=v.{ending}", "device=cpu", "batch=2").ok()
        assert "Cut 1 of 5 examples to 24 tokens; `max_seq_length`" in ended.err

    array = np.load("v.npy")

    np.testing.assert_allclose(array, reference(bert), rtol=0, atol=1e-5)
    rows = parquet.read_table("v.parquet").to_pylist()
    lines = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text().splitlines()]
    for written in (rows, lines):
        assert [row["text"] for row in written] == TEXTS
        assert np.array_equal(np.array([row["vector"] for row in written], np.float32), array)
    loaded = transfer_cli.load(bert, device="cpu").embed(TEXTS)
    np.testing.assert_allclose(loaded.numpy(), array, rtol=0, atol=1e-6)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_causal_texts_have_the_tokens_and_the_prompt_of_the_folder(tmp_path, family, transfer):
    published.publish(tmp_path, family, **({"vocab_size": 300} if family == "llama" else {}))
    if family == "llama":  # whose tokenizer puts a token before a text and none behind
        published.sentence_pieces(tmp_path)
    modules(tmp_path, {"pooling_mode_lasttoken": True}, KINDS[:2], do_lower_case=True)
    prompts = {"prompts": {"query": "A query: "}, "default_prompt_name": "query"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    pair, kinds = ("Where is it?", "who wrote"), (f"Auto{kind}" for kind in ("Tokenizer", "Model"))
    read, model = (getattr(published.reference(), kind).from_pretrained(tmp_path) for kind in kinds)
    rows = [read(f"a query: {text.lower()}", return_tensors="pt") for text in pair]
    with torch.no_grad():
        expected = torch.stack([model(**row).last_hidden_state[0, -1] for row in rows])

    loaded = transfer_cli.load(tmp_path, device="cpu")

    torch.testing.assert_close(loaded.embed(pair), expected, atol=1e-5, rtol=0)
    cosine = float(F.cosine_similarity(*expected, dim=0))
    assert loaded.predict([pair])[0]["cosine"] == pytest.approx(cosine, 1e-4)
    transfer("export", f"run={tmp_path}", "to=again").ok()
    again = transfer_cli.load("again", device="cpu").embed(pair)
    torch.testing.assert_close(again, expected, atol=1e-5, rtol=0)


def test_the_nearest_pairs_are_those_of_all(monkeypatch):
    monkeypatch.setattr(embed, "_PORTION_ROWS", 3)
    units = F.normalize(torch.randn(11, 4, generator=torch.Generator().manual_seed(1)), dim=1)
    every = sorted(
        ((float(units[a] @ units[b]), a, b) for a in range(11) for b in range(a + 1, 11)),
        reverse=True,
    )

    for count in (1, 7, 100):
        nearest = embed.nearest_pairs(units.numpy(), count)
        assert [pair[1:] for pair in nearest] == [pair[1:] for pair in every[:count]]
        assert [pair[0] for pair in nearest] == pytest.approx([pair[0] for pair in every[:count]])


def test_the_nearest_are_shown_below_a_flag(bert, table, transfer):
    shown = transfer("embed", bert, table, "output=v.npy", "--nearest", 1, "device=cpu").ok().out

    (_, first, second) = shown.splitlines()
    assert {first.split()[1], second.split()[0]} < {"1", "2", "3", "4", "5"}


def test_a_pipe_gives_lines(bert, transfer, type_in):
    type_in("Where ?\nWho ?\n")

    rows = transfer("embed", bert, "-", "pooling=cls_first", "device=cpu").ok().out.splitlines()

    assert [json.loads(row)["text"] for row in rows] == ["Where ?", "Who ?"]
    assert len(json.loads(rows[0])["vector"]) == 16


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["output=v.npz"], "output"),
        (["output=none/v.npy"], "output"),
        (["output=texts.jsonl"], "output"),
        (["nearest=2"], "nearest"),
        (["nearest=-1", "output=v.npy"], "nearest"),
        (["pooling=men"], "pooling"),
        (["pair=id"], "pair"),
        (["batch=0"], "batch"),
        (["text=nothing", "output=v.npy"], "nothing"),
    ],
)
def test_what_cannot_be_is_one_line_and_nothing_written(bert, table, transfer, words, key):
    before = sorted(table.parent.iterdir())

    done = transfer("embed", bert, table, *words)

    assert done.code == 2
    assert key in done.err.splitlines()[-1]
    assert sorted(table.parent.iterdir()) == before


def test_a_row_that_cannot_be_read_is_refused_or_left_out(bert, table, transfer):
    with table.open("a") as file:
        file.write('{"id": 9, "text": 7}\n')

    refused = transfer("embed", bert, table, "output=v.npy", "device=cpu")
    skipped = transfer("embed", bert, table, "output=v.npy", "device=cpu", "errors=skip").ok()

    assert (refused.code, "line 6" in refused.err) == (2, True)
    assert "1 of 6 rows left out" in skipped.err
    assert np.load("v.npy").shape == (5, 16)


@pytest.mark.parametrize(
    ("options", "pooling", "normalize"),
    [
        ({}, "mean", True),
        ({"pooling": {"pooling_mode_cls_token": True}}, "cls_first", True),
        ({"pooling": {"pooling_mode": "lasttoken"}}, "cls_last", True),
        ({"kinds": KINDS[:2]}, "mean", False),
    ],
)
def test_what_a_folder_says_is_read(tmp_path, options, pooling, normalize):
    modules(tmp_path, **options, max_seq_length=99, do_lower_case=True)

    assert sentence_modules(tmp_path) == SentenceModules(pooling, normalize, 99, lowercase=True)


@pytest.mark.parametrize(
    "options",
    [
        {"kinds": (*KINDS, "Dense")},
        {"pooling": {"pooling_mode": "weightedmean"}},
        {"pooling": {**MEAN, "pooling_mode_max_tokens": True}},
        {"pooling": {}},
        {"pooling": []},
        {"kinds": [{}]},
    ],
)
def test_what_is_not_computed_is_refused(tmp_path, options):
    modules(tmp_path, **options)

    with pytest.raises(CheckpointError, match=r"^run: .*json"):
        sentence_modules(tmp_path)


@pytest.mark.parametrize("name", ["modules.json", "1_Pooling/config.json"])
def test_modules_that_may_not_be_read_are_refused(tmp_path, monkeypatch, name):
    modules(tmp_path)
    plainly = Path.open

    def refuse(path, *mode):
        if path == tmp_path / name:
            raise PermissionError(13, "Permission denied", str(path))
        return plainly(path, *mode)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(CheckpointError, match=rf"^run: .*{name}: .*Permission denied"):
        sentence_modules(tmp_path)


@pytest.mark.parametrize("content", ["{", "7", "[7]", "[{}]", "\xff", "[" * 9999])
def test_modules_that_are_none_are_refused(tmp_path, content):
    modules(tmp_path)
    (tmp_path / "modules.json").write_text(content, encoding="latin1")

    with pytest.raises(CheckpointError, match=r"^run: .*modules\.json"):
        sentence_modules(tmp_path)
