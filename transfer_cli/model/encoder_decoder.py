"""An encoder and a decoder: a source in, the hidden states of a text that is written from it out.

Both are stacks of the blocks that there are. Each block of the decoder has one more sub-layer, an
attention on what the encoder has made of the source (Vaswani et al. 2017, section 3.1).

Legend: B batch, S positions of a source, T positions of a target, D width, L blocks.
"""

from dataclasses import replace

from torch import Tensor, nn

from transfer_cli.model.attention import SourceText
from transfer_cli.model.backbone import Backbone, initialise_plain
from transfer_cli.model.products import SOURCE, ProductCounter
from transfer_cli.model.shape import BackboneShape


class Stack(Backbone):
    """An encoder or a decoder, which reads the token embeddings of both."""

    def __init__(self, shape: BackboneShape, owner: "EncoderDecoder") -> None:
        super().__init__(shape, vocabulary=1)  # whose table goes
        del self.token_embedding
        self.vocabulary = owner.vocabulary
        # In a tuple, so that it is no part of this module: each parameter has one name.
        self._owner = (owner,)

    def embed_tokens(self, tokens_BT: Tensor) -> Tensor:
        return self._owner[0].embed_tokens(tokens_BT)


class EncoderDecoder(Backbone):
    """Two stacks that share their token embeddings; to all others it is the decoder's backbone.

    Its blocks are those of both, the encoder's first. Its hidden states are the decoder's.

    Args:
        shape: Of both, with the direction encoder_decoder.
        vocabulary: Number of tokens, of sources and targets alike.
    """

    def __init__(self, shape: BackboneShape, vocabulary: int) -> None:
        nn.Module.__init__(self)
        self.shape, self.vocabulary = shape, vocabulary
        self.causal, self.probe = False, None
        self.token_embedding = nn.Embedding(vocabulary, shape.embedding_size)
        for name in ("new_rows", "new_segments", "shared_projections"):
            self.register_module(name, None)
        initialise_plain(self.token_embedding)
        encoder, decoder = shape.stacks
        self.encoder, self.decoder = Stack(encoder, self), Stack(decoder, self)
        for block in self.decoder.blocks:
            block.add_cross_attention(decoder)  # type: ignore[operator]  # a Block: a ModuleList forgets the kind
        self.decoder.initialise()

    @property
    def blocks(self) -> nn.ModuleList:  # type: ignore[override]
        """The encoder's blocks, then the decoder's."""
        return nn.ModuleList([*self.encoder.blocks, *self.decoder.blocks])

    def reinitialise_top(self, count: int) -> None:
        self.decoder.reinitialise_top(count)

    def encode(self, source: SourceText) -> SourceText:
        """Return a source with its states; they are computed once, however much is written."""
        states = self.encoder(
            source.tokens, source.mask, padded=source.padded, packing=source.packing, layers=(-1,)
        )
        return replace(source, states=states[0])

    def forward(
        self,
        tokens_BT: Tensor,
        mask_BT: Tensor,
        segment_BT: Tensor | None = None,
        *,
        source: SourceText | None = None,
        **options: object,
    ) -> list[Tensor]:
        """Return the decoder's hidden states; a source is encoded if it has none yet.

        The other arguments are those of `Backbone`, without segments: there are two stacks.
        """
        if source is None:
            raise ValueError("an encoder-decoder needs a source")
        if source.states is None:
            source = self.encode(source)
        states: list[Tensor] = self.decoder(tokens_BT, mask_BT, source=source, **options)
        return states

    def count_products(self, counter: ProductCounter, unit: str, *, needs_grad: bool) -> bool:
        """Count the encoder's products by units of their own, then the decoder's."""
        source = ProductCounter(counter.trained)
        counter.source_needs_grad = source.count(self.encoder, unit, needs_grad=needs_grad)
        embeds = counter.trains(self.token_embedding, self.new_rows)
        counter.source_needs_grad = counter.source_needs_grad or embeds
        counter.prices |= {f"{SOURCE}{name}": price for name, price in source.prices.items()}
        return counter.count(self.decoder, unit, needs_grad=needs_grad or embeds)


def build_backbone(shape: BackboneShape, vocabulary: int) -> Backbone:
    """Return a backbone with fresh weights: one stack of blocks, or two."""
    return (EncoderDecoder if shape.has_encoder else Backbone)(shape, vocabulary)
