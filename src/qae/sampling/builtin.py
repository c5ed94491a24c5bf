"""The built-in engine: fused copies of the policy's weights, and one `Batch` for each call."""

import torch

from qae.policies.policy import Policy
from qae.sampling.batch import Batch
from qae.sampling.decoder import Decoder
from qae.sampling.finish import Finish, check_prompts
from qae.sampling.types import Completion, Progress, SamplingParams
from qae.sampling.weights import fuse


class BuiltinEngine:
    """Samples from a Llama-shaped policy with fused copies of its weights.

    Args:
        policy: for which `why_not_fused(policy.model)` is None.
        max_rows: completions decoded at the same time; None: as many as the memory for keys and values holds,
            256 at most on a CPU and 1024 elsewhere.
        cache_gb: that memory in 2^30 bytes; None: 4, or a quarter of a GPU's memory. Never what happens to be free:
            the number of rows changes how sums are rounded, and a run has to be repeatable.
        prefill_tokens: prompt tokens computed in one forward pass.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        max_rows: int | None = None,
        cache_gb: float | None = None,
        prefill_tokens: int = 4096,
    ) -> None:
        if max_rows is not None and max_rows < 1:
            raise ValueError(f"max_rows is {max_rows}: it must be at least 1")
        self._policy = policy
        self._max_rows = max_rows
        self._cache_bytes = 2**30 * (_cache_gb(policy.device) if cache_gb is None else cache_gb)
        self._prefill_tokens = prefill_tokens
        self._decoder: Decoder | None = None

    def refresh(self) -> None:
        """Copy the policy's current weights."""
        policy = self._policy
        self._decoder = None  # the old copy makes room for the new one
        weights = fuse(policy.model, policy.compute_dtype)
        self._decoder = Decoder(weights, dtype=policy.compute_dtype, context_tokens=policy.context_tokens)

    def generate(
        self,
        prompts: list[list[int]],
        row_prompt: list[int],
        row_keys: list[int],
        params: SamplingParams,
        progress: Progress | None = None,
    ) -> list[Completion]:
        """One completion per row, in row order. See `qae.sampling.types.Engine`."""
        policy = self._policy
        check_prompts(prompts, row_prompt, row_keys, policy.context_tokens, params)
        if not row_prompt:
            return []
        if self._decoder is None:
            self.refresh()
            assert self._decoder is not None
        batch = Batch(
            self._decoder,
            prompts,
            row_prompt,
            row_keys,
            params,
            Finish(policy.tokenizer, policy.eos_ids, params),
            slots=self._rows(prompts, row_prompt, params),
            prefill_tokens=self._prefill_tokens,
        )
        batch.run(progress)
        return batch.completions()

    def _rows(self, prompts: list[list[int]], row_prompt: list[int], params: SamplingParams) -> int:
        if self._max_rows is not None:
            return min(self._max_rows, len(row_prompt))
        assert self._decoder is not None
        w = self._decoder.weights
        tokens = max(len(prompts[i]) for i in row_prompt) + params.max_tokens
        per_row = 2 * len(w.layers) * w.key_heads * w.head_dim * tokens * self._decoder.dtype.itemsize
        most = 256 if self._decoder.device.type == "cpu" else 1024
        return max(1, min(most, len(row_prompt), int(self._cache_bytes // per_row)))


def _cache_gb(device: torch.device) -> float:
    if device.type != "cuda":
        return 4.0
    return torch.cuda.get_device_properties(device).total_memory / 2**30 / 4
