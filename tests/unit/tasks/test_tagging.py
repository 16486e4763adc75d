"""Tags for words: schemes, scores, windows, decoding, files."""

import itertools
import json
import random
import re

import numpy as np
import pytest

from tests.published import publish, reference
from transfer_cli.batch import IGNORE
from transfer_cli.data.records import Record
from transfer_cli.data.tokenizer_recipes import BytePairs, WordPiece
from transfer_cli.errors import DataError
from transfer_cli.interop.vocabulary import read_tokenizer
from transfer_cli.tasks.base import build_task
from transfer_cli.tasks.tagging import schemes
from transfer_cli.tasks.tagging.files import TaggedFiles
from transfer_cli.tasks.tagging.schemes import allowed_transitions, viterbi
from transfer_cli.tasks.tagging.task import (
    TagExample,
    TaggingTask,
    measures,
    owned_words,
    word_windows,
)

PERSON = ("O", "B-PER", "I-PER")
TYPES = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")


# ---------------------------------------------------------------------------------- scores


@pytest.mark.parametrize(
    ("given", "said", "precision", "recall", "f1", "strict"),
    [
        (["B-PER I-PER O"], ["I-PER I-PER O"], 1, 1, 1, 0),
        (["B-PER I-PER O B-LOC"], ["B-PER I-LOC O B-LOC"], 1 / 3, 1 / 2, 0.4, 0.5),
        (["B-PER B-PER"], ["B-PER I-PER"], 0, 0, 0, 0),
        (
            ["B-PER I-PER O B-LOC O", "O B-ORG I-ORG I-ORG O B-PER"],
            ["B-PER I-PER O B-ORG O", "O B-ORG I-ORG O O I-PER"],
            0.5, 0.5, 0.5, 0.2857,
        ),
        (["O O"], ["O O"], 0, 0, 0, 0),
    ],
)  # fmt: skip
def test_entities_are_scored_as_conlleval_does(given, said, precision, recall, f1, strict):
    scores = measures([row.split() for row in given], [row.split() for row in said])

    assert scores["entity_precision"] == pytest.approx(precision)
    assert scores["entity_recall"] == pytest.approx(recall)
    assert scores["entity_f1"] == pytest.approx(f1)
    assert scores["entity_f1_strict"] == pytest.approx(strict, abs=5e-5)


def test_scores_of_types_and_words():
    scores = measures(
        [["B-PER", "I-PER", "O", "B-LOC", "O"], ["O", "B-ORG", "I-ORG", "I-ORG", "O", "B-PER"]],
        [["B-PER", "I-PER", "O", "B-ORG", "O"], ["O", "B-ORG", "I-ORG", "O", "O", "I-PER"]],
    )

    assert scores["accuracy"] == pytest.approx(8 / 11)
    by_type = {name: value for name, value in scores.items() if name.startswith("entity_f1/")}
    assert by_type == {"entity_f1/LOC": 0, "entity_f1/ORG": 0, "entity_f1/PER": 1}
    assert np.mean([*by_type.values()]) == pytest.approx(0.3333, abs=5e-5)
    of_tags = measures([["DET", "NOUN"]], [["DET", "VERB"]], entities=False)
    assert of_tags == {"accuracy": 0.5, "macro_f1": pytest.approx(1 / 3)}


def random_tags(draw, length):
    return [draw.choice((*TYPES, "O", "O")) for _ in range(length)]


@pytest.mark.slow
def test_scores_equal_those_of_seqeval():
    lib = pytest.importorskip("seqeval.metrics", reason="seqeval is in the extra test")
    scheme = pytest.importorskip("seqeval.scheme")
    draw = random.Random(0)
    for _ in range(1000):
        sizes = [draw.randint(1, 8) for _ in range(draw.randint(1, 3))]
        given, said = ([random_tags(draw, size) for size in sizes] for _ in range(2))
        scores = measures(given, said)
        options = {"zero_division": 0}
        strict = {**options, "mode": "strict", "scheme": scheme.IOB2}

        assert scores["accuracy"] == pytest.approx(lib.accuracy_score(given, said))
        for name, score in (
            ("precision", lib.precision_score), ("recall", lib.recall_score), ("f1", lib.f1_score)
        ):  # fmt: skip
            assert scores[f"entity_{name}"] == pytest.approx(score(given, said, **options))
        kinds = sorted(name for name in scores if name.startswith("entity_f1/"))
        by_type = lib.f1_score(given, said, average=None, **options) if kinds else []
        assert [scores[name] for name in kinds] == pytest.approx([*by_type])
        any_strict = any(schemes.entities(row, strict=True) for row in (*given, *said))
        expected = lib.f1_score(given, said, **strict) if any_strict else 0
        assert scores["entity_f1_strict"] == pytest.approx(expected)


