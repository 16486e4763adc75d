"""Turns generated tokens into text that is shown at once and never retracted."""

from collections.abc import Sequence
from dataclasses import dataclass

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.generation.prompt_layout import PromptLayout


class StreamingDetokenizer:
    """Decodes tokens one by one, and holds back the bytes of an incomplete character."""

    def __init__(self, tokenizer: Tokenizer, line_end: int | None, before: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._line_end = line_end
        # The text of a token depends on the one before: `##s`, or a space before a word.
        self._decoded: list[int] = []
        self._pending: list[int] = []
        for token in before:
            self._decoded = [] if token == line_end else [*self._decoded, token]

    def add(self, token: int) -> str:
        """Add a token, and return the text that is final now."""
        if token == self._line_end:
            text = self.flush() + "\n"
            self._decoded = []
            return text
        self._pending.append(token)
        text = self._decode_pending()
        half = "\ufffd"  # a tokenizer decodes an incomplete character to this
        if not text or text.endswith(half):
            return ""
        self._decoded, self._pending = self._pending, []
        return text

    def flush(self) -> str:
        """Return the text held back, incomplete characters included."""
        text = self._decode_pending()
        self._decoded, self._pending = self._decoded + self._pending, []
        return text

    def _decode_pending(self) -> str:
        decode = self._tokenizer.decode
        return decode(self._decoded + self._pending)[len(decode(self._decoded)) :]


class StopStrings:
    """Ends a text before the first stop string in it.

    Text that may begin a stop string is held back. Of stop strings that end at the same place the
    longest counts.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = sorted(stops, key=len, reverse=True)
        self._pending = ""
        self.found: str | None = None
        """The stop string that ended the text."""

    def add(self, text: str) -> str:
        """Add text, and return the text that is final now; "" after a stop string."""
        final = ""
        for letter in text:
            if self.found is not None:
                break
            self._pending += letter
            self.found = next((stop for stop in self._stops if self._pending.endswith(stop)), None)
            sure = len(self._pending) - (len(self.found) if self.found else self._begun())
            final, self._pending = final + self._pending[:sure], self._pending[sure:]
        return final

    def flush(self) -> str:
        """Return the text held back, unless a stop string was found."""
        text, self._pending = ("" if self.found else self._pending), ""
        return text

    def _begun(self) -> int:
        """Return the length of the longest suffix that begins a stop string."""
        lengths = (
            length
            for stop in self._stops
            for length in range(1, min(len(stop), len(self._pending) + 1))
            if self._pending.endswith(stop[:length])
        )
        return max(lengths, default=0)


@dataclass
class GeneratedText:
    """The text generated after a prompt.

    Attributes:
        text: The final text so far, without the prompt.
        finish_reason: "stop" (a stop string) or "end" (an end token); "" until then.
    """

    layout: PromptLayout
    prompt: str
    stops: Sequence[str]
    text: str = ""
    tokens: int = 0
    finish_reason: str = ""

    def __post_init__(self) -> None:
        layout, before = self.layout, self.layout.encode(self.prompt)
        self._detokenizer = StreamingDetokenizer(layout.tokenizer, layout.line_end, before)
        goes_on = layout.answer_end is None and self.prompt.endswith(" ")
        # A space that the prompt's tokens do not hold.
        self._has_space = goes_on and not layout.tokenizer.decode(before).endswith(" ")
        self._stop_strings = StopStrings(self.stops)

    def add(self, token: int) -> str:
        """Add a token, and return the text that is final now."""
        if self.finish_reason:
            return ""
        self.tokens += 1
        if token == self.layout.text_end:
            shown = self.flush()
            self.finish_reason = self.finish_reason or "end"
            return shown
        return self._show(self._detokenizer.add(token))

    def flush(self) -> str:
        """Return the text held back, as no token follows; "" if the text has ended."""
        if self.finish_reason:
            return ""
        shown = self._show(self._detokenizer.flush())
        held = self._stop_strings.flush()
        self.text += held
        return shown + held

    def _show(self, decoded: str) -> str:
        if decoded and self._has_space:
            # The prompt holds the space before the first word.
            decoded, self._has_space = decoded.removeprefix(" "), False
        shown = self._stop_strings.add(decoded)
        self.text += shown
        if self._stop_strings.found is not None:
            self.finish_reason = "stop"
        return shown
