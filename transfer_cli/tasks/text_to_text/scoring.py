"""How right a text is that was made, beside the one that people wrote."""

import re

_WORD = re.compile(r"\w+")


def rouge_l(given: str, said: str) -> float:
    """Return the F1 of the longest common subsequence of words (Lin 2004, section 3).

    Words are runs of letters and digits, without case. Of no words at all, whether both have none.
    """
    words, others = (_WORD.findall(each.lower()) for each in (given, said))
    if not words or not others:
        return float(words == others)
    longest = [0] * (len(others) + 1)
    for word in words:
        before = 0
        for place, other in enumerate(others, 1):
            above = longest[place]
            longest[place] = before + 1 if word == other else max(above, longest[place - 1])
            before = above
    return 2 * longest[-1] / (len(words) + len(others))
