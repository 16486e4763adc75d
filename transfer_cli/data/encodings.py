"""The encoding of a file from its first bytes: UTF-8, UTF-16, or an older page of one script.

Old pages differ in what a byte means, and any text can be read by most of them. charset-normalizer
says by which it can be; of these readings one is taken whose letters are those of a language, and
none where two are about as good. Western pages are the commonest: what a Western language could be
is that, and is shown, since single letters do not tell.
"""

import codecs
import itertools
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

WINDOWS = "cp1252"
"""Windows' encoding of western languages; Latin-1 is the same where it has letters and marks."""

_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip
_MULTIBYTE = re.compile(
    rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}"
)
_NOT_ASCII = re.compile(rb"[\x80-\xff]")
_PLAIN = re.compile(rb"[ -~]{6}\r?\n")
"""The end of a line in any encoding but those of several bytes a character."""
_JAPANESE_ESCAPE = re.compile(rb"\x1b\$[@B]")

_LATIN_PAGES = {
    WINDOWS: (
        "äöüßéèàçëïêôâîûùœæ", "áéíóúñüçàèòïªº", "áâãàçéêíóôõúüª", "àèéìíîòóùú", "åäöéüáàšž",
        "æøåéèêòóôüöä", "áéíóúýðþæö", "äöõüšž", "ëïöüéèêáíóúâîûôŵŷ",
    ),
    "cp1250": ("ąćęłńóśźżé", "áčďéěíňóřšťúůýžäĺľôŕö", "áéíóöőúüűä", "ăâîşţșț", "čćđšžé"),
    "iso8859_2": ("ąćęłńóśźżé", "áčďéěíňóřšťúůýžäĺľôŕö", "áéíóöőúüűä", "ăâîşţșț", "čćđšžé"),
    "cp1254": ("çğıöşüâîûé",),
    "cp1257": ("ąčęėįšųūžé", "āčēģīķļņšūž"),
    "mac_roman": ("äöüßéèàçëïêôâîûùœæ", "áéíóúñüçàèòïªº", "áâãàçéêíóôõúüª", "æøåéèêòóôüöä"),
    "cp850": ("äöüßéèàçëïêôâîûùœæ", "áéíóúñüçàèòïªº", "áâãàçéêíóôõúüª", "æøåéèêòóôüöä"),
}  # fmt: skip
"""Pages of Latin letters -> the letters beside a to z of languages that are written in them."""

_KANA = "ぁ-ヿｦ-ﾟ"
_CYRILLIC = ("А-яЁёІіЇїЄєҐґЎў", "оеаинтсрвлі", 0.6)  # noqa: RUF001 - Cyrillic ones are meant
_GREEK = ("Ͱ-Ͽ", "αοιετσνηυρπκςάόίέήύώ", 0.85)
_HEBREW = ("א-ת", "יולאהמרתבשנד", 0.75)
_ARABIC = ("؀-ۿ", "اليمنوترهبسدعةكفقح", 0.8)
_THAI = ("ก-๛", "านรกอเงมยลวดทสตะ่้ิีัุ", 0.8)
_HAN = "一-鿿"
_JAPANESE = (f"{_HAN}{_KANA}", "のはにをたがでてとしれさいるなかまうすっもりこくらン", 0.2)
_SIMPLE = "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生很好"
_TRADITIONAL = "的一是不了在人有我他這個們中來上大為和國地到以說時要就出會可也你對生很好"
_OTHER_PAGES = {
    "cp1251": _CYRILLIC, "koi8_r": _CYRILLIC, "koi8_u": _CYRILLIC, "iso8859_5": _CYRILLIC,
    "cp866": _CYRILLIC, "cp1253": _GREEK, "iso8859_7": _GREEK,
    "cp1255": _HEBREW, "cp1256": _ARABIC, "iso8859_6": _ARABIC,
    "cp874": _THAI, "gb18030": (_HAN, _SIMPLE, 0.2), "big5": (_HAN, _TRADITIONAL, 0.2),
    "cp932": _JAPANESE, "euc_jp": _JAPANESE,
    "cp949": ("가-힣", "이다는가을의에고은를지도하한리기로사나서자아인그어시수것", 0.2),
}  # fmt: skip
"""Other pages -> the letters of their script, and those that are frequent, with the least share
that these have in a text."""

