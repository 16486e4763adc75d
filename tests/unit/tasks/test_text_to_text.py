"""Texts made from others: rows, answers, hidden spans."""

from collections import Counter
from itertools import chain, permutations

import numpy as np
import pytest
import torch

from tests import tiny
from transfer_cli.batch import IGNORE
from transfer_cli.data.columns import choose_columns
from transfer_cli.data.tokenizer_recipes import WordPiece
from transfer_cli.data.wanted import Wanted
from transfer_cli.errors import ConfigError, DataError
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.seeds import ExampleNoise
from transfer_cli.tasks.samples import EmbeddedSample
from transfer_cli.tasks.scoring import rouge_l
from transfer_cli.tasks.text_to_text import measures
from transfer_cli.tasks.text_to_text.corruption import (
    NOISES,
    Marks,
    SpanCorruption,
    build_noise,
    random_partition,
)
from transfer_cli.tasks.text_to_text.task import (
    PrefixLM,
    TextPairsTable,
    TextToTextExample,
    TextToTextTask,
)
from transfer_cli.testing.objectives import check_objective

WORDS = "the old bridge is red blue over a river and new"
TOKENIZER = WordPiece(size=80).make(lambda: iter([WORDS] * 3))
PAIRS = [TextToTextExample("the old bridge", "red"), TextToTextExample("a river", "is blue")]


def encoded(direction="causal", examples=PAIRS, length=16, **options):
    data = TextToTextTask(**options).encode(examples, TOKENIZER, length, direction)
    return data.batch(np.arange(len(examples)))


def asked(direction="causal", beams=1, **options):
    """Return an objective, its model and a batch of both pairs."""
    objective = PrefixLM(beams=beams)
    task = TextToTextTask(target_length=4, **options)
    model = tiny.at_work(objective, task, TOKENIZER, direction=direction, positions=24)
    batch = encoded(direction, target_length=4, **options)
    return objective, model, objective.prepare(batch, ExampleNoise(0, "test"))


@pytest.mark.parametrize(
    ("direction", "source", "end"),
    [("causal", "the old bridge [SEP]", "[CLS]"),
     ("bidirectional", "[CLS] the old bridge [SEP]", "[SEP]")],
)  # fmt: skip
def test_the_target_and_its_end_are_learnt_after_the_source(direction, source, end):
    batch = encoded(direction, PAIRS[:1])

    begin = len(source.split())
    assert TOKENIZER.pieces(batch["tokens"][0].tolist()) == [*source.split(), "red", end]
    assert batch["prefix"].tolist() == [begin]
    assert batch["segment"][0].tolist() == [0] * begin + [1, 1]
    target = batch["next_tokens"][0]
    assert TOKENIZER.pieces(target[target != IGNORE].tolist()) == ["red", end]
    assert (target != IGNORE).nonzero().flatten().tolist() == [begin - 1, begin]


def test_the_token_before_texts_stands_before_a_source_but_in_old_runs(monkeypatch):
    monkeypatch.setattr(TOKENIZER, "begin", TOKENIZER.mask)

    assert EmbeddedSample("text_pairs").load(None, 0).task["begins"]
    assert encoded(begins=True)["tokens"][0, 0] == TOKENIZER.mask != encoded()["tokens"][0, 0]


def test_an_unanswered_source_is_cut_as_an_answered_one():
    text = " ".join(["bridge"] * 30)
    answered = encoded(examples=[TextToTextExample(text, "red " * 30)])
    alone = encoded(examples=[TextToTextExample(text)])

    assert answered["tokens"].shape == (1, 16)
    assert alone["prefix"].tolist() == answered["prefix"].tolist() == [8]
    assert torch.equal(alone["tokens"], answered["tokens"][:, :8])
    assert "next_tokens" not in alone


@pytest.mark.parametrize(
    ("options", "examples", "error", "said"),
    [
        ({"target_length": 15}, PAIRS, ConfigError, "14 at most may be a target's"),
        ({}, [PAIRS[0], TextToTextExample("new")], DataError, "Example 2 of 2 has no target"),
    ],
)
def test_what_cannot_be_laid_out_is_refused(options, examples, error, said):
    with pytest.raises(error, match=said):
        encoded(examples=examples, **options)


