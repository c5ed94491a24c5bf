r"""Units, currency and percent signs behind an answer."""

import re

_NAMES = {
    "cm": "centimeter centimetre", "mm": "millimeter millimetre", "m": "meter metre", "km": "kilometer kilometre",
    "in": "inch inche", "ft": "foot feet", "yd": "yard", "mi": "mile",
    "g": "gram gm", "mg": "milligram", "kg": "kilogram", "lb": "pound", "oz": "ounce", "ton": "tonne",
    "s": "second sec", "min": "minute", "h": "hour hr", "day": "", "week": "wk", "month": "", "yr": "year",
    "liter": "litre", "ml": "milliliter millilitre", "gal": "gallon",
    "mph": "", "km/h": "kph kmh kmph", "m/s": "mps",
    "dollar": "usd", "cent": "", "euro": "eur", "rupee": "",
    "degree": "deg", "radian": "rad", "ohm": "", "newton": "", "joule": "", "watt": "", "pascal": "",
}  # fmt: skip
_CANONICAL = {name: unit for unit, names in _NAMES.items() for name in (unit, *names.split())}
_FILLING = frozenset(
    "unit square squared sq cubic cubed cu per of the in total point people person way student integer digit times "
    "each more less apple ball coin book page game ticket item piece number".split()
)
_NOT_A_UNIT = frozenset(
    "and or not no wrong incorrect false true if when is are was but than maybe undefined infinity mod".split()
)
_POWER = re.compile(r"\s*\^\s*(?:\{\s?(-?\d)\s?\}|(-?\d))")
_LAST_TEXT = re.compile(r"\s*\\text\s?\{([^{}]*)\}(\s*\^\s*(?:\{\s?-?\d\s?\}|-?\d))?$")
_DEGREES = re.compile(r"\s*\^\s?\\circ\s*(?:\\text\s?\{\s?[CFK]?\s?\}|[CFK])?$")
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)")
_PERCENT = re.compile(r"\s*(?:\\?%|\\text\s?\{\s*(?:\\?%|[Pp]ercent(?:age)?)\s*\}|[Pp]ercent|[Pp]ct)$")
_WORDS = re.compile(r"(.*?[\d})])(\s*)((?:(?<=[\s\d})])[A-Za-z/]+\.?(?:\s?\^\s?[23])?\s?)+)$")
_CURRENCY_WORD = re.compile(r"^(?:US\s?|USD\s?|Rs\.?\s?)(?=\d)")


def split_unit(text: str) -> tuple[str, str, bool]:
    r"""A cleaned answer without what follows its value.

    Words that are no known unit go too ("42 apples"), but say nothing; known units of both sides are
    compared.

    Returns:
        The value, the unit in one spelling (empty for none or an unknown one), and whether a percent sign was
        there.

    Example:
        >>> split_unit(r"5 \text{ square centimeters}"), split_unit("50 percent"), split_unit(r"42\text{ apples}")
        (('5', 'cm^2', False), ('50', '', True), ('42', '', False))
    """
    text = _CURRENCY_WORD.sub("", text)
    if match := _PERCENT.search(text):
        return text[: match.start()].rstrip(), "", True
    if (match := _DEGREES.search(text)) and match.start() > 0 and not _TRIGONOMETRY.search(text):
        return text[: match.start()].rstrip(), "degree", False
    unit: list[str] = []
    while (match := _LAST_TEXT.search(text)) and text[: match.start()].strip():
        words = match[1].strip().lower()
        if any(word in _NOT_A_UNIT for word in re.findall(r"[a-z]+", words)):
            break
        unit.insert(0, words + (match[2] or ""))
        text = text[: match.start()].rstrip()
    if not unit and len(text) < 200 and (match := _WORDS.fullmatch(text)) and _is_unit(match[1], match[2], match[3]):
        text, unit = match[1].rstrip(), [match[3]]
    return text, _spelling(" ".join(unit)), False


def _is_unit(value: str, space: str, words: str) -> bool:
    """Whether words behind a value are a unit: known ones, or a single word of three letters or more."""
    listed = [word.lower() for word in re.findall(r"[A-Za-z]+", words)]
    if not listed or any(word in _NOT_A_UNIT for word in listed) or not re.match(r"[-+.\d\\]", value):
        return False
    if all(_singular(word) in _CANONICAL or _singular(word) in _FILLING for word in listed):
        # "5 m" is metres, "5m" may be five times m
        return bool(space) or len(listed[0]) > 1
    return len(listed) == 1 and len(listed[0]) >= 3


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 2 and word.endswith("s") else word


def _spelling(unit: str) -> str:
    """Known units in one spelling, with their power; everything else is empty."""
    text = unit.lower().replace(".", " ").replace(" per ", "/").strip()
    power = ""
    if match := _POWER.search(text):
        power = match[1] or match[2]
        text = text[: match.start()]
    words = [_singular(w) for w in re.findall(r"[a-z/]+", text)]
    for word, value in (("square", "2"), ("squared", "2"), ("sq", "2"), ("cubic", "3"), ("cubed", "3"), ("cu", "3")):
        power = power or (value if word in words else "")
    parts = [w for w in words if w not in _FILLING]
    if len(parts) != 1:
        return ""
    known = [_CANONICAL.get(_singular(part)) for part in parts[0].split("/")]
    if parts[0] in _CANONICAL:
        known = [_CANONICAL[parts[0]]]
    if not all(known):
        return ""
    return "/".join(part or "" for part in known) + (f"^{power}" if power else "")
