"""Models of our own making, written for the reference implementation."""

import itertools
import json
import random
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.torch import save_file

from tests import tiny
from tests.published import HARD_TEXT, TEXT, publish, reference, sentence_pieces, wordpiece
from transfer_cli.data.encoded_task import encode_texts
from transfer_cli.data.labelled import Example
from transfer_cli.data.tokenizer_file import load_tokenizer, save_tokenizer
from transfer_cli.data.tokenizer_recipes import BytePairs, WordPiece
from transfer_cli.errors import CheckpointError, DataError
from transfer_cli.interop import saving
from transfer_cli.interop.families import families
from transfer_cli.interop.family import LANGUAGE_MODEL, SEQUENCE_CLASSIFICATION
from transfer_cli.interop.inputs import Inputs
from transfer_cli.interop.published_folder import open_folder
from transfer_cli.interop.saving import Ours, write_folder
from transfer_cli.interop.vocabulary import LAYOUTS, read_tokenizer, special_numbers
from transfer_cli.model.added import Added, added_parameters
from transfer_cli.model.backbone import Backbone, BackboneShape
from transfer_cli.model.heads import LanguageModelHead
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.objectives.classification import Classification
from transfer_cli.objectives.masked_lm import MaskedLM
from transfer_cli.objectives.sentence_pair import SentencePair

CAUSAL = BackboneShape(
    width=16, heads=4, depth=2, feedforward=24, positions=30, direction="causal", output_bias=False
)
MASKED = BackboneShape(
    width=16, heads=4, depth=2, feedforward=24, positions=30, residual="post",
    direction="bidirectional", output_transform=True, segments=2,
)  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    wordpiece(folder)
    return read_tokenizer(folder)


def model_of(shape, tokenizer):
    torch.manual_seed(1)
    backbone = Backbone(shape, tokenizer.size)
    model = TransferModel(backbone, {"lm": LanguageModelHead(shape, tokenizer.size)}).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def classifier_of(tokenizer):
    """Return the weights of a causal model with two classes."""
    tensors = dict(Backbone(CAUSAL, tokenizer.size).state_dict(prefix="backbone."))
    head = {"weight": torch.randn(2, 16), "bias": torch.randn(2)}
    return tensors | {f"heads.class.linear.{kind}": tensor for kind, tensor in head.items()}


def ours(shape, tensors, tokenizer, classifier):
    texts = "lines" if classifier is None else "labelled"
    head = LANGUAGE_MODEL if classifier is None else SEQUENCE_CLASSIFICATION
    return Ours(shape, tensors, tokenizer, head, classifier, texts, shape.positions, ("a", "b"))


def loaded(auto, folder, **options):
    with warnings.catch_warnings(action="ignore"):
        load = getattr(reference(), auto).from_pretrained
        model, told = load(folder, output_loading_info=True, **options)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    return model.eval()


def some_texts(tokenizer):
    """Return tokens of three texts, and where they are no padding."""
    tokens = torch.randint(5, tokenizer.size, (3, 12), generator=torch.manual_seed(0))
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[1, 7:] = False
    return tokens, mask


def predicts_the_same(folder, model, tokenizer, **options):
    causal = model.backbone.causal
    auto = "AutoModelForCausalLM" if causal else "AutoModelForMaskedLM"
    theirs = loaded(auto, folder, **options)
    tokens, mask = some_texts(tokenizer)
    with torch.no_grad():
        hidden = model.backbone(tokens, mask)[-1]
        logits = model.heads["lm"](hidden, model.backbone.token_embedding.weight)
        other = theirs(input_ids=tokens, attention_mask=mask.long()).logits
    assert logits.std() > 0.1
    torch.testing.assert_close(logits[mask], other[mask], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("shape", "family"),
    [
        (CAUSAL, "GPT2"),
        (replace(CAUSAL, activation="relu", epsilon=1e-3), "GPT2"),
        (replace(CAUSAL, activation="gelu_tanh", tie_output=False), "GPT2"),
        (MASKED, "Bert"),
        (replace(MASKED, segments=0), "Bert"),
        (replace(MASKED, tie_output=False, segments=1), "Bert"),
        (replace(MASKED, segments=0, epsilon=1e-12, pooler="relu"), "DistilBert"),
        (replace(MASKED, embedding_width=8), "Electra"),
        (replace(MASKED, pooler="gelu"), "Electra"),
        (replace(MASKED, activation="relu"), "Electra"),  # whose head keeps GELU
    ],
)
def test_language_models_predict_the_same(tmp_path, tokenizer, shape, family):
    model = model_of(shape, tokenizer)

    written = write_folder(ours(shape, model.state_dict(), tokenizer, None), tmp_path)

    assert written.target.architecture.startswith(family)
    assert written.left_out == ()
    predicts_the_same(tmp_path, model, tokenizer)


