import pytest

from transfer_cli.data.tokenizer_recipes import BytePairs, WordPiece

TEXT = "the cat sat on the mat , the cats are sitting ; the cat said mew ."


@pytest.fixture(scope="module")
def word_pieces():
    return WordPiece(size=60).make(lambda: iter([TEXT] * 20))


@pytest.fixture(scope="module")
def byte_pairs():
    return BytePairs(size=320).make(lambda: iter([TEXT.replace(" ,", ",")] * 20))


@pytest.fixture(params=["word_pieces", "byte_pairs"])
def tokenizer(request):
    return request.getfixturevalue(request.param)
