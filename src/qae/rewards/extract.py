r"""The final answer out of a completion.

Every search is linear in the length of the completion and goes through all of it: no tail is cut. Thinking is
removed first, so that an answer which stands only inside a thinking block is no answer.
"""

import re
from collections.abc import Callable, Sequence

THINKING_TAGS = ("think", "thinking", "reasoning", "thought")
DEFAULT_METHODS = ("boxed", "tag", "hash", "answer_line", "last_number")

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![a-zA-Z])")
_BOX_JOINT = re.compile(r"(?:\s|[$,;.&]|\\[()\[\],;]|\\\\|\\q?quad|\\text\{\s*(?:and|or)\s*\}|\b(?:and|or)\b)*")
# an escaped brace is matched as a whole and so does not count
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_MOST_BOXES = 64
_BARE_BOX = re.compile(r"\s*(-?\d+(?:\.\d+)?|[A-Za-z]|\\[a-zA-Z]+(?:\{[^{}]{0,99}\}){0,2})")
# one character class instead of \s*\**\s*: two stars next to each other are quadratic in a run of blanks
_ANSWER = re.compile(r"answer[\s*_]*(?::|\bis\b[\s*_]*:?)[\s*_]*", re.IGNORECASE)
_LINE_TAIL = re.compile(r",?\s(?:not|but|because|since|which|where|instead)\b|[.!?](?:\s|$)", re.IGNORECASE)
_NEGATED = re.compile(
    r"(?:\bnot|\bnever|n['\u2019]t|\bcannot|\bwithout|\u2260|!=|\\neq?)[\s$]*(?:be|is|equals?|to|the|answer|:|=|\s)*[\s$]*$",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"(?<![\w./^])(?:(?<![)\]}])[-\u2212])?\d+(?:,\d{3})*(?:\.\d+)?(?:/\d+)?(?:\s?\\?%)?")
_FILLER = re.compile(
    r"(?:(?:therefore|thus|then|hence|so|simply|just|exactly|now|indeed|equal to|given by|found to be)\b[,:]?\s*)+",
    re.IGNORECASE,
)
_MATH_SPAN = re.compile(r"\$([^$\n]+)\$|\\\(([^\n]+?)\\\)")
_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}")
_JOINING_WORDS = frozenset(("and", "or"))


def extract_answer(completion: str, methods: Sequence[str] = DEFAULT_METHODS) -> str | None:
    r"""The final answer of a completion: the first of `methods` that finds one decides.

    - `boxed`: the last `\boxed{}` (or `\fbox{}`). Boxes joined by nothing but commas, "and", "or" or line breaks are
      one list. A last box that is cut off is no answer, whatever stands before it.
    - `tag`: the last complete `<answer>...</answer>`.
    - `hash`: the rest of the last line that starts with `####`.
    - `answer_line`: what follows the last "Answer:" or "answer is", to the end of the sentence.
    - `last_number`: the last number that is not negated ("not 42").

    Args:
        completion: the text, thinking included.
        methods: names of `METHODS`, in order of preference.

    Returns:
        The answer as written, or None.

    Raises:
        ValueError: if a method does not exist.

    Example:
        >>> extract_answer(r"<think>\boxed{3}?</think> So \boxed{4}.")
        '4'
        >>> extract_answer("<think>the answer is 4") is None
        True
    """
    unknown = [name for name in methods if name not in METHODS]
    if unknown or not methods:
        raise ValueError(f"answer extraction {unknown}: choose from {', '.join(METHODS)}")
    text = strip_thinking(completion)
    if "boxed" in methods and _cut_off_box(text):
        return None
    for name in methods:
        found = METHODS[name](text)
        if found is not None and found.strip():
            return found.strip()
    return None


def strip_thinking(completion: str) -> str:
    """The completion after its last thinking block; an unfinished block is dropped to its end.

    Example:
        >>> strip_thinking("<think>hm</think>4"), strip_thinking("hm</think>4"), strip_thinking("4<think>hm")
        ('4', '4', '4')
    """
    for tag in THINKING_TAGS:
        closed = completion.rfind(f"</{tag}>")
        if closed >= 0:
            completion = completion[closed + len(tag) + 3 :]
        opened = completion.find(f"<{tag}>")
        if opened >= 0:
            completion = completion[:opened]
    return completion


def _boxed(text: str) -> str | None:
    boxes = [(m.start(), m.end()) for m in _BOX.finditer(text)]
    found: list[str] = []
    start_of_next = len(text)
    for start, end in reversed(boxes):
        content = _box_content(text, end)
        if content is None:
            break
        inside, stop = content
        if found and (stop > start_of_next or not _BOX_JOINT.fullmatch(text, stop, start_of_next)):
            break
        if inside not in found:
            found.append(inside)
        start_of_next = start
        if len(found) == _MOST_BOXES:
            break
    return ", ".join(reversed(found)) if found else None


def _box_content(text: str, position: int) -> tuple[str, int] | None:
    """What stands in the box whose command ends at `position`, and where the box ends."""
    while position < len(text) and text[position] == " ":
        position += 1
    if position >= len(text) or text[position] != "{":
        bare = _BARE_BOX.match(text, position)
        return (bare[1], bare.end()) if bare else None
    depth = 0
    for brace in _BRACE.finditer(text, position):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[position + 1 : brace.start()].strip(), brace.end()
    return None


def _cut_off_box(text: str) -> bool:
    last = None
    for last in _BOX.finditer(text):  # noqa: B007
        pass
    return last is not None and _box_content(text, last.end()) is None


def _tag(text: str) -> str | None:
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, end) if end >= 0 else -1
    return text[start + len("<answer>") : end] if start >= 0 else None


def _hash(text: str) -> str | None:
    start = text.rfind("####")
    if start < 0:
        return None
    return text[start + 4 :].lstrip(" #").partition("\n")[0]


def _answer_line(text: str) -> str | None:
    found = None
    for match in _ANSWER.finditer(text):
        line = text[match.end() : match.end() + 2000].partition("\n")[0]
        if not re.match(r"not\b|n['\u2019]t\b", line, re.IGNORECASE):
            found = line
    return None if found is None else _without_prose(found)


def _without_prose(line: str) -> str:
    """A line "the total is $42$ apples." comes down to its last formula, else its last number."""
    tail = _LINE_TAIL.search(line)
    line = (line[: tail.start()] if tail else line).strip("*_` \t\r")
    if filler := _FILLER.match(line):
        line = line[filler.end() :]
    words = [w for w in _WORD.findall(re.sub(r"\\text\{[^{}]*\}", " ", line)) if w not in _JOINING_WORDS]
    if len(words) < 3:
        return line
    spans = [a or b for a, b in _MATH_SPAN.findall(line)]
    return spans[-1] if spans else (_last_number(line) or line)


def _last_number(text: str) -> str | None:
    for match in reversed(list(_NUMBER.finditer(text))):
        if not _NEGATED.search(text, max(0, match.start() - 40), match.start()):
            return match[0]
    return None


METHODS: dict[str, Callable[[str], str | None]] = {
    "boxed": _boxed,
    "tag": _tag,
    "hash": _hash,
    "answer_line": _answer_line,
    "last_number": _last_number,
}
