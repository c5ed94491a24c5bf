"""Policies for the tests of sampling."""

import pytest

from qae.policies.policy import Policy
from random_policies import MODELS, make_policy


@pytest.fixture(scope="session", params=list(MODELS))
def policy(request) -> Policy:
    return make_policy(request.param)


@pytest.fixture(scope="session")
def llama() -> Policy:
    return make_policy("llama")