# ---------------------------------------------------------------------------------- schemes


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [
        (["I-PER O I-LOC I-LOC"], "iob1"),
        (["I-PER B-PER O", "I-LOC"], "iob1"),
        (["B-PER I-PER O B-LOC"], "bio"),
        (["B-PER E-PER S-LOC O"], "bioes"),
        (["DET NOUN VERB"], "none"),
        (["O O"], "none"),
    ],
)
def test_a_scheme_is_recognised(tags, scheme):
    assert schemes.detect_scheme([row.split() for row in tags]) == (scheme, "")


def test_a_few_entities_without_a_beginning_are_told_of():
    rows = [["B-PER", "I-PER"], ["B-LOC"], ["O", "I-LOC"]]

    scheme, warning = schemes.detect_scheme(rows)

    assert scheme == "bio"
    assert warning.startswith("1 of 3 entities begin with I-")
    assert "no type, as B-NAME does" in schemes.detect_scheme([["O", "B", "I"]])[1]


@pytest.mark.parametrize(
    ("scheme", "tags", "bio"),
    [
        ("iob1", "I-PER I-PER O I-LOC I-PER", "B-PER I-PER O B-LOC B-PER"),
        ("iob1", "I-PER B-PER I-PER", "B-PER B-PER I-PER"),
        ("bioes", "B-PER I-PER E-PER S-LOC O", "B-PER I-PER I-PER B-LOC O"),
        ("bio", "O I-PER", "O I-PER"),
        ("none", "NOUN I-am", "NOUN I-am"),
    ],
)
def test_tags_are_converted_to_bio(scheme, tags, bio):
    assert schemes.to_bio(tags.split(), scheme) == bio.split()


def as_iob1(tags):
    """Return BIO tags as IOB1."""
    converted, before = [], "O"
    for tag in tags:
        needs_b = tag[0] == "B" and before[2:] == tag[2:]
        converted.append(tag if needs_b or tag == "O" else f"I{tag[1:]}")
        before = tag
    return converted


def test_iob1_to_bio_and_back_is_the_identity_on_valid_tags():
    draw = random.Random(1)
    allowed = allowed_transitions(TYPES)
    for _ in range(200):
        tags, last = [], -1
        for _ in range(draw.randint(1, 9)):
            last = draw.choice([*np.flatnonzero(allowed[last])])
            tags.append(TYPES[last])
        assert schemes.to_bio(as_iob1(tags), "iob1") == tags
        assert as_iob1(schemes.to_bio(as_iob1(tags), "iob1")) == as_iob1(tags)


def test_labels_are_sorted_and_each_type_can_begin():
    assert schemes.labels_of(["I-PER", "O", "B-LOC", "I-LOC"], "bio") == (
        "O", "B-LOC", "I-LOC", "B-PER", "I-PER"
    )  # fmt: skip
    assert schemes.labels_of(["VERB", "DET"], "none") == ("DET", "VERB")


# ---------------------------------------------------------------------------------- decoding


def test_decoding_equals_brute_force_and_is_never_invalid():
    draw = np.random.default_rng(0)
    allowed = allowed_transitions(TYPES)
    paths = [path for path in itertools.product(range(5), repeat=5)
             if allowed[[-1, *path[:-1]], path].all()]  # fmt: skip
    for _ in range(30):
        scores = np.log(draw.dirichlet(np.ones(5), size=5))
        expected = max(paths, key=lambda path: scores[range(5), path].sum())
        assert tuple(viterbi(scores, allowed)) == expected


def test_a_valid_argmax_is_the_answer():
    task = TaggingTask(PERSON)

    assert task.decode([[0.1, 0.5, 0.4], [0.1, 0.4, 0.5]]) == ["B-PER", "I-PER"]
    assert task.decode([[0.1, 0.4, 0.5], [0.1, 0.4, 0.5]]) == ["B-PER", "I-PER"]
    assert task.decode([[0.9, 0.0, 0.1], [0.3, 0.2, 0.5]]) == ["O", "O"]
    assert task.decode([]) == []
    spans, answer = [[0, 1], [2, 3]], {"text": "a b", "shares": [[0.9, 0, 0.1], [0.3, 0.2, 0.5]]}
    assert task.written({**answer, "spans": spans})["probabilities"] == [0.9, 0.3]
    assert task.said({**answer, "spans": spans}) == ("(none)", 0.3)