ALBERT = replace(
    MASKED, embedding_width=8, share="all", activation="gelu_tanh", output_activation="gelu_tanh"
)


@pytest.mark.parametrize(
    ("shape", "architecture", "answer"),
    [
        (MASKED, "BertForPreTraining", "seq_relationship_logits"),
        (replace(MASKED, tie_output=False), "BertForPreTraining", "seq_relationship_logits"),
        (ALBERT, "AlbertForPreTraining", "sop_logits"),
    ],
)
def test_both_heads_of_pretraining_predict_the_same(
    tmp_path, tokenizer, shape, architecture, answer
):
    model, objective = model_of(shape, tokenizer), SentencePair()
    objective.setup(TaskInfo(tokenizer, name="pair", main=MaskedLM(), pairs="nsp"))
    model = TransferModel(model.backbone, {**model.heads, **objective.modules(model.backbone)})
    tiny.lively(model.heads)

    written = write_folder(ours(shape, model.state_dict(), tokenizer, None), tmp_path)

    assert written.target.architecture == architecture
    assert written.left_out == ()
    theirs = loaded("AutoModelForPreTraining", tmp_path)
    assert type(theirs).__name__ == architecture
    tokens, mask = some_texts(tokenizer)
    segment = (torch.arange(12) > 5).long().expand(3, -1)
    batch = {"tokens": tokens, "mask": mask, "segment": segment}
    with torch.no_grad():
        encoded = Encoding(model, batch)
        logits = model.heads["lm"](encoded.top, model.backbone.token_embedding.weight)
        said = objective.outputs(model, batch, encoded)
        outputs = theirs(input_ids=tokens, attention_mask=mask.long(), token_type_ids=segment)
    assert said.std() > 0.1
    torch.testing.assert_close(logits[mask], outputs.prediction_logits[mask], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(said, outputs[answer], atol=1e-5, rtol=1e-5)
    again = open_folder(tmp_path, "run").tensors()
    assert again.keys() == model.state_dict().keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("shape", "misfit"),
    [
        (replace(CAUSAL, residual="tutorial"), "GPT-2: residual=tutorial, not pre"),
        (replace(CAUSAL, position_kind="sinusoidal", segments=2), "position_kind=sinusoidal"),
        (replace(CAUSAL, output_bias=True), "heads.lm.bias; model.output_bias=false"),
        (replace(MASKED, direction="causal"), "residual=post, not pre"),
        (replace(MASKED, residual="pre", embedding_norm=True), "BERT: residual=pre, not post"),
        (replace(MASKED, residual="pre", embedding_width=7, tie_output=False), "residual=pre"),
        (replace(MASKED, position_kind="sinusoidal", width=20, embedding_width=15), "sinusoidal"),
        (replace(CAUSAL, **tiny.MODERN), "attention=window"),
        (replace(CAUSAL, **tiny.MODERN, residual="sandwich"), "Gemma 3: norm=rms"),
        (replace(CAUSAL, residual="parallel", biases="qkv", norm="rms_unit"), "residual=parallel"),
        (replace(MASKED, **tiny.MODERN, residual="pre_first_plain"), "norm=rms"),
        (replace(MASKED, residual="reordered", norm="layer_no_bias"), "norm=layer_no_bias"),
    ],
)
def test_what_fits_no_family_is_refused_with_what_is_nearly_one(tmp_path, tokenizer, shape, misfit):
    model = model_of(shape, tokenizer)

    with pytest.raises(CheckpointError, match=misfit) as refused:
        write_folder(ours(shape, model.state_dict(), tokenizer, None), tmp_path)

    assert "format=onnx" in str(refused.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "misfit"),
    [
        ({"pooling": "mean"}, "objective.pooling=mean, not cls_last"),
        ({"pooling": "max"}, "objective.pooling=max, not cls_last"),
        ({"pooling": "concat", "hidden": (8, 4), "batch_norm": True}, "several layers"),
        ({"pooling": "cls_first", "pooler": True}, "a pooler"),
    ],
)
def test_a_classifier_that_gpt2_does_not_have(tmp_path, tokenizer, change, misfit):
    classifier = Classification(**{"pooling": "cls_last", **change})
    classifier.setup(TaskInfo(tokenizer, ("a", "b")))
    backbone = Backbone(CAUSAL, tokenizer.size)
    model = TransferModel(backbone, classifier.modules(backbone))

    with pytest.raises(CheckpointError, match=misfit):
        write_folder(ours(CAUSAL, model.state_dict(), tokenizer, classifier), tmp_path)


