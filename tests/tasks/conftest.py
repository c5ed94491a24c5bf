import sys

import pytest

from qae.rewards.gym import make_dataset
from tiny_qwen3 import tiny_qwen3_tokenizer

LIBRARY = """
from random import Random

class ChainSum:
    def __init__(self, seed, size, min_terms=2):
        assert min_terms > 0, "min_terms must be positive"
        self.seed, self.size, self.terms = seed, size, min_terms

    def __getitem__(self, index):
        draw = Random(self.seed + index + hash("as some tasks do") % 1000)
        terms = [draw.randint(1, 99) for _ in range(self.terms)]
        return {"question": " + ".join(map(str, terms)) + " =", "answer": str(sum(terms)), "metadata": {}}

    def score_answer(self, answer, entry):
        return 1.0 if answer == entry["answer"] else 0.01

class Evaluates(ChainSum):
    def score_answer(self, answer, entry):
        return float(eval(answer) == int(entry["answer"]))

DATASETS = {"bf": Evaluates, "chain_sum": ChainSum}
"""


@pytest.fixture(scope="session")
def qwen3():
    """A byte-level tokenizer with a chat template."""
    return tiny_qwen3_tokenizer()


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A package with reasoning-gym's interface, which other processes find too."""
    package = tmp_path / "stand_in" / "reasoning_gym"
    package.mkdir(parents=True)
    (package / "factory.py").write_text(LIBRARY)
    (package / "__init__.py").write_text(
        "from .factory import DATASETS\ndef create_dataset(name, **settings):\n    return DATASETS[name](**settings)\n"
    )
    monkeypatch.syspath_prepend(package.parent)
    for name in ("reasoning_gym", "reasoning_gym.factory"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    make_dataset.cache_clear()
    yield
    make_dataset.cache_clear()
    for name in ("reasoning_gym", "reasoning_gym.factory"):
        sys.modules.pop(name, None)
