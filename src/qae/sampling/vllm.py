"""vLLM as the sampler. Experimental: written against vLLM 0.22 and later, tested here against a stand-in only."""

import os
from typing import Any

import torch
from torch import Tensor

from qae.logprobs import token_logprobs
from qae.policies.lora import merged_state_dict
from qae.policies.policy import Policy
from qae.policies.source import resolve_source
from qae.sampling.finish import Finish, check_prompts
from qae.sampling.types import Completion, Progress, SamplingParams

_FORWARD_TOKENS = 8192


class VllmEngine:
    """Samples with vLLM in this process; the policy's weights are handed over at each `refresh`.

    Token ids go in and come back as ids, never through text. Log-probs are vLLM's own, at the sampling temperature:
    those of the behaviour, with its rounding, so the trainer's comparison with its own shows the mismatch. vLLM does
    not give exact entropies: they come from one forward pass of the policy over the finished completions.

    Every row is a request of its own with its own seed, so a row's tokens do not hang on its neighbours, but they are
    other tokens than the built-in engine's.

    Args:
        policy: on a CUDA device.
        llm: a ready `vllm.LLM`; None starts one with `options`.
        **options: for `vllm.LLM`, such as gpu_memory_utilization (0.4 here: the trainer needs the rest).

    Raises:
        ImportError: without vLLM.
        ValueError: on a CPU, where vLLM repacks weights once and cannot take new ones.
    """

    def __init__(self, policy: Policy, llm: Any = None, **options: Any) -> None:
        self._policy = policy
        self._llm = _start(policy, options) if llm is None else llm

    def refresh(self) -> None:
        """Hand over the policy's current weights (adapters merged) and forget cached prefixes."""
        weights = list(merged_state_dict(self._policy.model).items())
        self._llm.apply_model(lambda model: model.load_weights(weights) and None)
        self._llm.reset_prefix_cache()

    def generate(
        self,
        prompts: list[list[int]],
        row_prompt: list[int],
        row_keys: list[int],
        params: SamplingParams,
        progress: Progress | None = None,
    ) -> list[Completion]:
        """One completion per row, in row order. See `qae.sampling.types.Engine`."""
        import vllm  # pyright: ignore[reportMissingImports]

        policy = self._policy
        check_prompts(prompts, row_prompt, row_keys, policy.context_tokens, params)
        finish = Finish(policy.tokenizer, policy.eos_ids, params)
        requests = [{"prompt_token_ids": prompts[index]} for index in row_prompt]
        sampling = [
            vllm.SamplingParams(
                max_tokens=params.max_tokens,
                temperature=params.temperature,
                top_p=params.top_p,
                top_k=0,
                seed=key & (2**63 - 1),
                stop=list(params.stop),
                stop_token_ids=sorted(finish.end_ids),
                ignore_eos=True,  # what ends a completion is in stop_token_ids
                logprobs=0,  # of the sampled token only
                skip_special_tokens=True,
                spaces_between_special_tokens=False,
            )
            for key in row_keys
        ]
        outputs = self._llm.generate(requests, sampling, use_tqdm=False)
        ids = [list(output.outputs[0].token_ids) for output in outputs]
        logprobs = [
            torch.tensor(
                [place[token].logprob for token, place in zip(tokens, output.outputs[0].logprobs, strict=True)]
            )
            for tokens, output in zip(ids, outputs, strict=True)
        ]
        if progress is not None:
            progress(len(ids), len(ids), sum(map(len, ids)))
        entropies = self._entropies([prompts[index] for index in row_prompt], ids, params.temperature or 1.0)
        rows = zip(row_prompt, ids, logprobs, entropies, strict=True)
        return [finish.completion(index, tokens, lp, h) for index, tokens, lp, h in rows]

    @torch.no_grad()
    def _entropies(self, prompts: list[list[int]], ids: list[list[int]], temperature: float) -> list[Tensor]:
        """Exact entropies of the policy's distributions at every completion token."""
        policy = self._policy
        decoder: Any = policy.model.get_decoder()
        head: Any = policy.model.get_output_embeddings()
        lower = policy.compute_dtype != torch.float32
        found: list[Tensor] = [torch.empty(0)] * len(ids)
        waiting = sorted(range(len(ids)), key=lambda row: len(prompts[row]) + len(ids[row]))
        while waiting:
            longest = len(prompts[waiting[-1]]) + len(ids[waiting[-1]])
            count = max(1, _FORWARD_TOKENS // longest)
            batch, waiting = waiting[-count:], waiting[:-count]
            tokens = [prompts[row] + ids[row] for row in batch]
            padded = torch.tensor([t + [policy.pad_id] * (longest - len(t)) for t in tokens], device=policy.device)
            mask = torch.tensor([[1] * len(t) + [0] * (longest - len(t)) for t in tokens], device=policy.device)
            with torch.autocast(policy.device.type, policy.compute_dtype, enabled=lower):
                hidden = decoder(input_ids=padded, attention_mask=mask, use_cache=False).last_hidden_state
            for place, row in enumerate(batch):
                start = len(prompts[row]) - 1
                at = hidden[place, start : start + len(ids[row])]
                targets = torch.tensor(ids[row], device=policy.device)
                _, entropies = token_logprobs(at, head.weight, targets, temperature=temperature, bias=head.bias)
                found[row] = entropies.cpu()
        return found


def _start(policy: Policy, options: dict[str, Any]) -> Any:
    if policy.device.type != "cuda":
        raise ValueError(
            f"rollout.engine=vllm needs the policy on a CUDA device, not on {policy.device.type}: elsewhere vLLM "
            "cannot take new weights after each step. Use rollout.engine=builtin"
        )
    # The engine's core stays in this process: weights are handed over as tensors, not serialised.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    try:
        import vllm  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError("rollout.engine=vllm needs vLLM: pip install 'qae[vllm]'") from error
    defaults = {
        "dtype": str(policy.compute_dtype).removeprefix("torch."),
        "max_model_len": policy.context_tokens,
        "load_format": "dummy",  # refresh() brings the weights
        "gpu_memory_utilization": 0.4,
        "logprobs_mode": "processed_logprobs",  # after the temperature
        "enable_prefix_caching": True,
    }
    source = str(resolve_source(policy.name))
    return vllm.LLM(model=source, tokenizer=source, **(defaults | options))