def test_without_a_prefix_it_is_a_causal_language_model_bit_for_bit():
    objective, model, batch = asked(prefix=False)
    plain = CausalLM()
    plain.setup(TaskInfo(TOKENIZER))

    losses = [
        variant.loss_sums(model, batch, Encoding(model, batch))["loss"]
        for variant in (objective, plain)
    ]

    assert "prefix" not in batch
    assert torch.equal(*losses)
    states = model.backbone(batch["tokens"], batch["mask"], batch["segment"])
    assert torch.equal(Encoding(model, batch).top, model.readout(states))


def test_without_a_prefix_a_bidirectional_backbone_reads_from_left_to_right():
    _, model, batch = asked("bidirectional", prefix=False)
    other = {**batch, "tokens": batch["tokens"].clone()}
    other["tokens"][:, 2] = TOKENIZER.token("and")

    differs = (Encoding(model, batch).top != Encoding(model, other).top).any(-1)

    assert not differs[:, :2].any()
    assert differs[:, 2].all()


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_a_later_token_of_a_target_changes_no_earlier_prediction(direction):
    _, model, batch = asked(direction)
    begin, other = int(batch["prefix"][1]), {**batch, "tokens": batch["tokens"].clone()}
    other["tokens"][1, begin] = TOKENIZER.token("and")

    differs = (Encoding(model, batch).top != Encoding(model, other).top).any(-1)

    assert not differs[0].any()
    assert not differs[1, :begin].any()
    assert differs[1, begin]


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_an_answer_does_not_depend_on_the_target_beside_it(direction, beams):
    objective, model, batch = asked(direction, beams)
    sources = [TextToTextExample(pair.source) for pair in PAIRS]
    alone = encoded(direction, sources, target_length=4)

    answers = [
        objective.predictions(model, inputs, Encoding(model, inputs))["answer"]
        for inputs in (batch, alone)
    ]

    assert answers[0].shape[0] == 2
    assert torch.equal(answers[0][:, :4], answers[1][:, :4])


@pytest.mark.parametrize(
    ("given", "said", "expected"),
    [
        ("the cat sat", "The cat, sat!", 1),
        ("police killed the gunman", "the gunman kill police", 0.5),
        ("a b c d", "a x c", 2 * 2 / 7),
        ("", "", 1),
        ("a", "", 0),
        ("my_var is set", "my var is set", 1),
        ("राम की", "रम क", 0),
    ],
)
def test_rouge_l_is_the_f1_of_the_longest_common_subsequence(given, said, expected):
    assert rouge_l(given, said) == pytest.approx(expected)


GIVEN = ["the cat sat on the mat", "police killed the gunman", "It is 7 o'clock , here ."]
SAID = ["the cat sat on a mat .", "the gunman killed police", "It is here ."]


def test_measures_are_those_of_the_libraries_and_rouge_l_is_that_of_rouge_score():
    sacrebleu = pytest.importorskip("sacrebleu")
    scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer(
        ["rouge1", "rouge2", "rougeL"]
    )

    scores = measures.text_measures(GIVEN, SAID)

    assert scores["bleu"] == sacrebleu.corpus_bleu(SAID, [GIVEN]).score
    assert scores["chrf"] == sacrebleu.corpus_chrf(SAID, [GIVEN]).score
    for ours, theirs in (("rouge_1", "rouge1"), ("rouge_2", "rouge2"), ("rouge_l", "rougeL")):
        expected = [scorer.score(*pair)[theirs].fmeasure for pair in zip(GIVEN, SAID, strict=True)]
        assert scores[ours] == pytest.approx(sum(expected) / len(expected), abs=1e-12)
    assert [metric.name for metric in measures.declared_metrics()] == [*scores]
    assert measures.signatures()["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp")