# ---------------------------------------------------------------------------------- windows


def test_every_word_belongs_to_one_window_and_stands_furthest_from_its_edges():
    draw = random.Random(2)
    for room in range(8, 65, 7):
        for stride in (None, 0, 1, 3, 100):
            sizes = [draw.randint(1, 5) for _ in range(draw.randint(1, 120))]
            windows = word_windows(sizes, room, stride)
            owned = owned_words(len(sizes), windows)

            assert [word for words in owned for word in words] == [*range(len(sizes))]
            assert all(sum(sizes[first:past]) <= room for first, past in windows)
            for (first, past), words in zip(windows, owned, strict=True):
                for word in words:
                    here = min(word - first, past - 1 - word)
                    there = [min(word - a, b - 1 - word) for a, b in windows if a <= word < b]
                    assert here == max(there)


@pytest.fixture(scope="module")
def tokenizer():
    return WordPiece(size=70).make(lambda: iter(["Where do the rivers go ?", "How many ?"]))


@pytest.fixture(scope="module")
def byte_pairs():
    return BytePairs(size=280).make(lambda: iter(["many rivers", "rivers many"]))


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
@pytest.mark.parametrize("length", [6, 9, 30])
def test_every_word_has_one_target_wherever_it_is_cut(tokenizer, direction, length):
    words = re.findall(r"\S+", "Where do the rivers go ? How many rivers do go there")
    tags = [at % 3 for at in range(len(words))]
    task = TaggingTask(PERSON)
    data = task.encode([TagExample.of_words(words, tags)], tokenizer, length, direction)
    target = data.batch(np.arange(len(data)))["target"]

    assert sum(map(len, data.read_at)) == len(words)
    assert target[target != IGNORE].tolist() == tags
    read = [target[row, place].item() for row, at in enumerate(data.read_at) for place in at]
    assert read == tags


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_words_without_tags_are_numbered_once_and_get_their_values(tokenizer, direction):
    examples = [TagExample.of_words(words.split()) for words in ("How many rivers do go ?", "Many")]
    data = TaggingTask(PERSON).encode(examples, tokenizer, 6, direction)
    values = np.random.default_rng(0).random((7, 3), np.float32)
    data.add_answers("teacher_x", values)

    batch = data.batch(np.arange(len(data)))

    assert len(data) > 2
    assert "target" not in batch
    read = [(row, place) for row, at in enumerate(data.read_at) for place in at]
    assert [batch["word"][at].item() for at in read] == [*range(7)]
    assert (batch["word"] != IGNORE).sum() == 7
    assert [batch["teacher_x"][at].tolist() for at in read] == values.tolist()
    assert batch["teacher_x"].count_nonzero() == values.size
    some = data.batch(np.array([len(data) - 1]))
    assert some["teacher_x"][some["word"] != IGNORE].tolist() == values[6:].tolist()


def test_what_is_learnt_is_the_mean_of_probabilities_by_the_names_of_tags():
    one, other = TaggingTask(("O", "B-X", "I-X")), TaggingTask(("I-X", "O", "B-X"))
    shown = {"text": "a b", "spans": [[0, 1], [2, 3]]}
    answers = [
        (one, {**shown, "shares": [[0.6, 0.3, 0.1], [0.0, 1.0, 0.0]]}),
        (other, {**shown, "shares": [[0.2, 0.2, 0.6], [0.5, 0.5, 0.0]]}),
    ]

    shares = one.learnt(one.combine(answers))

    assert np.allclose(shares, [[0.4, 0.45, 0.15], [0.25, 0.5, 0.25]])


def test_words_decide_an_answer_and_not_the_text_alone():
    task = TaggingTask(PERSON)
    one, other = (TagExample.of_words(words) for words in (["New York"], ["New", "York"]))

    assert task.texts(one) == task.texts(other)
    assert task.inputs(one) != task.inputs(other)


def test_a_tag_is_read_at_the_first_piece_or_at_the_last(byte_pairs):
    example = TagExample.of_words(["many", "streams", "?"], (0, 1, 0))
    before, pieces = (len(byte_pairs.encode(f" {word}")) for word in ("many", "streams"))
    assert pieces > 1

    for direction, piece, place in (
        ("bidirectional", "auto", 0), ("causal", "auto", -1), ("causal", "first", 0)
    ):  # fmt: skip
        data = TaggingTask(PERSON, piece=piece).encode([example], byte_pairs, 30, direction)
        batch = data.batch(np.array([0]))
        at = (batch["target"][0] == 1).nonzero().item()
        assert at == data.read_at[0][1]
        begin = before + (direction == "bidirectional")
        assert at == range(begin, begin + pieces)[place]


