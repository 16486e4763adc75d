"""Code pages are told apart by the letters of languages, in a few words and in many."""

# ruff: noqa: RUF001 - letters of many languages

import pytest

from transfer_cli.data.encodings import encoding_of

TEXTS = {
    "Это был очень плохой фильм. Мы ждали другого конца.": "cp1251 koi8_r iso8859_5 cp866",
    "Фільм був дуже поганий, і кінець нікому не сподобався.": "cp1251 koi8_u",
    "Η ταινία ήταν πολύ κακή και δεν μας άρεσε καθόλου.": "cp1253 iso8859_7",
    "Film był bardzo zły, a książka nie podobała się nikomu.": "cp1250 iso8859_2",
    "Film byl velmi špatný a závěr se nikomu nelíbil. Příběh je dlouhý.": "cp1250 iso8859_2",
    "A film nagyon rossz volt, és a vége sem tetszett. Az idő gyűlik.": "cp1250 iso8859_2",
    "Film çok kötüydü ve sonu kimsenin hoşuna gitmedi. Işık yoktu.": "cp1254 iso8859_9",
    "Filmas buvo labai blogas. Žmonės išėjo, kiekvieną dieną.": "cp1257",
    "这部电影非常糟糕，我们都不喜欢结局。": "gbk gb18030",
    "這部電影非常糟糕，我們都不喜歡結局。": "big5",
    "この映画はとても悪かったです。結末は誰も好きではありませんでした。": "cp932 euc_jp iso2022_jp",
    "이 영화는 정말 나빴고 결말은 아무도 좋아하지 않았다.": "euc_kr cp949",
    "كان الفيلم سيئا جدا ولم تعجب النهاية أحدا.": "cp1256 iso8859_6",
    "หนังเรื่องนี้แย่มากและไม่มีใครชอบตอนจบ": "cp874",
    "Der Film war schlecht. Schöne Grüße für die Mühe.": "cp1252 latin-1 mac_roman cp850",
    "Le film était très mauvais. Ça a été long, même à Noël.": "cp1252 mac_roman cp850",
    "La película fue mala. ¿Qué pasó con el niño?": "cp1252 mac_roman",
    "O filme foi ruim e a conclusão não agradou. As ações são más.": "cp1252",
    "The café was nice and the naïve waiter friendly.": "cp1252 mac_roman",
    "A film that nobody — really — would call “great”. It’s fine.": "cp1252 mac_roman",
}  # fmt: skip


@pytest.mark.parametrize("times", [1, 50])
@pytest.mark.parametrize(
    ("text", "page"), [(text, page) for text, pages in TEXTS.items() for page in pages.split()]
)
def test_a_text_is_read_by_its_page(text, page, times):
    content = f"text,label\n{text * times},neg\n".encode(page)

    readings = encoding_of(content)

    assert len(readings) == 1
    assert content.decode(readings[0].encoding) == content.decode(page)


@pytest.mark.parametrize(
    ("text", "page"),
    [("ПЛОХОЙ ФИЛЬМ, ОЧЕНЬ", "cp1251"), ("영화", "euc_kr"), ("הסרט היה גרוע מאוד", "cp1255")],
)
def test_where_two_pages_are_near_both_are_told_of(text, page):
    content = f"{text}\n".encode(page)

    readings = [content.decode(reading.encoding) for reading in encoding_of(content)]

    assert len(readings) > 1
    assert f"{text}\n" in readings


@pytest.mark.parametrize("page", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_unicode_is_told_by_its_bytes(page):
    content = "text,label\nfilm добрый 电影,neg\n".encode(page)

    (reading,) = encoding_of(content)

    assert content.decode(reading.encoding).removeprefix("\ufeff").startswith("text,label\n")
