r"""What an answer is: a number, words, a choice, a tuple, set, interval or list of such, or a formula."""

import re
from dataclasses import dataclass, replace

from qae.rewards.clean import clean
from qae.rewards.number import Number, read_number
from qae.rewards.units import split_unit

_MOST_ITEMS = 256
_DEEPEST = 8


@dataclass(frozen=True)
class Words:
    """An answer in words, as compared: small letters, no punctuation, no article."""

    text: str


@dataclass(frozen=True)
class Choice:
    """A capital letter: one of several choices, or the name of a point."""

    letter: str


@dataclass(frozen=True)
class Formula:
    """Anything that needs computer algebra.

    Attributes:
        latex: cleaned LaTeX.
        unit: known unit behind it, or empty.
        percent: a percent sign stood behind it.
        name: the variable that it was said to be ("x = ..."), or empty.
    """

    latex: str
    unit: str = ""
    percent: bool = False
    name: str = ""


@dataclass(frozen=True)
class Group:
    """Several values: "()", "[]", "[)", "(]" by their brackets, "{}" a set, "list" without brackets, "union", ":".

    Attributes:
        kind: as above.
        items: the values.
        names: left-hand sides of "x=1, y=2" if they differ, else empty.
        latex: the whole, for comparison with a formula.
    """

    kind: str
    items: tuple["Value", ...]
    names: tuple[str, ...] = ()
    latex: str = ""


Value = Number | Words | Choice | Formula | Group

_LIST_WORDS = re.compile(
    r"\\text\s?\{\s*,?\s*(?:and|or)\s*,?\s*\}|(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])|\\(?:lor|vee|land|wedge)(?![a-zA-Z])"
)
_MEMBER = re.compile(r"\\?[a-zA-Z]\w?\s*\\in(?![a-zA-Z])\s*")
_NAME = r"((?:\\[a-zA-Z]+|[a-zA-Z])(?:_(?:\w|\{\w+\}))?'?(?:\s?\(\s?[a-zA-Z]\s?\))?)"
_NAME_ALONE = re.compile(_NAME)
_NAMED = re.compile(_NAME + r"\s*=(?!=)\s*(?=\S)")
_GROUPED_THOUSANDS = re.compile(r"(?<![\d.,])(\d{1,3}(?:,\d{3})+)(?!\d|,\d)")
_NAMES = re.compile(r"\(\s?[a-zA-Z](?:_\w)?(?:\s?,\s?[a-zA-Z](?:_\w)?)+\s?\)")
_VARIABLE = re.compile(r"[a-zA-Z]")
_INEQUALITY = re.compile(r"[<>]|\\(?:le|ge|ne)(?![a-zA-Z])")
_APPROXIMATELY = re.compile(r"\\(?:approx|simeq)(?![a-zA-Z])")
_LETTER = re.compile(r"\(?\s?([A-Z])\s?\)?\s?[.:)]?")
_WHOLE_TEXT = re.compile(r"\\text\s?\{([^{}]*)\}")
_LETTER_TEXT = re.compile(r"\\text\s?\{\s*([A-Za-z])\s*\}")
_WORD = re.compile(r"(?<![\\a-zA-Z])[A-Za-z][A-Za-z'-]*[A-Za-z]")
_FUNCTIONS = frozenset(
    "sin cos tan cot sec csc log ln exp max min lcm gcd mod det sinh cosh tanh arcsin arccos arctan sqrt deg".split()
)
_RATIO = re.compile(r"-?\d+(?:\.\d+)?(?:\s?:\s?-?\d+(?:\.\d+)?)+")
_SAME_WORDS = {
    "no solutions": "no solution", "there is no solution": "no solution", "there are no solutions": "no solution",
    "no real solutions": "no real solution", "dne": "does not exist", "infinitely many solutions": "infinitely many",
    "infinite": "infinity",
}  # fmt: skip
SHORT_WORDS = frozenset("yes no odd even true false red blue mon tue wed thu fri sat sun jan feb dne".split())