def test_a_part_of_ones_own_is_refused_by_name(tmp_path, tokenizer):
    class Factor(Added):
        kind = "a factor"

        def __init__(self):
            super().__init__()
            self.factor = torch.nn.Parameter(torch.ones(1))

    model = model_of(CAUSAL, tokenizer)
    model.readout = Factor()
    model.readout.edit = "scaled"
    given = ours(CAUSAL, model.state_dict(), tokenizer, None)

    with pytest.raises(CheckpointError, match=r"a factor \(adaptation.edits.scaled"):
        write_folder(replace(given, added=added_parameters(model)), tmp_path)

    assert not list(tmp_path.iterdir())


def test_a_bias_that_cannot_be_folded_in_is_refused(tmp_path, tokenizer):
    tensors = classifier_of(tokenizer)
    tensors |= {"heads.class.linear.weight": torch.ones(2, 16)}  # one row twice
    tensors |= {"heads.class.linear.bias": torch.tensor([1.0, 2.0])}

    with pytest.raises(CheckpointError, match="bias has no place in GPT-2"):
        write_folder(ours(CAUSAL, tensors, tokenizer, Classification("cls_last")), tmp_path)


def test_texts_get_the_tokens_that_the_model_was_trained_with(tmp_path, tokenizer):
    classifier = Classification("cls_last")
    write_folder(ours(CAUSAL, classifier_of(tokenizer), tokenizer, classifier), tmp_path)

    theirs = reference().AutoTokenizer.from_pretrained(tmp_path)

    one, two = TEXT[0], TEXT[1]
    a, b = tokenizer.encode(one), tokenizer.encode(two)
    assert theirs(one)["input_ids"] == [*a, tokenizer.cls]
    assert theirs(one, two)["input_ids"] == [*a, tokenizer.sep, *b, tokenizer.cls]
    assert theirs.pad_token_id == tokenizer.pad
    assert theirs.mask_token_id == tokenizer.mask


def test_weights_that_are_read_otherwise_are_not_called_written(tmp_path, tokenizer, monkeypatch):
    model = ours(CAUSAL, model_of(CAUSAL, tokenizer).state_dict(), tokenizer, None)
    monkeypatch.setattr(
        saving,
        "save_file",
        lambda given, *where, **more: save_file({n: t * 0 for n, t in given.items()}, *where),
    )

    with pytest.raises(CheckpointError, match="was not written as it is"):
        write_folder(model, tmp_path)


@pytest.mark.parametrize("head", [LANGUAGE_MODEL, None])
def test_a_bert_without_segments_is_read_again(tmp_path, tokenizer, head):
    shape = replace(MASKED, segments=0, pooler="tanh")
    tensors = model_of(shape, tokenizer).state_dict()

    write_folder(Ours(shape, tensors, tokenizer, head, None, "lines", 32), tmp_path)

    again = dict(open_folder(tmp_path, "init_from").tensors())
    assert not again.pop("backbone.segment_embedding.weight").any()
    kept = {name for name in tensors if head or name.startswith("backbone.")}
    assert again.keys() == kept
    assert all(torch.equal(again[name], tensors[name]) for name in kept)


def test_a_head_that_a_family_does_not_have_is_named(tmp_path, tokenizer):
    tensors = model_of(CAUSAL, tokenizer).state_dict()

    with pytest.raises(CheckpointError, match="a head for speech"):
        write_folder(Ours(CAUSAL, tensors, tokenizer, "speech", None, "lines", 32), tmp_path)


@pytest.mark.parametrize("family", families().values(), ids=lambda family: family.name)
def test_every_family_knows_its_blocks_by_their_names(family):
    direction = family.fixed["direction"]
    shape = replace(CAUSAL, depth=11, direction=direction, position_kind="rotary")
    short = replace(shape, depth=4)
    for rule in family.backbone_rules(shape):
        number = int(rule.ours.partition(".blocks.")[2].partition(".")[0] or -1)
        for name in rule.theirs:
            assert family.is_beyond(name, short) == (number >= 4)
            assert family.is_beyond(f"{family.dotted_prefix}{name}", short) == (number >= 4)
            assert not family.is_beyond(name, shape)
            assert not family.is_beyond(f"other.{name}", short)


