"""The tokenizer and the chat template of a run: those of its start, or new ones."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transfer_cli.assembly.init_from import Pretrained
from transfer_cli.config.build import build
from transfer_cli.data.chat_template import (
    CHATML,
    MAX_TEMPLATE_BYTES,
    ChatTemplate,
    chatml,
    with_end_token,
)
from transfer_cli.data.split import LineRule
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.data.tokenizer_recipes import (
    BytePairs,
    FromFile,
    Inherited,
    SizedByText,
    TokenizerRecipe,
    WordPiece,
    is_auto,
)
from transfer_cli.errors import CheckpointError, ConfigError, DataError, raised_as
from transfer_cli.interop.published_folder import TOKEN_TABLES
from transfer_cli.model.backbone import INITIAL_STD, BackboneShape
from transfer_cli.safe_files import read_text
from transfer_cli.seeds import derive

INHERITED = f"{Inherited.__module__}.{Inherited.__qualname__}"
"""What `tokenizer=inherited` is built of."""


def default_line_rule(tokenizer: Tokenizer, direction: str) -> LineRule:
    """Return what becomes of line breaks in the text of a new model.

    They are kept by a causal one whose tokenizer has them, and a token that ends texts, as those of
    published models do. The separator of a tokenizer that is made here ends lines.
    """
    keeps = direction == "causal" and tokenizer.ends_texts and tokenizer.keeps_lines
    return "keep" if keeps else "end"


def choose_tokenizer(
    node: Mapping[str, Any] | None, start: Pretrained | None, shape: BackboneShape | None = None
) -> Tokenizer | TokenizerRecipe:
    """Return the pretrained model's tokenizer, perhaps with further tokens.

    Without such a model, it is the recipe of a new one, for a model of this shape if there is one.
    """
    if start is None:
        return _build_recipe(node, shape)
    recipe = None if node is None else _build_recipe(node, shape)
    if isinstance(recipe, FromFile) and recipe.make(lambda: iter(())).hash != start.tokenizer.hash:
        raise CheckpointError(
            "init_from: that model was trained with another tokenizer than tokenizer.path; "
            "leave tokenizer= out to use the model's own"
        )
    if isinstance(recipe, Inherited):
        return recipe.grown(start.tokenizer)
    return start.tokenizer


def _build_recipe(node: Mapping[str, Any] | None, shape: BackboneShape | None) -> TokenizerRecipe:
    if node is None or not is_auto(node.get("size")):
        recipe: TokenizerRecipe = build(node, "tokenizer", TokenizerRecipe)
        return recipe
    rest = {key: value for key, value in node.items() if key != "size"}
    largest: WordPiece | BytePairs = build(rest, "tokenizer", WordPiece | BytePairs)
    if most := node["size"].partition(":")[2]:
        return SizedByText(largest, int(most))
    if shape is None:
        return SizedByText(largest, largest.size)
    # A table of so many tokens has as many weights as all the rest.
    return SizedByText(largest, shape.matrix_bytes(0) // (4 * shape.embedding_size))


def choose_chat_template(
    node: Mapping[str, Any] | None, start: Pretrained | None, tokenizer: Tokenizer
) -> ChatTemplate | None:
    """Return how conversations become texts: as the config says, else as the model does."""
    place = None if node is None else node.get("chat_template")
    template = None if start is None else start.chat_template
    if place == CHATML:
        template = chatml()
    elif place is not None:
        with raised_as(ConfigError, f"tokenizer.chat_template: {place}: ", OSError, ValueError):
            source = read_text(Path(place).expanduser(), MAX_TEMPLATE_BYTES)
        tokens = {} if template is None else template.tokens
        template = ChatTemplate(source, tokens, where=str(place))
    if template is None:
        return None
    with raised_as(ConfigError, "tokenizer.chat_template: ", DataError):
        return with_end_token(template, tokenizer)


def with_new_rows(
    tensors: Mapping[str, Tensor], tokenizer: Tokenizer, grown: Tokenizer, seed: int
) -> tuple[Mapping[str, Tensor], frozenset[str]]:
    """Return weights with rows for the tokens that a tokenizer has got, and the names of those.

    A row is drawn from N(m, 0.02^2) with the mean m of the others, so that no new token is far
    likelier than they are (Hewitt 2021); a bias is m.
    """
    count = grown.size - tokenizer.size
    if not count:
        return tensors, frozenset()
    extended, names = dict(tensors), [name for name in TOKEN_TABLES if name in tensors]
    generator = torch.Generator().manual_seed(derive(seed, "new tokens"))
    for name in names:
        table = tensors[name]
        rows = table.mean(0, keepdim=True).expand(count, *table.shape[1:])
        if table.dim() > 1 and not table.is_meta:
            rows = rows + INITIAL_STD * torch.randn(rows.shape, generator=generator)
        extended[name] = torch.cat([table, rows.to(table.dtype)])
    return extended, frozenset(names)
