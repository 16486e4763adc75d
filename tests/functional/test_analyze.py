"""`transfer analyze`: what each analysis writes beside a run, prints, and shows on a page.

What is refused is in `tests/inputs/analyses.yaml`.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from tests import attending
from tests.functional.conftest import finished
from transfer_cli.analysis.attention_maps import AttentionMaps
from transfer_cli.assembly.init_from import open_pretrained
from transfer_cli.reports.page import analyses_page

pytestmark = pytest.mark.functional

SHOWN = {
    "importance": (
        ["analysis.importance.most=8", "analysis.importance.random_orders=1"],
        "Importance of heads and blocks", "error_rate, in random order",
        {"heads", "gradient", "left_out", "pruning", "measure", "higher_is_better"},
    ),
    "neurons": (
        ["analysis.neurons.contexts=3"],
        "Where these units are highest", "Units that follow a property",
        {"blocks", "properties", "units"},
    ),
    "probes": (
        ["analysis.probes.mdl=true"],
        "shuffled labels", "macro-F1", {"probes", "baselines", "mix", "units", "labels"},
    ),
    "embeddings": (
        [], "Embeddings of tokens", "nearest tokens, by cosine", {"neighbours", "pca"},
    ),
    "similarity": (
        ["analysis.similarity.most=50"],
        'class="cells shades"', "mean cosine",
        {"run", "other", "over", "count", "estimate", "cka", "cosine", "moved"},
    ),
    "attributions": (
        ["analysis.attributions.most=2", "analysis.attributions.faithfulness=2"],
        'class="word for"', "comprehensiveness", {"texts", "faithfulness", "removal", "baseline"},
    ),
    "attention": (
        ["analysis.attention.texts=2"],
        "Attention is no explanation", "of block 0", {"maps_file", "heads", "texts"},
    ),
    "agreement": (
        ["analysis.agreement.pairs=3"],
        "Right by group", "agreement/two others", {"groups", "wrong"},
    ),
}  # fmt: skip
"""Words, what the page shows, what is printed, and the keys beside those that all have."""


@pytest.fixture
def analyze(transfer, read_json):
    """Return how to ask one analysis; gives what was written, and what was printed."""

    def call(run, name, *words):
        words = (f"analysis={name}", "device=cpu", "output=out", *words)
        printed = transfer("analyze", run, *words).ok().out
        return read_json(Path(f"out/analyses/{name}.json")) | {"printed": printed}

    return call


@pytest.mark.parametrize("name", SHOWN)
def test_what_is_found_is_written_printed_and_shown(analyze, pretrained, finetuned, name):
    words, on_page, printed, keys = SHOWN[name]
    run = pretrained if name == "agreement" else finetuned
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}

    content = analyze(run, name, *words, "--html", "page.html")

    assert {"title", "summary", "values", "table"} | keys <= content.keys()
    assert content["summary"] in content["printed"]
    assert printed in content["printed"]
    page = Path("page.html").read_text()
    assert on_page in page
    assert f"<h2>{content['title']}</h2>" in page
    assert files == {path: path.read_bytes() for path in files}


def test_markup_in_a_text_is_shown_as_text(transfer, finetuned):
    Path("t.txt").write_text('Where is <b>the</b> <script>alert("it")</script> ?\nHow many ?\n\n')
    words = ("analysis=[attributions,neurons]", "device=cpu", "output=out", "input=t.txt")

    transfer("analyze", finetuned, *words, "--html", "page.html").ok()

    page = Path("page.html").read_text()
    assert "&lt;" in page
    assert "<b>" not in page
    assert "alert(" not in page.replace("&#34;", '"')


# --- importance, attributions, neurons -----------------------------------------------------------


@pytest.mark.parametrize("run", ["finetuned", "pretrained"])
def test_words_of_a_file_are_explained(analyze, run, request):
    Path("t.txt").write_text("Where is it ?\nHow many ?\n\n")
    words = ("input=t.txt", "analysis.attributions.faithfulness=2")

    content = analyze(request.getfixturevalue(run), "attributions", *words)

    first, _ = content["texts"]
    assert "".join(first["words"]) == "Whereisit?"
    assert first["label"] is None
    assert len(first["scores"]) == 3
    assert all(len(scores) == len(first["words"]) for scores in first["scores"].values())
    assert [row["method"] for row in content["faithfulness"]][-1] == "random"
    assert all(word in content["printed"] for word in ("residue", "change", "steps"))


def test_a_correlation_is_none_without_heads(analyze, transfer, masked, loop):
    words = ("finetune", "data=sample_numbers", "objective=regression", *loop, "run.dir=run")
    transfer(*words, f"init_from={masked}", "loop.steps=2").ok()

    words = ("analysis.importance.random_orders=1", "analysis.importance.most=8")
    content = analyze("run", "importance", *words)

    assert content["pruning"][-1]["measure"] is None


def test_texts_beyond_the_limit_are_not_read_and_that_is_said_once(
    analyze, finetuned, teacher, monkeypatch
):
    monkeypatch.setattr("transfer_cli.commands.analyze.MOST_TEXTS", 5)
    rows = [f'{{"text": "Where is {word} ?"}}' for word in ("it", "he", "she", "Rome", "who")]
    Path("t.jsonl").write_text("\n".join([*rows, "no row"]))

    content = analyze(finetuned, "similarity", "input=t.jsonl", f"other={teacher}")

    assert content["printed"].count("the first 5 texts of t.jsonl") == 1


def test_units_are_described_by_contexts_and_properties(analyze, finetuned):
    content = analyze(finetuned, "neurons", "analysis.neurons.contexts=3")

    lines = Path("out/analyses/neurons-units.jsonl").read_text().splitlines()
    every = [json.loads(line) for line in lines]
    assert len(every) == content["values"]["units"] == 64
    assert {"position", "label city"} <= content["properties"].keys()
    best = content["properties"]["label city"][0]
    strengths = [abs(row["correlations"]["label city"]) for row in every]
    assert abs(best["correlation"]) == max(strengths)
    assert strengths.index(max(strengths)) == best["unit"]
    for unit in every:
        values = [context["value"] for context in unit["contexts"]]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
    shown = {(row["block"], row["unit"]) for row in content["units"]}
    assert {(row["block"], row["unit"]) for row in content["properties"]["position"]} <= shown


# --- agreement -----------------------------------------------------------------------------------


def test_agreement_is_what_score_says_of_the_same_pairs(transfer, analyze, pretrained, read_json):
    lines = [
        {"sentence_good": f"Where is the {n} ?", "sentence_bad": f"Where the {n} ?", "UID": group}
        for n, group in enumerate("aab")
    ]
    Path("pairs.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    data = ("data=minimal_pairs", "data.files=pairs.jsonl")
    transfer("score", pretrained, *data, "device=cpu", "output=scored").ok()

    content = analyze(pretrained, "agreement", *data, "--html", "page.html")

    measures = read_json(Path("scored/results.json"))["measures"]["test"]
    assert content["values"]["accuracy"] == pytest.approx(measures["accuracy"], abs=1e-6)
    assert content["values"]["macro accuracy"] == pytest.approx(
        measures["macro_accuracy"], abs=1e-6
    )
    assert {row["group"]: row["accuracy"] for row in content["groups"]} == {
        "a": measures["accuracy/a"], "b": measures["accuracy/b"],
    }  # fmt: skip


# --- edges ---------------------------------------------------------------------------------------


def test_spans_are_probed_with_the_layers_up_to_each(analyze, finetuned):
    words = ["--html", "page.html"]
    for number, part in enumerate(("train", "validation", "test")):
        lines = []
        for row in range(number, 40 + number):
            kind = ("city", "river", "animal")[row % 3]
            target = {"span1": [3, 4], "span2": [0, 2], "label": kind}
            lines.append({"text": f"The old {kind} : {kind} {row} .", "targets": [target]})
        Path(f"{part}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        words.append(f"analysis.edges.{part}={part}.jsonl")

    content = analyze(finetuned, "edges", *words)

    assert "layers up to" in content["printed"]
    assert [(probe["layers_up_to"], probe["control"]) for probe in content["probes"]] == [
        (0, None), (1, None), (0, "random"), (1, "random"),
    ]  # fmt: skip
    assert all(0 <= probe["micro_f1"] <= 1 for probe in content["probes"])
    assert content["targets"] == {"train": 40, "chosen_on": 40, "scored": 40}
    assert sum(content["mix"]["shares"]) == pytest.approx(1)
    assert "Edge probes" in Path("page.html").read_text()


# --- embeddings ----------------------------------------------------------------------------------


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


def test_the_projector_finds_the_embeddings_of_frequent_tokens(analyze, pretrained):
    content = analyze(pretrained, "embeddings", "analysis.embeddings.words=[water,waters]")

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


def test_texts_stand_with_their_labels(analyze, finetuned):
    words = ("analysis.embeddings.of=texts", "analysis.embeddings.most=20")

    content = analyze(finetuned, "embeddings", *words)

    vectors, rows = projected()
    assert vectors.shape == (20, 32)
    assert [row["label"] for row in rows] == content["pca"]["labels"]
    assert 0 <= content["values"]["nearest of the same label"] <= 1


# --- probes --------------------------------------------------------------------------------------


def accuracies(content, control):
    return {probe["layer"]: probe["accuracy"] for probe in content["probes"]
            if probe["control"] == control}  # fmt: skip


def test_each_layer_of_a_run_is_probed_beside_controls(analyze, finetuned):
    content = analyze(finetuned, "probes", "analysis.probes.mdl=true")

    assert list(accuracies(content, None)) == [0, 1, "mix"]
    assert list(accuracies(content, "random")) == list(accuracies(content, "shuffled")) == [0, 1]
    assert {"accuracy", "macro_f1", "strength", "codelength_bits"} <= content["probes"][0].keys()
    assert content["units"] == {"train": 144, "chosen_on": 96, "scored": 288}
    assert content["baselines"].keys() == {"majority", "words"}
    assert sum(content["mix"]["shares"]) == pytest.approx(1)
    assert content["mix"]["centre_of_gravity"] == pytest.approx(content["mix"]["shares"][1])
    assert [row[0] for row in content["table"]["rows"]] == ["0", "1", "mix"]


def test_words_are_probed_beside_labels_of_their_types(analyze, pretrained):
    content = analyze(pretrained, "probes", "data=sample_tags", "analysis.probes.layers=[-1]",
                    "analysis.probes.controls=[types]")  # fmt: skip

    (by_label,) = (probe for probe in content["probes"] if probe["control"] is None)
    (by_type,) = (probe for probe in content["probes"] if probe["control"] == "types")
    assert by_label["layer"] == by_type["layer"] == 1
    assert by_label["selectivity"] == pytest.approx(by_label["accuracy"] - by_type["accuracy"])
    assert content["baselines"].keys() == {"majority", "word"}


def test_a_hidden_layer_has_a_deviation_over_its_seeds(analyze, pretrained):
    content = analyze(pretrained, "probes", "data=sample_questions", "analysis.probes.probe=mlp",
                    "analysis.probes.controls=[]")  # fmt: skip

    assert list(accuracies(content, None)) == [0, 1]
    assert all(probe["deviation"] >= 0 for probe in content["probes"])


@pytest.mark.slow
@pytest.mark.parametrize("task", ["length", "position"])
def test_a_language_model_is_probed_for_what_texts_alone_tell(analyze, pretrained, task):
    lines = [" ".join(["the city"] * (1 + number % 9)) for number in range(120)]
    Path("texts.txt").write_text("\n".join(lines))

    content = analyze(pretrained, "probes", "input=texts.txt", f"analysis.probes.task={task}",
                    "analysis.probes.controls=[]", "analysis.probes.most=400")  # fmt: skip

    assert accuracies(content, None)[0] > 2 * content["baselines"]["majority"]


@pytest.fixture(scope="module")
def encyclopedia(tmp_path_factory):
    """Return the run that has read the made-up encyclopedia."""
    run = tmp_path_factory.mktemp("runs") / "read"
    finished("pretrain", "experiment=sample/pretrain", "device=cpu", f"run.dir={run}")
    return run


@pytest.mark.slow
def test_who_has_read_the_encyclopedia_knows_the_kind_of_each_name(analyze, encyclopedia):
    content = analyze(encyclopedia, "probes", "data=sample_questions")

    # At layer 0, too: names are single tokens, and the mean of a text holds theirs.
    assert all(accuracy >= 0.97 for accuracy in accuracies(content, None).values())
    assert all(accuracy <= 0.25 for accuracy in accuracies(content, "random").values())
    assert all(accuracy <= 0.25 for accuracy in accuracies(content, "shuffled").values())


@pytest.mark.slow
def test_the_last_token_knows_the_kind_above_the_embeddings_alone(analyze, encyclopedia):
    words = ("data=sample_questions", "analysis.probes.pooling=cls_last")

    content = analyze(encyclopedia, "probes", *words)

    by_layer = accuracies(content, None)
    assert by_layer[0] == pytest.approx(1 / 6)
    assert by_layer[1] >= 0.9
    assert by_layer[2] >= 0.97
    assert all(accuracy <= 0.25 for accuracy in accuracies(content, "random").values())


# --- similarity ----------------------------------------------------------------------------------


def test_checkpoints_are_compared_over_time(analyze, pretrained):
    first = sorted(pretrained.glob("checkpoints/step-*"))[0]
    words = ("analysis.similarity.over_time=true", "analysis.similarity.most=50")

    content = analyze(pretrained, "similarity", f"other={first}", *words, "split=validation")

    assert content["estimate"] == "debiased"
    steps = content["over_time"]
    assert [step["step"] for step in steps] == sorted(step["step"] for step in steps)
    assert steps[0]["cka"] == pytest.approx([1, 1], abs=1e-6)
    assert steps[0]["moved"]["all"] == 0 < steps[-1]["moved"]["all"]


def test_models_that_read_other_tokens_are_compared_by_texts(analyze, finetuned, teacher):
    content = analyze(finetuned, "similarity", f"other={teacher}")

    assert (content["over"], content["cosine"]) == ("texts", None)
    assert (len(content["cka"]), len(content["cka"][0])) == (2, 3)


# --- attention, whose page is looked at in a browser ---------------------------------------------

MATRIX = """() => {
  const canvas = document.querySelector(".of-head-map canvas");
  return canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.join();
}"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Return a page of texts, some of which hold markup."""
    finding = AttentionMaps(texts=3)(attending.subject(attending.model()))
    file = tmp_path_factory.mktemp("page") / "page.html"
    file.write_text(analyses_page("tiny", {"attention": finding}, {}), encoding="utf-8")
    return file


