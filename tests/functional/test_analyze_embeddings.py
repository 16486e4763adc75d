"""`transfer analyze analysis=embeddings`: what TensorBoard reads, and neighbours."""

from pathlib import Path

import numpy as np
import pytest

from transfer_cli.assembly.init_from import open_pretrained

pytestmark = pytest.mark.functional

HERE = ("analysis=embeddings", "device=cpu")


@pytest.fixture
def found(transfer, read_json):
    """Return how to look at embeddings; gives what was written."""

    def call(run, *words):
        ended = transfer("analyze", run, *HERE, "output=out", *words)
        assert ended.code == 0, ended.err
        return read_json(Path("out/analyses/embeddings.json"))

    return call


def projected():
    """Return the embeddings as TensorBoard's projector reads them, and what is said of each."""
    plugin = pytest.importorskip("tensorboard.plugins.projector.projector_plugin")
    from google.protobuf import text_format
    from tensorboard.plugins.projector import ProjectorConfig

    folder = Path("out/analyses/embeddings-projector")
    text = (folder / "projector_config.pbtxt").read_text()
    (embedding,) = text_format.Parse(text, ProjectorConfig()).embeddings
    vectors = plugin._read_tensor_tsv_file(str(folder / embedding.tensor_path))
    head, *rows = (folder / embedding.metadata_path).read_text().splitlines()
    assert len(rows) == len(vectors)
    return vectors, [dict(zip(head.split("\t"), row.split("\t"), strict=True)) for row in rows]


def test_the_projector_finds_the_embeddings_of_frequent_tokens(found, pretrained):
    content = found(pretrained, "analysis.embeddings.words=[water,waters]")

    vectors, rows = projected()
    table = open_pretrained(str(pretrained)).tensors()["backbone.token_embedding.weight"]
    numbers = [int(row["number"]) for row in rows]
    assert np.allclose(vectors, table[numbers].numpy(), rtol=1e-4)
    tokenizer = open_pretrained(str(pretrained)).tokenizer
    assert [row["token"] for row in rows] == tokenizer.pieces(numbers)
    assert content["neighbours"].keys() == {"water", "waters"}
    cosines = [cosine for _, cosine in content["neighbours"]["water"]]
    assert cosines == sorted(cosines, reverse=True)
    assert len(content["pca"]["places"]) == len(rows)


def test_texts_stand_with_their_labels(found, finetuned):
    content = found(finetuned, "analysis.embeddings.of=texts", "analysis.embeddings.most=20")

    vectors, rows = projected()
    assert vectors.shape == (20, 32)
    assert [row["label"] for row in rows] == content["pca"]["labels"]
    assert 0 <= content["values"]["nearest of the same label"] <= 1
