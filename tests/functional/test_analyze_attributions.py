"""`transfer analyze analysis=attributions`."""

import re

import pytest

FEW = ("analysis.attributions.faithfulness=2", "device=cpu", "output=found")


def test_words_of_a_file_are_explained_and_markup_is_shown_as_text(
    transfer, finetuned, read_json, tmp_path
):
    (tmp_path / "t.txt").write_text('Where is <script>alert("it")</script> ?\nHow many ?\n\n')

    ended = transfer("analyze", f"run={finetuned}", "analysis=attributions", "input=t.txt", *FEW,
                     "html=page.html")  # fmt: skip

    assert ended.code == 0, ended.err
    found = read_json(tmp_path / "found" / "analyses" / "attributions.json")
    first, second = found["texts"]
    assert "".join(first["words"]) == 'Whereis<script>alert("it")</script>?'
    assert second["label"] is None
    assert all(len(scores) == len(first["words"]) for scores in first["scores"].values())
    assert len(first["scores"]) == 3
    assert re.search(
        r"explained +erasure +\S+ +integrated_gradients +residue +change +steps", ended.out
    )
    assert [row["method"] for row in found["faithfulness"]][-1] == "random"
    page = (tmp_path / "page.html").read_text()
    assert "alert(" not in page.replace("&#34;", '"')
    assert 'class="word for"' in page


def test_a_language_model_explains_the_token_that_it_goes_on_with(
    transfer, pretrained, read_json, tmp_path
):
    (tmp_path / "t.txt").write_text("Where is the\n")

    ended = transfer("analyze", f"run={pretrained}", "analysis=attributions", "input=t.txt", *FEW)

    assert ended.code == 0, ended.err
    (text,) = read_json(tmp_path / "found" / "analyses" / "attributions.json")["texts"]
    assert "".join(text["words"]) == "Whereisthe"


@pytest.mark.parametrize(
    ("run", "words", "said"),
    [
        (
            "finetuned",
            ("input=t.txt", "analysis.attributions.only_wrong=true"),
            "only_wrong: .*no r",
        ),
        ("finetuned", ("data=sample_tags",), "data: .* this is tagging; name data of its task"),
        ("finetuned", ("analysis.attributions.label=x",), "label: .*'x'"),
        ("finetuned", ("analysis.attributions.removal=x",), "analysis.attributions.removal: .*'x'"),
        ("pretrained", (), "data: .*running text.*input=FILE"),
    ],
)
def test_what_cannot_be_explained_is_refused(transfer, request, tmp_path, run, words, said):
    (tmp_path / "t.txt").write_text("Where is it ?\n")

    path = request.getfixturevalue(run)
    ended = transfer("analyze", f"run={path}", "analysis=attributions", *FEW, *words)

    assert ended.code == 2
    # Running text may have to be encoded before.
    *earlier, reason = ended.err.strip().splitlines()
    assert all(line.startswith(("Encoding", "Encoded")) for line in earlier), ended.err
    assert re.search(said, reason), ended.err
    assert not (tmp_path / "found").exists()
