import pytest

from tiny_qwen3 import tiny_qwen3_tokenizer


@pytest.fixture(scope="session")
def qwen3():
    """A byte-level tokenizer with a chat template."""
    return tiny_qwen3_tokenizer()
