import sys
from random import Random
from types import ModuleType

import pytest

from tiny_qwen3 import tiny_qwen3_tokenizer


@pytest.fixture(scope="session")
def qwen3():
    """A byte-level tokenizer with a chat template."""
    return tiny_qwen3_tokenizer()


class ChainSum:
    """The interface of a reasoning-gym data set."""

    def __init__(self, seed, size, min_terms=2):
        assert min_terms > 0, "min_terms must be positive"
        self.seed, self.size, self.terms = seed, size, min_terms

    def __getitem__(self, index):
        draw = Random(self.seed + index)
        terms = [draw.randint(1, 99) for _ in range(self.terms)]
        return {"question": " + ".join(map(str, terms)) + " =", "answer": str(sum(terms)), "metadata": {}}

    def score_answer(self, answer, entry):
        return 1.0 if answer == entry["answer"] else 0.01


@pytest.fixture
def library(monkeypatch):
    gym, factory = ModuleType("reasoning_gym"), ModuleType("reasoning_gym.factory")
    factory.DATASETS = {"chain_sum": ChainSum, "bf": ChainSum}
    gym.create_dataset = lambda name, **settings: factory.DATASETS[name](**settings)
    monkeypatch.setitem(sys.modules, "reasoning_gym", gym)
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", factory)