def read_value(answer: str, *, depth: int = 0) -> Value | None:
    r"""What an answer is, or None if nothing can be made of it.

    Example:
        >>> read_value(r"$\frac{1}{2}$ cm").value, read_value(r"\text{(B)}").letter, read_value("(1, 2]").kind
        (Fraction(1, 2), 'B', '(]')
    """
    text = clean(answer)
    if not text or depth > _DEEPEST:
        return None
    if (number := read_number(text)) is not None:
        return number
    if whole := _WHOLE_TEXT.fullmatch(text):
        return _read_words(whole[1])
    if letter := _LETTER.fullmatch(text):
        return Choice(letter[1])
    name, text = _last_side(_MEMBER.sub("", text, count=1) if _MEMBER.match(text) else text)
    group = _read_group(text, depth)
    if group is not None:
        return group
    value, unit, percent = split_unit(text)
    if not value:
        return None
    if (number := read_number(value)) is not None:
        return replace(number, unit=unit, percent=percent, name=name)
    if value != text and (group := _read_group(value, depth)) is not None:
        return group
    if is_prose(value):
        return _read_words(value)
    value = _LETTER_TEXT.sub(r" \1 ", value).strip()
    if letter := _LETTER.fullmatch(value):
        return Choice(letter[1])
    return Formula(value, unit, percent, name)


def _last_side(text: str) -> tuple[str, str]:
    r"""Name and value: x = 5 gives ("x", "5"), 2 + 3 = 5 gives ("", "5"); x + 2 = 5 stays as it is.

    Of 22/7 \approx 3.14 the exact side counts.
    """
    sides = _APPROXIMATELY.split(text)
    if len(sides) > 1:
        first = sides[0].strip()
        text = sides[1].strip() if not first or _NAME_ALONE.fullmatch(first) else first
    parts = [part.strip() for part in _split(text, "=")]
    if len(parts) == 1 or _INEQUALITY.search(text) or any(_is_listed(part) for part in parts[:-1]):
        return "", text
    if all(_is_name(part) or not re.search(r"[a-zA-Z]", _commandless(part)) for part in parts[:-1]):
        return (parts[0] if _VARIABLE.fullmatch(parts[0]) else ""), parts[-1]
    return "", text


def _is_name(side: str) -> bool:
    return any(pattern.fullmatch(side) for pattern in (_NAME_ALONE, _WHOLE_TEXT, _NAMES))


def _is_listed(side: str) -> bool:
    return len(_split(side, ",;")) > 1 or _LIST_WORDS.search(side) is not None


def _commandless(text: str) -> str:
    return re.sub(r"\\[a-zA-Z]+", "", text)


def _read_words(text: str) -> Value | None:
    r"""The words of a text, or what they say if they are a number, a letter or a formula in \\text."""
    stripped = text.strip().strip(".").strip()
    if letter := _LETTER.fullmatch(stripped):
        return Choice(letter[1])
    if (number := read_number(stripped)) is not None:
        return number
    letters = [_LETTER.fullmatch(part) for part in _items(stripped)]
    if len(letters) > 1 and all(letters):
        return Group("list", tuple(Choice(letter[1]) for letter in letters if letter))
    value, unit, percent = split_unit(stripped)
    if (number := read_number(value)) is not None:
        return replace(number, unit=unit, percent=percent)
    words = words_of(text)
    return Words(words) if words else None


def words_of(text: str) -> str:
    r"""Words as they are compared: small letters and digits, one space between, no article in front.

    Example:
        >>> words_of("The x-axis."), words_of(r"\\text{No solutions}")
        ('x axis', 'no solution')
    """
    plain = re.sub(r"\\text\s?\{([^{}]*)\}", r"\1", text)
    plain = " ".join(re.findall(r"[^\W_]+", plain.casefold()))
    plain = re.sub(r"^(?:the|an|a(?= \w\w)) (?=\w)", "", plain)
    return _SAME_WORDS.get(plain, plain)


def is_prose(text: str) -> bool:
    r"""Whether a text is words, not a formula: a word of four letters, or two of two, outside commands and \\text."""
    if "\\begin" in text:
        return False
    outside = re.sub(r"\\text\s?\{[^{}]*\}", " ", text)
    words = [w for w in _WORD.findall(outside) if w.lower() not in _FUNCTIONS]
    if len(words) == 1 and words[0].lower() in SHORT_WORDS and words[0] == outside.strip():
        return True
    return len([w for w in words if re.search("[aeiouyAEIOUY]", w)]) >= 2 or any(len(w) > 3 for w in words)