_FREQUENT_ROWS = {
    "gb18030": (0xB0, 0xD7), "big5": (0xA4, 0xC6), "cp932": (0x82, 0x97), "euc_jp": (0xA4, 0xCF),
    "cp949": (0xB0, 0xC8),
}  # fmt: skip
"""Pages of thousands of characters -> the first bytes of the rows with the usual ones."""

_LETTER = r"[^\W\d_]"
_MARK = r"[\u00a0-\u00bf\u2010-\u2044\u20ac\u2116\u2122\u2190-\u2193]"
_MARKS_OF_TEXT = re.compile(
    rf"(?![\u00a4\u00a6\u00a8\u00aa\u00ac\u00af\u00b1-\u00b3\u00b6\u00b8-\u00ba\u00bc-\u00be]{_LETTER})"
    rf"(?:(?<!{_LETTER}){_MARK}|{_MARK}(?!{_LETTER}))"
    r"|[\x00-\x7f\u2019\u00b4\u00b7\u3000-\u303f\uff01-\uff5e]"
)
"""Plain characters and marks, but for those within a word, where a letter is misread."""

_WRONG_LETTER_COST = 3
"""How much worse a letter that is none of the language is than one that is right."""
_NEAR = 0.9
_LIKE_A_LANGUAGE, _SURE = 0.6, 0.8
"""The least score that is taken, and one from which on others must be near to be told of."""
_SAMPLE_CHARACTERS = 40
_EXAMINED_BYTES = 2**16