@pytest.fixture
def opened(chromium, page):
    """Return the page on a phone; it must not complain, nor ask for anything."""
    context = chromium.new_context(
        viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True
    )
    tab, complaints, requests = context.new_page(), [], []
    tab.on("console", lambda said: complaints.append(said.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("dialog", lambda dialog: complaints.append(dialog.message))
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto(page.as_uri())
    yield tab
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    context.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith("data:")] == [page.as_uri()]


@pytest.mark.slow
def test_choosing_a_head_changes_the_matrix(opened):
    first = opened.evaluate(MATRIX)
    opened.locator(".of-block").select_option("2")
    second = opened.evaluate(MATRIX)
    opened.get_by_role("button", name="block 1, head 0").tap()

    assert len({first, second, opened.evaluate(MATRIX)}) == 3
    assert opened.locator(".chosen").text_content() == "Block 1, head 0"
    assert opened.locator(".of-head").input_value() == "0"


@pytest.mark.slow
def test_a_token_is_chosen_by_touch_and_by_keyboard(opened):
    before, tokens = opened.evaluate(MATRIX), opened.locator(".pieces button")
    pieces, said = tokens.all_text_contents(), opened.locator(".said")
    tokens.nth(2).tap()
    assert said.text_content().startswith(f"{pieces[2]} looks at: ")
    assert opened.evaluate(MATRIX) != before

    opened.keyboard.press("ArrowRight")
    assert said.text_content().startswith(f"{pieces[3]} looks at: ")
    opened.locator(".of-rollout .rows span").nth(1).tap()
    assert opened.locator(".is-chosen").all_text_contents() == [pieces[1]] * 4
    opened.locator(".of-head-map").press("ArrowUp")
    opened.get_by_role("button", name="who looks at it").tap()
    assert said.text_content().startswith(f"{pieces[0]} gets of the attention of: ")
    assert opened.locator(".pieces [tabindex='0']").text_content() == pieces[0]


@pytest.mark.slow
def test_markup_in_a_text_is_shown_as_text_in_its_viewer(opened):
    opened.locator(".of-text").select_option("1")

    shown = "".join(opened.locator(".pieces button").all_text_contents())
    assert shown.startswith("<script>alert(1)</script>&&lt;</script>")
    assert opened.locator(".attention script").count() == 1