def test_words_of_other_alphabets_count_too():
    pytest.importorskip("rouge_score")

    assert measures.text_measures(["кошка спит"], ["Кошка не спит"])["rouge_1"] == pytest.approx(
        0.8
    )


def test_without_the_libraries_our_own_measures_are_left(monkeypatch):
    monkeypatch.setattr(measures, "find_spec", lambda name: None)

    assert [*measures.text_measures(GIVEN, SAID)] == ["exact_match", "rouge_l"]
    assert [metric.name for metric in measures.declared_metrics()] == ["exact_match", "rouge_l"]
    assert measures.signatures() == {}


@pytest.mark.parametrize(
    ("columns", "typed", "expected"),
    [
        (["id", "source", "target"], Wanted(written=True), ("source", "target")),
        (["article", "highlights"], Wanted(written=True), ("article", "highlights")),
        (["source", "said"], Wanted(label="said", written=True), ("source", "said")),
        (["de", "en"], Wanted("de", label="en", written=True), ("de", "en")),
    ],
)
def test_columns_are_found_by_usual_names(columns, typed, expected):
    rows = [{name: f"{name} {number}" for name in columns} for number in range(30)]

    chosen = choose_columns(columns, rows, typed, "a.csv")

    assert (chosen.text, chosen.label, chosen.pair) == (*expected, None)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["source,target", "red,", "a,b"], r"a.csv, line 2: 'target' is empty"),
        (["source,target", " ,red", "a,b"], r"a.csv, line 2: 'source' is empty"),
        (["de,en", "rot,red", "a,b"], r"data.header="),
        (["source,target", "red"], r"a.csv, line 2"),
    ],
)
def test_bad_rows_are_refused_with_file_and_line(tmp_path, lines, said):
    path = tmp_path / "a.csv"
    path.write_text("\n".join(lines) + "\n")

    with pytest.raises(DataError, match=said):
        TextPairsTable(train=str(path)).load(tmp_path, 0)


WITH_SENTINELS = WordPiece(size=80, sentinels=20).make(lambda: iter([WORDS] * 3))
CLS, SEP = WITH_SENTINELS.cls, WITH_SENTINELS.sep
SENTINELS = range(1000, 1100)


@pytest.mark.parametrize(
    ("rate", "mean", "length", "counts"),
    [
        (0.15, 3, 512, (77, 26)), (0.15, 3, 100, (15, 5)), (0.15, 3, 20, (3, 1)),
        (0.15, 3, 2, (1, 1)), (0.15, 3, 1, (0, 0)), (0.15, 3, 0, (0, 0)),
        (0.5, 1, 10, (5, 5)), (0.9, 1, 10, (9, 1)), (0.5, 3, 64, (32, 11)),
    ],
)  # fmt: skip
def test_how_much_is_hidden_depends_on_the_length_alone(rate, mean, length, counts):
    assert SpanCorruption(rate, mean).counts(length) == counts


def test_source_and_target_give_a_text_back_and_hide_the_share_that_is_asked():
    draws, how = np.random.default_rng(0), SpanCorruption()
    for _ in range(1000):
        text = draws.integers(0, 500, draws.integers(2, 300)).tolist()
        source, target = how.source_and_target(text, Marks(SENTINELS), draws.random((len(text), 2)))

        hidden: dict[int, list[int]] = {}
        for token in target:
            if token in SENTINELS:
                spans = hidden.setdefault(token, [])
            else:
                spans.append(token)
        back = [piece for token in source for piece in hidden.get(token, [token])]
        assert back == text
        assert [token for token in source if token in SENTINELS] == [*hidden][:-1]
        assert [*hidden] == [*SENTINELS[: len(hidden)]]
        assert hidden.pop([*hidden][-1]) == []
        assert all(hidden.values())
        assert source[0] == text[0]
        assert len(source) + len(target) == sum(how.sizes(len(text)))
        share = sum(map(len, hidden.values())) / len(text)
        assert abs(share - 0.15) <= max(1 / len(text), 0.5 if len(text) < 4 else 0)


