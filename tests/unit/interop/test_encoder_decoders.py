"""T5, mT5, BART and mBART: their states and logits are the reference's, both directions."""

import json

import pytest
import tokenizers
import torch

from tests.published import HARD_TEXT, TEXT, byte_pairs, reference, unigram_backend
from transfer_cli.assembly.finished_run import open_trained
from transfer_cli.assembly.init_from import open_pretrained
from transfer_cli.commands.export.export import _merged_tensors
from transfer_cli.config.schema import ExportConfig
from transfer_cli.data.tokenizer_file import load_tokenizer, save_tokenizer
from transfer_cli.engine.precision import Precision
from transfer_cli.errors import CheckpointError, DataError
from transfer_cli.interop import sentence_pieces
from transfer_cli.interop.saving import write_folder
from transfer_cli.model.attention import SourceText
from transfer_cli.objectives.language_model import language_model_head

SPECIAL = ["<pad>", "</s>", "<unk>"]
CPU = Precision("fp32", torch.device("cpu"))
T5 = {"d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 3,
      "num_heads": 4, "decoder_start_token_id": 0}  # fmt: skip
GATED = {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
BART = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
        "max_position_embeddings": 48}  # fmt: skip
MODELS = {
    "t5": ("T5", T5), "t5-1.1": ("T5", GATED), "mt5": ("MT5", GATED), "bart": ("Bart", BART),
    "bart-scaled": ("Bart", {**BART, "scale_embedding": True}), "mbart": ("MBart", BART),
}  # fmt: skip


def unigrams(folder):
    """Write T5's kind of tokenizer; return its size."""
    backend = unigram_backend(SPECIAL)
    backend.add_special_tokens([f"<extra_id_{number}>" for number in reversed(range(9))])
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    backend.save(str(folder / "tokenizer.json"))
    options = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>",
               "pad_token": "<pad>", "unk_token": "<unk>"}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    return backend.get_vocab_size()


def as_sentence_pieces(folder):
    """Put the tokenizer into a file of SentencePiece, as T5 1.1 has it; return it as it was."""
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.normalizer = None
    file = sentence_pieces.model_class()()
    for number, (piece, score) in enumerate(json.loads(backend.to_str())["model"]["vocab"]):
        file.pieces.add(piece=piece, score=score, type=(3, 3, 2)[number] if number < 3 else 1)
    file.trainer_spec.model_type, file.trainer_spec.unk_id = sentence_pieces.UNIGRAM, 2
    (folder / "spiece.model").write_bytes(file.SerializeToString())
    options = {"tokenizer_class": "T5Tokenizer", "extra_ids": 9}
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    (folder / "tokenizer.json").unlink()
    return backend


def publish(folder, name):
    """Write a small model of random weights with its tokenizer; return the model."""
    lib, (stem, options) = reference(), MODELS[name]
    folder.mkdir()
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    is_t5 = "T5" in stem
    size = unigrams(folder) if is_t5 else byte_pairs(folder, names, "BartTokenizer")
    torch.manual_seed(0)
    config = getattr(lib, f"{stem}Config")(vocab_size=size, **options)
    model = getattr(lib, f"{stem}ForConditionalGeneration")(config).eval()
    if options.get("tie_word_embeddings") is False:
        model.lm_head.weight = torch.nn.Parameter(model.shared.weight.flip(0) / 8)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
        if not is_t5:
            model.final_logits_bias.normal_()
    model.save_pretrained(folder)
    return model


def batch(size):
    """Return sources and targets of different lengths, with their masks."""
    draw = torch.Generator().manual_seed(1)
    read, written = (torch.randint(5, size, (3, width), generator=draw) for width in (11, 7))
    masks = [torch.arange(tokens.shape[1]) < torch.tensor(lengths)[:, None]
             for tokens, lengths in ((read, [11, 4, 9]), (written, [7, 6, 2]))]  # fmt: skip
    return (read, masks[0]), (written, masks[1])


@pytest.fixture(params=MODELS)
def published(request, tmp_path):
    return publish(tmp_path / "theirs", request.param), tmp_path


def test_states_and_logits_are_the_references(published):
    theirs, folder = published
    trained = open_trained(str(folder / "theirs"), CPU)
    (read, seen), (written, mask) = batch(theirs.config.vocab_size)

    with torch.no_grad():
        states = trained.model.backbone(written, mask, source=SourceText(read, seen))
        table = trained.model.backbone.token_embedding.weight
        logits = language_model_head(trained.model)(states[-1][mask], table)
        expected = theirs(
            input_ids=read, attention_mask=seen.long(), decoder_input_ids=written,
            decoder_attention_mask=mask.long(), output_hidden_states=True,
        )  # fmt: skip

    assert len(states) == len(expected.decoder_hidden_states) == 4
    for ours, other in zip(states, expected.decoder_hidden_states, strict=True):
        torch.testing.assert_close(ours[mask], other[mask], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits, expected.logits[mask], rtol=1e-5, atol=1e-5)