def test_a_text_without_words_has_no_word_that_is_read(byte_pairs):
    examples = [TagExample.of_words(words) for words in (["many"], [])]

    data = TaggingTask(PERSON).encode(examples, byte_pairs, 30, "causal")

    assert [len(places) for places in data.read_at] == [1, 0]


def test_all_pieces_are_learnt_on_request(byte_pairs):
    example = TagExample.of_words(["streams", "many"], (1, 0))
    count, others = (len(byte_pairs.encode(f" {word}")) for word in example.words)

    data = TaggingTask(PERSON, label_all=True).encode([example], byte_pairs, 30, "bidirectional")
    batch = data.batch(np.array([0]))

    expected = [IGNORE, 1, *[2] * (count - 1), *[0] * others, IGNORE]
    assert batch["target"][0].tolist() == expected
    assert (batch["word"][0] != IGNORE).sum() == 2


def test_a_word_without_pieces_is_the_unknown_token(tokenizer):
    example = TagExample.of_words(["many", "\u200b", "?"], (0, 1, 2))
    data = TaggingTask(PERSON).encode([example], tokenizer, 30, "bidirectional")

    batch = data.batch(np.array([0]))
    assert batch["tokens"][0, data.read_at[0][1]] == tokenizer.unk
    assert len(data.read_at[0]) == 3


def test_own_byte_pairs_see_the_first_word_as_any_other(byte_pairs):
    examples = [TagExample.of_words(words) for words in (["rivers", "many"], ["many", "rivers"])]
    one, other = (
        TaggingTask(PERSON)
        .encode([example], byte_pairs, 30, "causal")
        .batch(np.array([0]))["tokens"][0]
        for example in examples
    )
    assert sorted(one.tolist()) == sorted(other.tolist())


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2"])
def test_pieces_are_those_of_words_in_transformers(tmp_path, family):
    lib = reference()
    publish(tmp_path / "it", family)
    theirs = lib.AutoTokenizer.from_pretrained(tmp_path / "it", add_prefix_space=True)
    ours = read_tokenizer(tmp_path / "it")
    words = re.findall(r"\S+", "The prince 's words , 3.14 isn't Ångström 漢字 😀 (Seine) .")

    data = TaggingTask(PERSON).encode([TagExample.of_words(words)], ours, 200, "bidirectional")
    tokens = data.batch(np.array([0]))["tokens"][0, 1:-1].tolist()
    given = theirs(words, is_split_into_words=True, add_special_tokens=False)

    assert tokens == given["input_ids"]
    numbers = given.word_ids()
    assert [at - 1 for at in data.read_at[0]] == [numbers.index(n) for n in range(len(words))]


# ---------------------------------------------------------------------------------- files


CONLL = "-DOCSTART- -X- O O\n\nEU N I-NP I-ORG\nrejects V I-VP O\n. . O O\n\nJean N I-NP I-PER\n"


def load(tmp_path, text, name="a.conll", **options):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return TaggedFiles(train=str(tmp_path / name), validation=str(tmp_path / name), **options).load(
        tmp_path, 0
    )


def test_columns_are_read_and_their_scheme_is_changed(tmp_path, caplog):
    caplog.set_level("INFO")
    data = load(tmp_path, CONLL)

    assert data.labels == ("O", "B-ORG", "B-PER")
    assert [(example.text, example.label) for example in data.splits["train"]] == [
        ("EU rejects .", (1, 0, 0)), ("Jean", (2,))
    ]  # fmt: skip
    assert "its tags are IOB1; 2 of 4 were changed to BIO" in caplog.text
    assert data.task["scheme"] == "iob1"
    renumbered = data.with_label_numbers(("B-PER", "O", "B-ORG", "x")).splits["train"]
    assert [example.label for example in renumbered] == [(2, 1, 1), (0,)]


def test_conllu_leaves_out_what_are_no_words(tmp_path):
    row = "{}\t{}\t_\t{}\tXX\tA=B\t0\troot\t_\t_"
    lines = ["# text = x", row.format("1-2", "del", "_"), row.format(1, "de", "ADP"),
             row.format(2, "el", "DET"), row.format("2.1", "e", "X"), ""]  # fmt: skip
    data = load(tmp_path, "\n".join(lines), "a.txt", tag="upos", scheme="none")

    assert data.labels == ("ADP", "DET")
    assert [example.words for example in data.splits["train"]] == [["de", "el"]]
    assert data.task["marks_entities"] is False