# --- inputs --------------------------------------------------------------------------------------


LINES = ["The harbour of Lomta is old , and who built it ?"] * 9
TOKENIZERS = {
    "wordpiece": WordPiece(300).make(lambda: iter(LINES)),
    "bytes": BytePairs(300).make(lambda: iter(LINES)),
}


def save(made, path, tokenizer):
    """Write a tokenizer's file with what it says about inputs; return its content."""
    save_tokenizer(tokenizer, path)
    numbers = special_numbers(tokenizer)
    names = dict(zip(numbers, tokenizer.pieces(list(numbers.values())), strict=True))
    content = json.loads(path.read_text()) | made.settings(names, numbers)
    path.write_text(json.dumps(content))
    return content


def written(tmp_path, tokenizer, direction="bidirectional", length=9, **changes):
    path = tmp_path / "tokenizer.json"
    made = Inputs(length, *LAYOUTS["labelled", direction], segments=True)
    content = save(made, path, tokenizer)
    for key, value in changes.items():
        part, _, name = key.partition("__")
        content[part][name] = value
    path.write_text(json.dumps(content))
    return made, path


@pytest.mark.parametrize("length", [5, 6, 9, 64])
@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_what_is_written_is_what_a_run_reads(tmp_path, kind, direction, length):
    made, path = written(tmp_path, TOKENIZERS[kind], direction, length)

    made.check(path, TOKENIZERS[kind], direction)


@pytest.mark.parametrize("truncate", ["first", "second"])
@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_which_text_is_cut_is_written_too(tmp_path, direction, truncate):
    made = Inputs(9, *LAYOUTS["labelled", direction], segments=True, truncate=truncate)
    save(made, tmp_path / "tokenizer.json", TOKENIZERS["wordpiece"])

    made.check(tmp_path / "tokenizer.json", TOKENIZERS["wordpiece"], direction)

    content = json.loads((tmp_path / "tokenizer.json").read_text())
    assert content["truncation"]["strategy"] == f"Only{truncate.title()}"


@pytest.mark.parametrize(
    "changes",
    [
        {"truncation__max_length": 8},
        {"truncation__max_length": 10},
        {"truncation__direction": "Left"},
        {"post_processor__single": [{"Sequence": {"id": "A", "type_id": 0}}]},
        {"post_processor__pair": [{"Sequence": {"id": letter, "type_id": 0}} for letter in "AB"]},
    ],
)
def test_a_file_that_says_something_else_is_refused(tmp_path, changes):
    made, path = written(tmp_path, TOKENIZERS["wordpiece"], **changes)

    with pytest.raises(CheckpointError, match="makes another input than the run reads"):
        made.check(path, TOKENIZERS["wordpiece"], "bidirectional")


def test_segments_are_compared_too(tmp_path):
    _, path = written(tmp_path, TOKENIZERS["wordpiece"])
    without = Inputs(9, *LAYOUTS["labelled", "bidirectional"], segments=False)

    with pytest.raises(CheckpointError, match="makes another input"):
        without.check(path, TOKENIZERS["wordpiece"], "bidirectional")


def pairs(count):
    """Return pairs of texts of different lengths."""
    draw = random.Random(3)
    words = " ".join(TEXT).split()
    texts = [" ".join(draw.choices(words, k=draw.randint(1, 12))) for _ in range(2 * count)]
    return [Example(one, None, other) for one, other in zip(texts[::2], texts[1::2], strict=True)]


THEIRS = {"longest_first": "longest_first", "first": "only_first", "second": "only_second"}


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "distilbert", "electra", "roberta"])
def test_tokens_and_segments_are_those_of_the_reference(tmp_path, family):
    publish(tmp_path, family)
    theirs = reference().AutoTokenizer.from_pretrained(tmp_path)
    ours = open_folder(tmp_path, "init_from").tokenizer
    num_refused = 0

    for truncate, length in itertools.product(THEIRS, [9, 12, 17, 64]):
        for example in pairs(50):
            options = {"truncation": THEIRS[truncate], "max_length": length}
            asked = partial(
                encode_texts, [example], ours, length, "bidirectional", truncate=truncate
            )
            try:
                wanted = theirs(example.text, example.pair, **options)
            except Exception:
                num_refused += 1
                with pytest.raises(DataError, match=f"data.truncate={truncate} makes no room"):
                    asked()
                continue
            batch = asked().batch(np.array([0]))
            assert batch["tokens"][0].tolist() == wanted["input_ids"]
            if family in ("bert", "electra"):
                assert batch["segment"][0].tolist() == wanted["token_type_ids"]

    assert 20 < num_refused < 300


