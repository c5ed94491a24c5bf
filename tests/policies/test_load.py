import json
import re
import shutil

import pytest
import torch
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import RepositoryNotFoundError
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    T5Config,
    T5ForConditionalGeneration,
)

from qae.policies import PolicyError, load_policy, save_policy
from qae.policies.quiet import no_progress_bars

IDS = torch.tensor([[5, 9, 14, 33, 60]])


def logits(model, ids=IDS):
    with torch.no_grad():
        return model(ids).logits


def edit_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.fixture
def copy(qwen3_directory, tmp_path):
    return shutil.copytree(qwen3_directory, tmp_path / "copy")


def test_everything_that_ends_a_completion_is_found(qwen3_directory):
    policy = load_policy(str(qwen3_directory), device="cpu")
    assert policy.tokenizer.convert_ids_to_tokens(list(policy.eos_ids)) == ["<|endoftext|>", "<|im_end|>"]
    assert policy.tokenizer.convert_ids_to_tokens(policy.pad_id) == "<|endoftext|>"
    assert policy.context_tokens == 512
    assert not policy.model.training


def test_parameters_are_float32_masters_whatever_the_file_and_the_compute_dtype(copy):
    weights = load_file(copy / "model.safetensors")
    save_file({k: v.bfloat16() for k, v in weights.items()}, copy / "model.safetensors", metadata={"format": "pt"})
    edit_json(copy / "config.json", dtype="bfloat16")
    policy = load_policy(str(copy), dtype="bfloat16", device="cpu")
    assert policy.compute_dtype == torch.bfloat16
    assert {p.dtype for p in policy.model.parameters()} == {torch.float32}


def test_saved_policy_is_what_transformers_loads(qwen3_directory, tmp_path):
    policy = load_policy(str(qwen3_directory), device="cpu")
    with torch.no_grad():
        policy.model.lm_head.weight.add_(0.01)
    save_policy(policy, tmp_path / "saved")
    with no_progress_bars():
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert torch.equal(logits(model), logits(policy.model))
    assert model.generation_config.eos_token_id == policy.model.generation_config.eos_token_id
    message = [{"role": "user", "content": "What is 12 + 7?"}]
    assert tokenizer.apply_chat_template(message) == policy.tokenizer.apply_chat_template(message)


def test_a_damaged_file_is_named(copy):
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(PolicyError, match=rf"^policy.path={copy}: {file} is damaged \(.*\); write or download"):
        load_policy(str(copy), device="cpu")


def test_saving_and_loading_again_changes_no_bit(qwen3_directory, tmp_path):
    policy = load_policy(str(qwen3_directory), device="cpu")
    policy.model.train()
    save_policy(policy, tmp_path / "saved")
    assert policy.model.training
    again = load_policy(str(tmp_path / "saved"), device="cpu")
    states = policy.model.state_dict(), again.model.state_dict()
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert (again.eos_ids, again.pad_id, again.context_tokens) == (policy.eos_ids, policy.pad_id, policy.context_tokens)


def test_no_pad_token_falls_back_to_an_eos(copy):
    edit_json(copy / "tokenizer_config.json", pad_token=None)
    assert load_policy(str(copy), device="cpu").pad_id == 0


@pytest.mark.parametrize("path", ["./nowhere", "/no/such/place", "~/no-such-place-at-all", "a/b/c"])
def test_a_missing_path_is_named_with_the_next_step(path):
    with pytest.raises(PolicyError, match=r"no such directory \(looked for /.*\); give tiny, smollm2, a Hugging"):
        load_policy(path)


def test_a_file_is_no_directory(qwen3_directory):
    path = qwen3_directory / "model.safetensors"
    with pytest.raises(PolicyError, match=rf"{path} is a file; give the directory with config.json"):
        load_policy(str(path))


def test_the_parts_that_are_missing_are_named(copy):
    (copy / "tokenizer.json").unlink()
    (copy / "tokenizer_config.json").unlink()
    with pytest.raises(PolicyError, match=r"no tokenizer in .*copy \(looked for tokenizer.json, tokenizer.model"):
        load_policy(str(copy))
    (copy / "model.safetensors").unlink()
    with pytest.raises(PolicyError, match=r"no weights in .*copy \(looked for \*.safetensors, \*.bin\)"):
        load_policy(str(copy))
    (copy / "config.json").unlink()
    with pytest.raises(PolicyError, match=r"no config.json in .*copy; give the directory that save_pretrained"):
        load_policy(str(copy))


def test_a_run_directory_points_to_its_newest_checkpoint(copy, tmp_path):
    for step in ("000025", "000050"):
        shutil.copytree(copy, tmp_path / "run" / "checkpoints" / step)
    newest = re.escape(str(tmp_path / "run" / "checkpoints" / "000050"))
    with pytest.raises(PolicyError, match=f"this is a run: its newest checkpoint is {newest}"):
        load_policy(str(tmp_path / "run"))


def test_weights_that_would_start_at_random_are_refused(copy):
    weights = load_file(copy / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(PolicyError, match=r"lack 1 tensors of Qwen3ForCausalLM \(first: model.layers.1.mlp.up_pr"):
        load_policy(str(copy))


def test_a_tokenizer_of_another_model_is_refused(copy):
    tokens = json.loads((copy / "tokenizer.json").read_text())
    tokens["added_tokens"] += [
        {**tokens["added_tokens"][0], "id": 340 + i, "content": f"<extra_{i}>"} for i in range(30)
    ]
    (copy / "tokenizer.json").write_text(json.dumps(tokens))
    with pytest.raises(PolicyError, match=r"the tokenizer has \d+ tokens, the model 352; they do not belong"):
        load_policy(str(copy))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: T5ForConditionalGeneration(
                T5Config(vocab_size=99, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
            ),
            "is not a causal language model: Unrecognized configuration class",
        ),
        (
            lambda: BertForMaskedLM(
                BertConfig(
                    vocab_size=400, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
                )
            ),
            "is not a causal language model but BertForMaskedLM",
        ),
    ],
)
def test_other_kinds_of_model_are_refused(make, message, copy, tmp_path):
    with no_progress_bars():
        make().save_pretrained(tmp_path / "other")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(copy / name, tmp_path / "other")
    with pytest.raises(PolicyError, match=message):
        load_policy(str(tmp_path / "other"))


def test_a_hub_id_without_a_network_says_so_at_once(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(PolicyError, match=r"Qwen/Qwen3-0.6B.*cannot be reached.*hf download Qwen/Qwen3-0.6B --local"):
        load_policy("Qwen/Qwen3-0.6B")


def test_a_hub_id_that_does_not_exist(monkeypatch):
    def refuse(self, path, **_):
        raise RepositoryNotFoundError.__new__(RepositoryNotFoundError)

    monkeypatch.setattr(HfApi, "model_info", refuse)
    with pytest.raises(PolicyError, match=r"policy.path=tinny: no directory or run .*tinny and no such model on"):
        load_policy("tinny")


def test_unknown_dtype_and_device_are_refused(qwen3_directory):
    with pytest.raises(PolicyError, match=r"policy.dtype=float16: must be auto, float32 or bfloat16"):
        load_policy(str(qwen3_directory), dtype="float16")
    with pytest.raises(PolicyError, match=r"policy.device=tpu: must be auto, cpu, cuda or mps"):
        load_policy(str(qwen3_directory), device="tpu")
    if not torch.cuda.is_available():
        with pytest.raises(PolicyError, match=r"policy.device=cuda: torch .* sees no cuda device here; use auto"):
            load_policy(str(qwen3_directory), device="cuda")