@dataclass(frozen=True)
class PageReading:
    """A text as a page reads it, with a score of 1 where all of it is in words of a language."""

    encoding: str
    text: str = ""
    score: float = 1

    @property
    def sample(self) -> str:
        """The beginning of a part of the text that another page would read otherwise."""
        place = next((at for at, mark in enumerate(self.text) if mark > "\x7f"), 0)
        start = max(self.text.rfind("\n", 0, place) + 1, place - _SAMPLE_CHARACTERS // 2)
        return self.text[start : start + _SAMPLE_CHARACTERS].partition("\n")[0].strip()


def encoding_label(encoding: str) -> str:
    """Return what people call an encoding."""
    return "Windows-1252" if encoding == WINDOWS else encoding.replace("_", "-").upper()


def detect_encoding(start: bytes) -> tuple[PageReading, ...]:
    """Return the encoding of a file from its first bytes, which may end within a character.

    Several are returned where they are about as good, the best first. A UTF-8 file with a few
    damaged lines stays one.
    """
    for mark, encoding in _BYTE_ORDER_MARKS:
        if start.startswith(mark):
            return (PageReading(encoding),)
    wide = _wide_without_mark(start[:_EXAMINED_BYTES])
    if wide is not None:
        return (PageReading(wide),)
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        rest, num_valid = _MULTIBYTE.subn(b"", start)
        num_other = len(rest.translate(None, bytes(range(128))))
        if num_other > num_valid and b"\0" not in start:
            return _old_pages(start)
    return (PageReading("iso2022_jp" if _JAPANESE_ESCAPE.search(start) else "utf-8"),)


def _wide_without_mark(start: bytes) -> str | None:
    """Return which UTF-16 a text without a mark is in, by the zero bytes of its line ends."""
    for encoding, at in (("utf-16-le", 1), ("utf-16-be", 0)):
        zeros, others = start[at::2].count(0), start[1 - at :: 2].count(0)
        is_frequent = zeros > 8 * others and 50 * zeros >= len(start)
        if is_frequent and "\n".encode(encoding) in start and not _PLAIN.search(start):
            return encoding
    return None


def _old_pages(start: bytes) -> tuple[PageReading, ...]:
    """Return the best reading by a page of one script, with others that are near it."""
    from charset_normalizer import from_bytes  # takes a while to import, and few files ask for it

    lines = _non_ascii_lines(start)
    # What charset-normalizer may find wrong with a reading; by default it leaves right ones out.
    mess = 0.3
    matches = from_bytes(
        lines, threshold=mess, cp_isolation=[*_LATIN_PAGES, *_OTHER_PAGES], language_threshold=0
    )
    readings = [
        PageReading(encoding, str(match), _score(encoding, str(match)))
        for match in matches
        for encoding in match.could_be_from_charset
        if encoding in _LATIN_PAGES or encoding in _OTHER_PAGES
    ]
    with suppress(UnicodeDecodeError):  # of a text with few letters it finds much wrong
        text = lines.decode(WINDOWS)
        readings.append(PageReading(WINDOWS, text, _score(WINDOWS, text)))
    readings.sort(key=lambda reading: -reading.score)
    best = max((reading.score for reading in readings), default=0)
    enough = max(_LIKE_A_LANGUAGE, best * (_NEAR if best >= _SURE else _NEAR**2))
    near = [reading for reading in readings if reading.score >= enough]
    western = [reading for reading in near if reading.encoding == WINDOWS]
    damaged = 2  # so many bytes that are in no encoding may be a fault of a file in UTF-8
    if not near and len(readings) > 1 and len(_NOT_ASCII.findall(start)) > damaged:
        near = readings[:3]
    differing = {reading.text: reading for reading in reversed(western or near)}
    return tuple(reversed(differing.values())) or (PageReading("utf-8"),)


def _non_ascii_lines(start: bytes) -> bytes:
    """Return lines that are not plain ASCII, up to so many bytes."""
    lines, size = [], 0
    is_cut = len(start) >= _EXAMINED_BYTES  # perhaps within a character
    for line in start[: start.rfind(b"\n") + 1 if is_cut else None].splitlines(keepends=True):
        if not line.isascii():
            lines.append(line)
            size += len(line)
        if size > _EXAMINED_BYTES:
            break
    return b"".join(lines)


def _score(encoding: str, text: str) -> float:
    """Return how well a text reads, about 1 where it is in words of a language."""
    letters = Counter(_MARKS_OF_TEXT.sub("", text).lower())
    count = letters.total()
    turned = sum(a.islower() and b.isupper() and b > "\x7f" for a, b in itertools.pairwise(text))
    if encoding in _LATIN_PAGES:
        if count > sum("a" <= letter <= "z" for letter in text.lower()):
            return 0
        if not count and not re.search(_MARK, text.replace("\u00a0", "")):
            return 0
        languages = _LATIN_PAGES[encoding]
        wrong = count - max(sum(letters[letter] for letter in language) for language in languages)
        return 1 - _WRONG_LETTER_COST * (wrong + turned) / max(count, 1)
    script, frequent, expected = _OTHER_PAGES[encoding]
    right, usual = _share(letters, script), min(1, _share(letters, frequent) / expected)
    if encoding in _FREQUENT_ROWS:
        first, last = _FREQUENT_ROWS[encoding]
        rows = sum(
            letters[letter] for letter in letters if first <= letter.encode(encoding)[0] <= last
        )
        score = (right + rows / max(count, 1)) / 2 + usual / 4
        return score * min(1, 0.5 + 2 * _share(letters, _KANA)) if _KANA in script else score
    mixed = len(re.findall(f"[a-zA-Z][{script}]|[{script}][a-zA-Z]", text))
    return (1 + usual) / 2 - _WRONG_LETTER_COST * (1 - right + (turned + mixed) / max(count, 1))


def _share(letters: Counter[str], those: str) -> float:
    matches = re.findall(f"[{those}]", "".join(letters))
    return sum(letters[letter] for letter in matches) / max(letters.total(), 1)
