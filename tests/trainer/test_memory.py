"""Peaks of phases: one does not carry over into the next, and the run's own peak survives the resets."""

import sys

import pytest
import torch

from qae.trainer import memory

CPU = torch.device("cpu")
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's high-water mark is read from /proc")
BIG = 64 * 2**20


def fill(size: int) -> None:
    torch.ones(size, dtype=torch.uint8)


@linux_only
def test_a_phase_sees_its_own_peak_only():
    with memory.phase_peak(CPU) as large:
        fill(4 * BIG)
    with memory.phase_peak(CPU) as small:
        fill(BIG)
    assert large.mb is not None
    assert small.mb is not None
    assert 150 < large.mb - small.mb < 220


@linux_only
def test_the_peak_of_the_run_survives_a_reset():
    with memory.phase_peak(CPU) as phase:
        fill(4 * BIG)
    before = memory.peak_memory_mb()
    assert phase.mb is not None
    assert before >= phase.mb - 1
    with memory.phase_peak(CPU):
        pass
    assert memory.peak_memory_mb() >= before


@linux_only
def test_the_peak_is_told_of_a_phase_that_fails():
    with pytest.raises(ZeroDivisionError), memory.phase_peak(CPU) as peak:
        raise ZeroDivisionError
    assert peak.mb is not None


@linux_only
def test_resident_memory_and_an_unknown_field():
    assert 0 < memory.resident_mb() <= memory.resident_mb("VmHWM")
    with pytest.raises(ValueError, match="no field 'VmNone'; choose VmRSS or VmHWM"):
        memory.resident_mb("VmNone")


@pytest.mark.parametrize("content", [None, ""])
def test_nothing_is_said_where_the_kernel_cannot_be_asked(monkeypatch, tmp_path, content):
    where = tmp_path / "clear_refs"
    if content is not None:
        where.mkdir()  # writing to it fails, as where a sandbox forbids it
    monkeypatch.setattr(memory, "_CLEAR", where)
    with memory.phase_peak(CPU) as peak:
        fill(10)
    assert peak.mb is None
    assert memory.peak_memory_mb() > 0


def test_on_cuda_the_allocator_is_asked(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: asked.append(device))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 * 2**20)
    with memory.phase_peak(torch.device("cuda", 1)) as peak:
        pass
    assert asked == [torch.device("cuda", 1)]
    assert peak.mb == 3
