"""A scripted task and sampler, for tests of what lies between them."""

import torch

from qae.rewards import Grade
from qae.sampling import Completion
from qae.tasks import Item


class ScriptedTask:
    """Item i is the text `i`; `outcomes(i)` gives the G outcomes of its completions, in order."""

    name = "scripted"
    stop = ("\n",)
    size = None

    def __init__(self, outcomes, levels=lambda i: ""):
        self.outcomes, self.levels = outcomes, levels
        self.asked = []

    def train_item(self, i):
        self.asked.append(i)
        return Item(f"item-{i}", str(i), "", self.levels(i))

    def heldout_items(self, count):
        return [Item(f"held-{i}", str(1000 + i), "", "") for i in range(count)]

    def encode(self, item, tokenizer):
        return [3 + int(digit) for digit in str(item.prompt)]

    def grade(self, pairs):
        seen = {}
        grades = []
        for item, _ in pairs:
            j = seen[item.id] = seen.get(item.id, -1) + 1
            outcome = self.outcomes(int(str(item.prompt)))[j]
            grades.append(
                Grade(outcome, outcome, "unusable_gold" if outcome is None else "correct" if outcome else "wrong")
            )
        return grades


class ScriptedEngine:
    """Completions of `length(row)` tokens; the text is the row's key, so nothing depends on order."""

    def __init__(self, length=lambda row: 3, max_tokens=8):
        self.length, self.max_tokens, self.calls = length, max_tokens, []

    def refresh(self):
        pass

    def generate(self, prompts, row_prompt, row_keys, params, progress=None):
        self.calls.append((prompts, row_prompt, row_keys, params))
        completions = []
        for row, (prompt, key) in enumerate(zip(row_prompt, row_keys, strict=True)):
            t = self.length(row)
            zeros = torch.zeros(t)
            completions.append(Completion(prompt, [4] * t, str(key), zeros - 1, zeros + 0.5, t >= self.max_tokens))
        return completions


class TextTask:
    """Item i is the text of i; a completion is right if `is_right(text)`."""

    name = "text"
    stop = ()
    size = None

    def __init__(self, is_right=lambda text: "a" in text or "7" in text):
        self.is_right = is_right

    def train_item(self, i):
        return Item(f"item-{i}", f"{i}+{i % 7}", "", "odd" if i % 2 else "even")

    def heldout_items(self, count):
        return [Item(f"held-{i}", f"{i}*{i}", "", "") for i in range(count)]

    def encode(self, item, tokenizer):
        return tokenizer(item.prompt)["input_ids"]

    def grade(self, pairs):
        return [Grade(*(2 * [float(self.is_right(text))]), "graded") for _, text in pairs]
