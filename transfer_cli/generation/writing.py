"""Tokens as they come, turned into text that can be shown at once and is never taken back."""

from collections.abc import Sequence
from dataclasses import dataclass

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.generation.layout import Layout

_HALF = "\ufffd"
"""What a tokenizer writes for bytes that make no character, yet."""


class Spelling:
    """Tokens to text, one by one. Bytes of half a character wait for the other half.

    Args:
        tokenizer: The run's.
        line_end: The token that stands for the end of a line; None: none does.
        before: The tokens after which the text goes on.
    """

    def __init__(self, tokenizer: Tokenizer, line_end: int | None, before: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._line_end = line_end
        # What a token looks like depends on the one before: `##s`, or a space where a word begins.
        self._said: list[int] = []
        self._waiting: list[int] = []
        for token in before:
            self._said = [] if token == line_end else [*self._said, token]

    def add(self, token: int) -> str:
        """Return the text that is certain now."""
        if token == self._line_end:
            text = self.rest() + "\n"
            self._said = []
            return text
        self._waiting.append(token)
        text = self._spelt()
        if not text or text.endswith(_HALF):
            return ""
        self._said, self._waiting = self._waiting, []
        return text

    def rest(self) -> str:
        """Return what was waiting; it stays as it is."""
        text = self._spelt()
        self._said, self._waiting = self._said + self._waiting, []
        return text

    def _spelt(self) -> str:
        decode = self._tokenizer.decode
        return decode(self._said + self._waiting)[len(decode(self._said)) :]


class Cut:
    """A text that ends where one of some strings is complete; the string is not part of it.

    What could be the beginning of such a string waits until it is known. Of strings that end at the
    same place the longest counts.

    Args:
        stops: The strings.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = sorted(stops, key=len, reverse=True)
        self._waiting = ""
        self.found: str | None = None
        """The string that has ended the text."""

    def add(self, text: str) -> str:
        """Return the text that is certain now; "" after the end."""
        certain = ""
        for letter in text:
            if self.found is not None:
                break
            self._waiting += letter
            self.found = next((each for each in self._stops if self._waiting.endswith(each)), None)
            sure = len(self._waiting) - (len(self.found) if self.found else self._possible())
            certain, self._waiting = certain + self._waiting[:sure], self._waiting[sure:]
        return certain

    def rest(self) -> str:
        """Return what was waiting, where no string became of it."""
        text, self._waiting = ("" if self.found else self._waiting), ""
        return text

    def _possible(self) -> int:
        """Return the length of the longest end of the text that begins a string."""
        longest = min(len(self._waiting), max(map(len, self._stops), default=1) - 1)
        return next(
            (
                length
                for length in range(longest, 0, -1)
                if any(each.startswith(self._waiting[-length:]) for each in self._stops)
            ),
            0,
        )


@dataclass
class Writer:
    """One text that goes on.

    Args:
        layout: How the run lays text out.
        prompt: What it goes on from.
        stops: See `Cut`.

    Attributes:
        text: What is certain, so far, without the prompt.
        tokens: How many tokens were taken.
        ended: Why it ended: "stop" or "end"; "" while it goes on.
    """

    layout: Layout
    prompt: str
    stops: Sequence[str]
    text: str = ""
    tokens: int = 0
    ended: str = ""

    def __post_init__(self) -> None:
        before = self.layout.prompt(self.prompt)
        self._spelling = Spelling(self.layout.tokenizer, self.layout.line_end, before)
        self._has_space = self.layout.drops_space(self.prompt, before)
        self._cut = Cut(self.stops)

    def add(self, token: int) -> str:
        """Take a token; return the text that is certain by it."""
        if self.ended:
            return ""
        self.tokens += 1
        if token == self.layout.text_end:
            shown = self.rest()
            self.ended = self.ended or "end"
            return shown
        return self._show(self._spelling.add(token))

    def rest(self) -> str:
        """Return what was waiting, since no token follows; nothing where the text has ended."""
        if self.ended:
            return ""
        shown = self._show(self._spelling.rest())
        if not self.ended:
            held = self._cut.rest()
            self.text += held
            shown += held
        return shown

    def _show(self, spelt: str) -> str:
        if spelt and self._has_space:
            # The space before the first word stands in the prompt already.
            spelt, self._has_space = spelt.removeprefix(" "), False
        shown = self._cut.add(spelt)
        self.text += shown
        if self._cut.found is not None:
            self.ended = "stop"
        return shown
