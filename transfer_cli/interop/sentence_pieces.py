"""The tokenizer in a file of SentencePiece, as T5 1.1 and mT5 are published with."""

from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from transfer_cli.data.tokenizer_file import MAX_FILE_BYTES
from transfer_cli.errors import DataError
from transfer_cli.safe_files import read_bytes

UNIGRAM = 1
"""The kind of model that is read here; BPE is 2."""

_NORMAL = 1
"""The type of a piece that is found in texts; others are control tokens and the unknown one."""

_END = "</s>"

_Field = descriptor_pb2.FieldDescriptorProto

_MESSAGES = {
    "Piece": {"piece": (1, _Field.TYPE_STRING), "score": (2, _Field.TYPE_FLOAT),
              "type": (3, _Field.TYPE_INT32)},
    "Trainer": {"model_type": (3, _Field.TYPE_INT32), "unk_id": (40, _Field.TYPE_INT32)},
    "Normalizer": {"precompiled_charsmap": (2, _Field.TYPE_BYTES)},
    "Model": {"pieces": (1, "Piece"), "trainer_spec": (2, "Trainer"),
              "normalizer_spec": (3, "Normalizer")},
}  # fmt: skip
"""What is read of `sentencepiece_model.proto`: numbers of fields, and their types."""


@cache
def model_class() -> type[Any]:
    """Return the class of what a file holds."""
    file = descriptor_pb2.FileDescriptorProto(name="sentence_pieces.proto", package="pieces")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            is_message = isinstance(kind, str)
            message.field.add(
                name=field, number=number, type=_Field.TYPE_MESSAGE if is_message else kind,
                type_name=f".pieces.{kind}" if is_message else None,
                label=_Field.LABEL_REPEATED if field == "pieces" else _Field.LABEL_OPTIONAL,
            )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    model: type[Any] = message_factory.GetMessageClass(pool.FindMessageTypeByName("pieces.Model"))
    return model


def read_unigrams(path: Path, sentinels: int) -> tokenizers.Tokenizer:
    """Return T5's tokenizer (Raffel et al. 2020): pieces of words, which end by `</s>`.

    Args:
        sentinels: So many tokens `<extra_id_0>` and so on stand behind the pieces, the last first.
    """
    try:
        model = model_class().FromString(read_bytes(path, MAX_FILE_BYTES))
    except DecodeError as error:
        raise DataError(f"{path} is no file of SentencePiece.") from error
    if not model.pieces or model.trainer_spec.model_type not in (0, UNIGRAM):
        raise DataError(f"{path} holds no unigrams; take a folder with a tokenizer.json.")
    extra = [f"<extra_id_{number}>" for number in reversed(range(sentinels))]
    scores = [(piece.piece, piece.score) for piece in model.pieces]
    scores += [(name, 0.0) for name in extra]
    unknown = model.trainer_spec.unk_id
    backend = tokenizers.Tokenizer(models.Unigram(scores, unk_id=unknown, byte_fallback=False))
    if charsmap := model.normalizer_spec.precompiled_charsmap:
        backend.normalizer = normalizers.Precompiled(charsmap)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    backend.decoder = decoders.Metaspace()
    control = [piece.piece for piece in model.pieces if piece.type not in (0, _NORMAL)]
    backend.add_special_tokens([*control, *extra])
    end = backend.token_to_id(_END)
    if end is None:
        raise DataError(f"{path} has no token {_END}.")
    backend.post_processor = processors.TemplateProcessing(
        single=f"$A {_END}", pair=f"$A {_END} $B {_END}", special_tokens=[(_END, end)]
    )
    # Scores lose their last bit in a text, once: what is written now is what is read later.
    return tokenizers.Tokenizer.from_str(backend.to_str())
