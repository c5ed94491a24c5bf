import pytest

from tiny_qwen3 import build_tiny_qwen3


@pytest.fixture(scope="session")
def qwen3_directory(tmp_path_factory):
    return build_tiny_qwen3(tmp_path_factory.mktemp("qwen3"))