def test_a_file_of_sentence_pieces_is_read(tmp_path):
    publish(tmp_path / "t5", "t5")
    expected = as_sentence_pieces(tmp_path / "t5")

    ours = open_pretrained(str(tmp_path / "t5")).tokenizer
    save_tokenizer(ours, tmp_path / "saved.json")

    assert load_tokenizer(tmp_path / "saved.json").hash == ours.hash
    assert ours.size == expected.get_vocab_size()
    for text in TEXT:
        assert ours.encode(text) == expected.encode(text, add_special_tokens=False).ids
    assert ours.token("<extra_id_8>") == ours.size - 9
    options = tmp_path / "t5" / "tokenizer_config.json"
    for changed in ({"tokenizer_class": "LlamaTokenizer"}, {"extra_ids": -1}):
        options.write_text(json.dumps(changed))
        with pytest.raises(DataError):
            open_pretrained(str(tmp_path / "t5"))
    options.unlink()
    (tmp_path / "t5" / "spiece.model").write_bytes(b"\xff" * 9)
    with pytest.raises(DataError, match="SentencePiece"):
        open_pretrained(str(tmp_path / "t5"))


def test_tokens_are_the_references(published):
    _, folder = published
    theirs = reference().AutoTokenizer.from_pretrained(folder / "theirs")
    ours = open_pretrained(str(folder / "theirs")).tokenizer

    for text in (*TEXT, *HARD_TEXT):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)


def test_an_export_is_the_same_to_the_last_bit(published):
    theirs, folder = published
    start = open_pretrained(str(folder / "theirs"))
    (folder / "ours").mkdir()
    config = ExportConfig(run=str(folder / "theirs"), to=str(folder / "ours"))
    family = start.published.family.model_type

    written = write_folder(_merged_tensors(config, start), folder / "ours", family)

    lib = reference()
    again = lib.AutoModelForSeq2SeqLM.from_pretrained(folder / "ours").eval()
    assert written.target.architecture == type(theirs).__name__ == type(again).__name__
    weights = again.state_dict()
    for name, tensor in theirs.state_dict().items():
        # No token uses the first two of BART's positions.
        unread = 2 if name.endswith("embed_positions.weight") else 0
        assert torch.equal(weights[name][unread:], tensor[unread:])
    (read, seen), (targets, _) = batch(theirs.config.vocab_size)
    with torch.no_grad():
        one, other = (
            model(input_ids=read, attention_mask=seen.long(), decoder_input_ids=targets).logits
            for model in (theirs, again)
        )
    assert torch.equal(one, other)
    asked = lib.AutoTokenizer.from_pretrained(folder / "ours")(TEXT[0]).input_ids
    first = [] if start.tokenizer.cls == start.tokenizer.sep else [start.tokenizer.cls]
    assert asked == [*first, *start.tokenizer.encode(TEXT[0]), start.tokenizer.sep]


@pytest.mark.parametrize(
    ("name", "change", "key"),
    [
        ("t5", {"relative_attention_num_buckets": 8}, "relative_attention_num_buckets"),
        ("t5", {"feed_forward_proj": "gated-swiglu"}, "feed_forward_proj"),
        ("t5", {"num_decoder_layers": 2}, "num_decoder_layers"),
        ("t5", {"num_layers": 3}, "encoder.block.2"),
        ("t5", {"d_kv": 5}, "SelfAttention.q.weight is"),
        ("bart", {"decoder_ffn_dim": 32}, "decoder_ffn_dim"),
        ("bart", {"normalize_before": True}, "normalize_before"),
    ],
)
def test_a_member_that_does_not_fit_is_refused(tmp_path, name, change, key):
    publish(tmp_path / "theirs", name)
    path = tmp_path / "theirs" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))

    with pytest.raises(CheckpointError, match=key):
        open_trained(str(tmp_path / "theirs"), CPU)


def test_another_start_of_targets_is_said(tmp_path, caplog):
    publish(tmp_path / "theirs", "bart")
    path = tmp_path / "theirs" / "config.json"
    open_pretrained(str(path.parent))
    assert not caplog.records
    path.write_text(json.dumps(json.loads(path.read_text()) | {"decoder_start_token_id": 0}))

    open_pretrained(str(path.parent))

    assert "decoder_start_token_id" in caplog.text