def test_every_partition_is_equally_likely():
    draws = np.random.default_rng(0).random((3000, 5))

    counts = Counter(tuple(random_partition(5, 3, row)) for row in draws)

    assert len(counts) == 6  # 4 gaps, of which 2 are cut
    assert all(sum(parts) == 5 and min(parts) > 0 for parts in counts)
    assert 420 < min(counts.values()) < max(counts.values()) < 580


MASK, DOT = 3, 4


def noisy(kind, text, seed=0, **options):
    how = build_noise(kind, options.get("rate"), options.get("mean_length", 3.0))
    draws = np.random.default_rng(seed).random((len(text), 4))
    return how.source_and_target(text, Marks(mask=MASK, ends={DOT}), draws)


@pytest.mark.parametrize(("mean", "spans"), [(3.0, 9.8), (6.0, 5.2)])
def test_infilling_hides_a_share_in_spans_of_poisson_lengths_behind_one_mask_each(mean, spans):
    text, lengths = list(range(10, 110)), []
    for seed in range(400):
        source, target = noisy("infilling", text, seed, mean_length=mean)

        assert target == text
        seen = [token for token in source if token != MASK]
        assert len(seen) == 70
        assert seen == sorted(seen)
        # No two masks touch: what is between two is one span.
        around = [9, *source, 110]
        spots = [at for at, token in enumerate(around) if token == MASK]
        lengths.append([around[at + 1] - around[at - 1] - 1 for at in spots])
        assert sum(lengths[-1]) == 30

    assert len(lengths[0]) != len(lengths[1])
    assert np.mean([len(sizes) for sizes in lengths]) == pytest.approx(spans, rel=0.1)
    empty = np.mean([not size for sizes in lengths for size in sizes])
    assert empty == pytest.approx(np.exp(-mean), abs=0.015)


def test_permutation_moves_whole_sentences_alone():
    text = [10, 11, DOT, 20, DOT, 30, 31, 32, DOT, 40]
    sentences = [[10, 11, DOT], [20, DOT], [30, 31, 32, DOT], [40]]
    sources = set()
    for seed in range(400):
        source, target = noisy("permutation", text, seed)
        assert target == text
        sources.add(tuple(source))

    assert sources == {tuple(chain(*order)) for order in permutations(sentences)}


def test_infilling_and_permutation_go_together():
    text = [10, DOT, 20, 21, 22, DOT, 30, 31, DOT, 40] * 9
    source, target = noisy("infilling+permutation", text)

    assert target == text
    assert sum(token != MASK for token in source) == 63
    assert [token for token in source if token > DOT] != sorted(source)


def test_mass_hides_one_span_of_half_of_the_text_token_by_token():
    text, begins = list(range(10, 31)), set()
    for seed in range(300):
        source, target = noisy("mass", text, seed)
        first = target[0] - 10
        begins.add(first)
        assert target == text[first : first + 10]
        assert source == [*text[:first], *[MASK] * 10, *text[first + 10 :]]

    assert begins == set(range(12))


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("length", [0, 1, 2, 3, 40])
def test_source_and_target_are_no_longer_than_said_at_any_share(kind, length):
    text = list(range(10, 10 + length))
    for rate in [None] if kind == "permutation" else [None, 0.01, 0.5, 0.99]:
        how = build_noise(kind, rate, 1.0)
        for seed in range(20):
            draws = np.random.default_rng(seed).random((max(length, 1), 4))
            marks = Marks(range(1000, 1100), MASK, {DOT})
            source, target = how.source_and_target(text, marks, draws)

            assert len(source) <= how.sizes(length)[0]
            assert len(target) <= how.sizes(length)[1]
            assert bool(target) == (length > 1)


def test_sentences_end_behind_their_pieces_and_the_token_that_ends_lines():
    words = WordPiece(size=80).make(lambda: iter(["one two . three ! (four ?) e.g. no-one"] * 3))
    marks = build_noise("permutation", None, 3.0).marks(words)

    assert {words.decode([token]) for token in marks.ends} == {".", "!", "?", "[SEP]"}
    assert build_noise("mass", None, 3.0).marks(words).mask == words.mask