def test_json_lines_hold_tags_numbers_or_characters(tmp_path):
    rows = [
        {"tokens": ["In", "New York"], "tags": ["O", "B-LOC"]},
        {"tokens": ["Rome"], "tags": [1]},
        {"text": "See  New York.", "entities": [{"start": 5, "end": 13, "label": "LOC"}]},
    ]
    data = load(tmp_path, "\n".join(map(json.dumps, rows)), "a.jsonl", names=["O", "B-LOC"])

    one, other, third = data.splits["train"]
    assert (one.words, one.label) == (["In", "New York"], (0, 1))
    assert (other.words, other.label) == (["Rome"], (1,))
    assert (third.words, third.label) == (["See", "New", "York", "."], (0, 1, 2, 0))
    assert third.text == "See  New York."
    task = build_task(data.task, data.labels, "data")
    assert task.read(Record(1, {"text": third.text}), "text", None, "a").words == third.words


def entity(start, end, label="LOC"):
    return {"start": start, "end": end, "label": label}


CUT = (
    ([entity(3, 5)], "'Ro' (3 to 5) cuts the word 'Rome'"),
    ([entity(4, 7)], "'ome' (4 to 7) cuts the word 'Rome'"),
    ([entity(0, 5)], "'In Ro' (0 to 5) cuts the word 'Rome'"),
    ([entity(3, 9)], "is from 3 to 9, which is no part"),
    ([entity(0, 7), entity(3, 7)], "share the word 'Rome'"),
    ([{}], "line 1: an entity is {}, expected"),
)


@pytest.mark.parametrize(
    ("name", "text", "options", "said"),
    [
        *(("a.jsonl", {"text": "In Rome", "entities": spans}, {}, said) for spans, said in CUT),
        ("a.conll", "a O\nb x O\n", {}, "a.conll, line 2: 3 columns, and the lines before have 2"),
        ("a.conll", "a\nb\n", {}, "line 1: 1 columns, and a word and a tag are two"),
        ("a.csv", "Sentence #,Word,Tag\n1,a,O\n", {}, "lines before have 2. Tabs or blanks"),
        ("a.conll", "a O\n", {"tag": 5}, "line 1: it has 2 columns, and data.word=0 or data.tag=5"),
        ("a.conll", "\tO\n", {}, "line 1: the word is empty"),
        ("a.conll", "\n\n", {}, "a.conll has no sentences"),
        ("a.conll", "a O\nb O\n", {}, "all words have the tag 'O'"),
        ("a.conll", "a B-X\nb PER\n", {}, "line 2: the tag 'PER' is neither O nor one of B-TYPE"),
        ("a.conll", "a S-X\nb B-X\nc O\n", {}, "line 2: B-X is followed by O, as no entity"),
        ("a.conll", "a B-X\nb L-X\nc M-X\n", {}, "line 2: L-X is followed by M-X, as no"),
        ("a.conll", "a X\nb O\n", {"tag": "upos", "format": "conll"}, "data.tag=upos is a col"),
        ("a.conllu", "1\ta\n", {"tag": "upos"}, "line 1: 2 columns parted by tabs"),
        ("a.conllu", "x\t" * 9 + "x\n", {"tag": "upos"}, "line 1: the first column is 'x'"),
        ("a.conllu", "1\ta\n", {}, "is CoNLL-U; say data=conllu data.tag=upos"),
        ("a.jsonl", {"tokens": ["a"], "tags": []}, {}, "line 1: 1 tokens and 0 tags"),
        ("a.jsonl", {"tokens": [1], "tags": ["O"]}, {}, "line 1: 'tokens' are texts, and 1 is no"),
        ("a.jsonl", {"tokens": ["a"], "tags": [3]}, {}, "the tag 3 is a number; data.names="),
        ("a.jsonl", {"tokens": ["a"], "tags": [3]}, {"names": ["O"]}, "the tag 3 is none of the 1"),
        ("a.jsonl", {"words": []}, {}, "line 1: expected 'tokens' and 'tags', or 'text' and"),
    ],
)  # fmt: skip
def test_bad_input_is_told_with_file_and_line(tmp_path, name, text, options, said):
    with pytest.raises(DataError) as error:
        load(tmp_path, text if isinstance(text, str) else json.dumps(text), name, **options)

    assert said in str(error.value)


def test_comments_are_left_out_on_request(tmp_path):
    text = "# O\na O\nb B-X\n"

    for options, words in ({}, ["#", "a", "b"]), ({"comments": True}, ["a", "b"]):
        assert load(tmp_path, text, **options).splits["train"][0].words == words
