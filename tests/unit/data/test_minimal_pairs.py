import json
from collections import Counter

import pytest

from transfer_cli.data.minimal_pairs import AGREEMENT, Agreement, MinimalPair, MinimalPairs
from transfer_cli.errors import DataError


def test_files_of_every_form_are_read(tmp_path):
    rows = [
        {"sentence_good": "It is.", "sentence_bad": "It are.", "UID": "agreement"},
        {"prefix": "The cats near it", "right": "are", "wrong": "is"},
    ]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "b.tsv").write_text("They are.\tThey is.\n\n")

    assert MinimalPairs(files=str(tmp_path / "*")).load() == [
        MinimalPair("It is.", "It are.", "agreement"),
        MinimalPair("The cats near it are", "The cats near it is"),
        MinimalPair("They are.", "They is."),
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"sentence_good": "a"}\n', "a.jsonl, line 1: no column 'sentence_bad'"),
        ("a.jsonl", '{"sentence_good": 3, "sentence_bad": "a"}\n', "'sentence_good' is .*number"),
        ("a.jsonl", "\n", "a.jsonl has no pairs"),
        ("a.tsv", "a\tb\nonly one\n", "a.tsv, line 2 has 1 columns, expected two"),
        ("a.tsv", "a\t\n", "a.tsv, line 1 has 2 columns"),
    ],
)
def test_what_is_no_pair_is_named(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)

    with pytest.raises(DataError, match=message):
        MinimalPairs(files=str(tmp_path / name)).load()


def test_made_up_sentences_differ_in_the_number_of_their_verb():
    pairs = Agreement(pairs=60).load()

    assert Counter(pair.group for pair in pairs) == {f"agreement/{name}": 60 for name in AGREEMENT}
    assert len({pair.good for pair in pairs}) == len(pairs)
    forms = {frozenset(each) for each in (("is", "are"), ("was", "were"), ("has", "have"))}
    for pair in pairs:
        good, bad = pair.good.split(), pair.bad.split()
        changed = [(one, other) for one, other in zip(good, bad, strict=True) if one != other]
        assert len(changed) == 1
        assert frozenset(changed[0]) in forms
        assert (good[1][-1] == "s" or good[1] in ("women", "children")) == (
            changed[0][0] in ("are", "were", "have")
        )