def _read_group(text: str, depth: int) -> Value | None:
    if "\\begin" in text or len(text) < 2:
        return None
    opening = "\\{" if text.startswith("\\{") else text[0]
    if opening in ("(", "[", "\\{", "]") and _closes_at_end(text, len(opening)):
        closing = "\\}" if text.endswith("\\}") else text[-1]
        inner = text[len(opening) : -len(closing)]
        parts = _items(inner, bracketed=True)
        kind = "{}" if opening == "\\{" else _interval_kind(opening, closing)
        if kind and len(parts) > 1:
            return _group(kind, parts, depth, text)
        if kind == "{}" or (kind in ("()", "[]") and len(parts) == 1):
            inside = read_value(inner, depth=depth + 1)
            return Group("{}", (inside,), latex=text) if kind == "{}" and inside is not None else inside
    if _RATIO.fullmatch(text):
        return _group(":", text.split(":"), depth, text)
    sides = re.split(r"\\cup(?![a-zA-Z])", text)
    if len(sides) > 1 and all(side.strip() for side in sides):
        return _group("union", sides, depth, text)
    parts = _items(text)
    if len(parts) == 1 and len(signs := _both_signs(text)) == 2:
        parts = signs
    return _group("list", parts, depth, text) if len(parts) > 1 else None


def _both_signs(text: str) -> list[str]:
    if len(re.findall(r"\\(?:pm|mp)(?![a-zA-Z])", text)) != 1:
        return [text]
    plus, minus = (re.sub(r"\\(?:pm|mp)(?![a-zA-Z])", sign, text) for sign in "+-")
    return [plus.strip().removeprefix("+"), minus]


def _interval_kind(opening: str, closing: str) -> str:
    if opening == "]" or closing == "[":
        return {"]": "(", "[": "["}.get(opening, opening) + {"[": ")", "]": "]"}.get(closing, closing)
    return opening + closing if closing in (")", "]") else ""


def _group(kind: str, parts: list[str], depth: int, text: str) -> Value | None:
    if len(parts) > _MOST_ITEMS:
        return None
    names = [m[1] if (m := _NAMED.match(part)) else "" for part in parts]
    if kind == "list" and not any(names) and any(re.search(r"[<>=]|\\(?:le|ge|ne)(?![a-zA-Z])", p) for p in parts):
        return Formula(text)
    given = {name for name in names if name}
    named = len(given) > 1 and len(given) == len(parts)
    if len(given) > 1 and not named:
        return Formula(text)
    items: list[Value] = []
    for part in parts:
        item = read_value(_NAMED.sub("", part, count=1) if given else part, depth=depth + 1)
        if item is None:
            return None
        if kind == "list" and isinstance(item, Group) and item.kind == "list":
            items.extend(item.items)
        else:
            items.append(item)
    return Group(kind, tuple(items), tuple(names) if named else (), text)


def _items(text: str, *, bracketed: bool = False) -> list[str]:
    r"""Top-level parts between commas, semicolons, "and", "or"; 1,234 is one part, but (1,234) is a pair."""
    if not bracketed and read_number(text.strip()) is not None:
        return [text]
    if re.search(r",\s", text):
        text = _GROUPED_THOUSANDS.sub(lambda m: m[1].replace(",", ""), text)
    parts = [p for piece in _split(_LIST_WORDS.sub(",", text), ";") for p in _split(piece, ",")]
    filled = [p.strip() for p in parts if p.strip()]
    return filled or [text]


def _split(text: str, separators: str) -> list[str]:
    parts, depth, start, position = [], 0, 0, 0
    while position < len(text):
        character = text[position]
        if character == "\\":
            position += 1
            character = {"{": "(", "}": ")"}.get(text[position : position + 1], "")
        if character in ("(", "[", "{"):
            depth += 1
        elif character in (")", "]", "}"):
            depth -= 1
        elif character in separators and character and depth <= 0:
            if character != "=" or (
                text[position - 1 : position] not in "<>!:" and text[position + 1 : position + 2] != "="
            ):
                parts.append(text[start:position])
                start = position + 1
        position += 1
    return [*parts, text[start:]]


def _closes_at_end(text: str, after: int) -> bool:
    r"""Whether the bracket that opens the text is closed by its last character and not before."""
    depth, position = 1, after
    while position < len(text):
        character = text[position]
        if character == "\\":
            position += 1
            character = {"{": "(", "}": ")"}.get(text[position : position + 1], "")
        if character in ("(", "[", "{"):
            depth += 1
        elif character in (")", "]", "}"):
            depth -= 1
            if depth == 0:
                return position == len(text) - 1
        position += 1
    # ]1, 2[ opens and closes the other way round
    return text[0] == "]" and text[-1] in "[]"
