import time

import pytest
import torch

from qae.policies import device
from qae.policies.device import bfloat16_speedup, resolve_compute_dtype, resolve_device

CPU = torch.device("cpu")


def test_auto_device_is_one_that_is_there():
    torch.zeros(1, device=resolve_device("auto"))


@pytest.mark.parametrize(
    ("speedup", "dtype"), [(1.0, torch.float32), (1.2, torch.float32), (1.3, torch.bfloat16), (4.0, torch.bfloat16)]
)
def test_auto_takes_bfloat16_only_where_it_is_clearly_faster(monkeypatch, speedup, dtype):
    monkeypatch.setattr(device, "bfloat16_speedup", lambda width: speedup)
    assert resolve_compute_dtype("auto", CPU, width=576) == dtype


def test_a_narrow_model_is_float32_without_a_measurement(monkeypatch):
    monkeypatch.delattr(device, "bfloat16_speedup")
    assert resolve_compute_dtype("auto", CPU, width=128) == torch.float32


def test_an_explicit_dtype_is_taken_without_a_measurement(monkeypatch):
    monkeypatch.delattr(device, "bfloat16_speedup")
    assert resolve_compute_dtype("bfloat16", CPU, width=576) == torch.bfloat16
    assert resolve_compute_dtype("float32", CPU, width=576) == torch.float32


def test_the_probe_measures_once_and_is_cheap():
    bfloat16_speedup.cache_clear()
    started = time.process_time()
    first = bfloat16_speedup(512)
    assert time.process_time() - started < 2
    assert first > 0
    assert bfloat16_speedup(512) == first
    assert bfloat16_speedup.cache_info().misses == 1