def at_work(direction="causal", positions=40, tokenizer=WITH_SENTINELS, **options):
    objective = PrefixLM(**(options or {"corrupt": 0.15}))
    objective.setup(TaskInfo(tokenizer))
    objective.modules(tiny.backbone(direction=direction, positions=positions))
    return objective


def texts(*lengths):
    words = WITH_SENTINELS.encode(WORDS)
    return tiny.rows_to_batch([(words * 9)[:length] for length in lengths])


@pytest.mark.parametrize(
    ("direction", "begin", "end"), [("causal", [], CLS), ("bidirectional", [CLS], SEP)]
)
def test_a_corrupted_text_is_laid_out_as_texts_to_texts_are(direction, begin, end):
    batch = at_work(direction).prepare(texts(20, 7), ExampleNoise(0, "test"))

    for row, length in enumerate((20, 7)):
        prefix, real = int(batch["prefix"][row]), batch["mask"][row]
        tokens, target = batch["tokens"][row][real].tolist(), batch["target"][row]
        assert tokens[: len(begin)] == begin
        assert (tokens[prefix - 1], tokens[-1]) == (SEP, end)
        assert len(tokens) == length + 3 + len(begin) + 2
        assert target[target != IGNORE].tolist() == tokens[prefix:]
        assert (target != IGNORE).nonzero()[0] == prefix - 1
        places = range(batch["segment"].shape[1])
        assert batch["segment"][row].tolist() == [prefix <= n < len(tokens) for n in places]


def test_of_a_longer_text_each_visit_takes_another_part_that_fits():
    objective, batch = at_work(positions=24), texts(60)

    parts = [objective.prepare(batch, ExampleNoise(0, "train", step)) for step in range(30)]

    assert {part["tokens"].shape[1] for part in parts} == {24}
    assert len({tuple(part["tokens"][0].tolist()) for part in parts}) > 5
    again = objective.prepare(batch, ExampleNoise(0, "train", 7))
    assert all(torch.equal(again[key], parts[7][key]) for key in again)


@pytest.mark.parametrize(
    ("direction", "options"),
    [
        ("causal", {"corrupt": 0.3, "corrupt_length": 2}),
        ("bidirectional", {"corrupt": 0.3, "corrupt_length": 2}),
        ("causal", {"noise": "infilling+permutation"}),
    ],
)
def test_corrupted_texts_keep_the_contract_of_objectives(direction, options):
    objective = PrefixLM(**options)
    objective.direction = direction

    check_objective(objective, TaskInfo(WITH_SENTINELS), texts(20, 7, 13, 2))


def test_a_text_of_one_token_has_nothing_to_hide():
    batch = at_work().prepare(texts(1, 4), ExampleNoise(0, "test"))

    assert (batch["target"] != IGNORE).any(1).tolist() == [False, True]


def test_the_token_of_classes_is_no_part_of_a_text():
    batch = tiny.rows_to_batch([[*WITH_SENTINELS.encode(WORDS), CLS]])

    prepared = at_work().prepare(batch, ExampleNoise(0, "test"))

    assert (prepared["tokens"] == CLS).sum() == 1


def test_too_few_sentinels_are_refused_with_what_to_type():
    few = WordPiece(size=80, sentinels=2).make(lambda: iter([WORDS] * 3))

    with pytest.raises(ConfigError, match=r"up to 2 spans .* 2 sentinels.*tokenizer.sentinels=3"):
        at_work(tokenizer=few)


@pytest.mark.parametrize("noise", ["infilling", "mass"])
def test_a_tokenizer_without_a_mask_is_refused_with_what_to_take(noise, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(TOKENIZER, "has_mask", False)
        at_work(tokenizer=TOKENIZER, noise="permutation")
        with pytest.raises(ConfigError, match=r"objective\.noise: .*mask token.*noise=spans"):
            at_work(tokenizer=TOKENIZER, noise=noise)
