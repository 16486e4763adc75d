"""`transfer analyze analysis=probes`."""

import pytest

from tests.functional.conftest import finished


@pytest.fixture
def probes(transfer, read_json, tmp_path):
    """Return how to probe a model, and what is found."""

    def call(run, *words):
        ended = transfer("analyze", f"run={run}", "analysis=probes", "device=cpu", "output=found",
                         *words)  # fmt: skip
        assert ended.code == 0, ended.err
        return read_json(tmp_path / "found" / "analyses" / "probes.json")

    return call


def accuracies(found, control):
    return {each["layer"]: each["accuracy"] for each in found["probes"]
            if each["control"] == control}  # fmt: skip


def test_each_layer_of_a_run_is_probed_beside_controls(probes, finetuned, tmp_path):
    found = probes(finetuned, "html=page.html", "analysis.probes.mdl=true")

    assert list(accuracies(found, None)) == [0, 1, "mix"]
    assert list(accuracies(found, "random")) == list(accuracies(found, "shuffled")) == [0, 1]
    assert {"accuracy", "macro_f1", "strength", "codelength_bits"} <= found["probes"][0].keys()
    assert found["units"] == {"train": 144, "chosen_on": 96, "scored": 288}
    assert found["baselines"].keys() == {"majority", "words"}
    assert sum(found["mix"]["shares"]) == pytest.approx(1)
    assert found["mix"]["centre_of_gravity"] == pytest.approx(found["mix"]["shares"][1])
    assert [row[0] for row in found["table"]["rows"]] == ["0", "1", "mix"]
    assert "<h2" in (page := (tmp_path / "page.html").read_text())
    assert "shuffled labels" in page


def test_words_are_probed_beside_labels_of_their_types(probes, pretrained):
    found = probes(pretrained, "data=sample_tags", "analysis.probes.layers=[-1]",
                   "analysis.probes.controls=[types]")  # fmt: skip

    (own,) = (each for each in found["probes"] if each["control"] is None)
    (by_type,) = (each for each in found["probes"] if each["control"] == "types")
    assert own["layer"] == by_type["layer"] == 1
    assert own["selectivity"] == pytest.approx(own["accuracy"] - by_type["accuracy"])
    assert found["baselines"].keys() == {"majority", "word"}


def test_a_hidden_layer_has_a_deviation_over_its_seeds(probes, pretrained):
    found = probes(pretrained, "data=sample_questions", "analysis.probes.probe=mlp",
                   "analysis.probes.controls=[]")  # fmt: skip

    assert list(accuracies(found, None)) == [0, 1]
    assert all(each["deviation"] >= 0 for each in found["probes"])


@pytest.mark.slow
@pytest.mark.parametrize("task", ["length", "position"])
def test_a_language_model_is_probed_for_what_texts_alone_tell(probes, pretrained, tmp_path, task):
    lines = [" ".join(["the city"] * (1 + number % 9)) for number in range(120)]
    (tmp_path / "texts.txt").write_text("\n".join(lines))

    found = probes(pretrained, "input=texts.txt", f"analysis.probes.task={task}",
                   "analysis.probes.controls=[]", "analysis.probes.most=400")  # fmt: skip

    assert accuracies(found, None)[0] > 2 * found["baselines"]["majority"]


@pytest.fixture(scope="module")
def encyclopedia(tmp_path_factory):
    """Return the run that has read the made-up encyclopedia."""
    run = tmp_path_factory.mktemp("runs") / "read"
    finished("pretrain", "experiment=sample/pretrain", "device=cpu", f"run.dir={run}")
    return run


@pytest.mark.slow
def test_who_has_read_the_encyclopedia_knows_the_kind_of_each_name(probes, encyclopedia):
    found = probes(encyclopedia, "data=sample_questions")

    # At layer 0, too: names are single tokens, and the mean of a text holds theirs.
    assert all(each >= 0.97 for each in accuracies(found, None).values())
    assert all(each <= 0.25 for each in accuracies(found, "random").values())
    assert all(each <= 0.25 for each in accuracies(found, "shuffled").values())


@pytest.mark.slow
def test_the_last_token_knows_the_kind_above_the_embeddings_alone(probes, encyclopedia):
    found = probes(encyclopedia, "data=sample_questions", "analysis.probes.pooling=cls_last")

    own = accuracies(found, None)
    assert own[0] == pytest.approx(1 / 6)
    assert own[1] >= 0.9
    assert own[2] >= 0.97
    assert all(each <= 0.25 for each in accuracies(found, "random").values())