def test_a_causal_model_that_begins_texts_with_a_token_gets_it(tmp_path):
    sentence_pieces(tmp_path)
    tokenizer = read_tokenizer(tmp_path)
    name = tokenizer.pieces([tokenizer.begin])

    one, two = (
        encode_texts([Example("a", None, pair)], tokenizer, 16, "causal").batch(np.array([0]))
        for pair in (None, "b")
    )

    a, b, ends = tokenizer.encode("a"), tokenizer.encode("b"), [tokenizer.sep]
    assert name == ["<s>"]
    assert tokenizer.pieces(ends) == ["</s>"]
    wanted = [tokenizer.begin, *a, *ends]
    assert one["tokens"][0].tolist() == wanted
    assert two["tokens"][0].tolist() == [*wanted, *b, *ends]


def test_the_run_of_an_earlier_version_keeps_its_one_separator(tmp_path):
    publish(tmp_path, "roberta")
    reference().AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path)

    published = read_tokenizer(tmp_path)
    kept = load_tokenizer(tmp_path / "tokenizer.json")

    assert (published.separators, kept.separators) == (2, 1)
    save_tokenizer(published, tmp_path / "again.json")
    assert load_tokenizer(tmp_path / "again.json").separators == 2


FLAGS = {
    "<new>": {},
    "<Raw>": {"normalized": False},
    "<left>": {"lstrip": True},
    "<right>": {"rstrip": True, "normalized": False},
    "<both>": {"lstrip": True, "rstrip": True},
    "tok": {"single_word": True},
    "Ünï": {"single_word": True, "normalized": False},
    "<|im_start|>": {"special": True, "normalized": False},
}
PLAIN = [*TEXT, *HARD_TEXT, *(f"the {n} films, and {n} more of them" for n in range(7))]


def texts():
    assert len(PLAIN) == 30
    for text in PLAIN:
        yield text
        for name in FLAGS:
            at = len(text) // 2
            yield f"{text[:at]}{name}{text[at:]}"
            yield f"{name} {text}  {name} {name.upper()}{name}"


def write(folder, place):
    """Put the tokens where a folder may have them."""
    size = read_tokenizer(folder).size
    options = json.loads((folder / "tokenizer_config.json").read_text())
    if place == "added_tokens.json":
        added = {name: number for number, name in enumerate(FLAGS, size)}
        (folder / place).write_text(json.dumps(added))
        options["additional_special_tokens"] = ["<|im_start|>", "<left>"]
        (folder / "tokenizer_config.json").write_text(json.dumps(options))
    elif place == "tokenizer_config.json":
        plain = dict.fromkeys(("lstrip", "rstrip", "single_word", "special"), False)
        options["added_tokens_decoder"] = {
            str(number): {"content": name, "normalized": True, **plain, **flags}
            for number, (name, flags) in enumerate(FLAGS.items(), size)
        }
        (folder / place).write_text(json.dumps(options))
    else:
        theirs = reference().AutoTokenizer.from_pretrained(folder)
        theirs.add_tokens([tokenizers.AddedToken(name, **flags) for name, flags in FLAGS.items()])
        theirs.save_pretrained(folder)


@pytest.mark.parametrize(
    ("family", "place"),
    [
        ("bert", "tokenizer_config.json"),
        ("bert", "added_tokens.json"),
        ("gpt2", "added_tokens.json"),
        *(
            pytest.param(family, place, marks=pytest.mark.slow)
            for family in ("distilbert", "gpt2", "roberta", "llama", "xlm-roberta", "pieces")
            for place in ("tokenizer.json", "tokenizer_config.json")
        ),
    ],
)
def test_added_tokens_in_thirty_texts_are_those_of_the_reference(tmp_path, family, place):
    if family == "pieces":
        sentence_pieces(tmp_path)
    else:
        publish(tmp_path, family)
    write(tmp_path, place)
    theirs = reference().AutoTokenizer.from_pretrained(tmp_path)

    ours = read_tokenizer(tmp_path)

    assert ours.size == len(theirs)
    for text in texts():
        # Special tokens in a text are text.
        expected = theirs(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert ours.encode(text) == expected, text
