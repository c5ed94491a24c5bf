"""Any Hugging Face causal LM through its own forward pass: correct first, no fused weights."""

import inspect
from typing import Any

import torch
from torch import Tensor

from qae.policies.policy import Policy
from qae.sampling.draw import draw
from qae.sampling.finish import Finish, check_prompts
from qae.sampling.rng import uniform_pairs
from qae.sampling.types import Completion, Progress, SamplingParams
from qae.sampling.weights import base_model


class ForwardEngine:
    """Samples with the model's own forward pass and cache.

    Prompts of one length form a batch, so there is no padding: nothing depends on how a model treats it (learned or
    ALiBi positions, sliding windows, recurrent states). Finished rows leave the batch.

    Args:
        policy: any causal language model.
        max_rows: completions decoded at the same time.
    """

    def __init__(self, policy: Policy, *, max_rows: int = 64) -> None:
        if max_rows < 1:
            raise ValueError(f"max_rows is {max_rows}: it must be at least 1")
        self._policy = policy
        self._max_rows = max_rows
        parameters = inspect.signature(base_model(policy.model).forward).parameters
        # transformers renamed the argument and the output between 5.5 and 5.24.
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        # Of a prompt only the last logits count: all of them would be [q s v].
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}

    def refresh(self) -> None:
        """Nothing to copy: the policy itself is run."""

    @torch.no_grad()
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
        finish = Finish(policy.tokenizer, policy.eos_ids, params)
        done: dict[int, Completion] = {}
        rows = sorted(range(len(row_prompt)), key=lambda row: (len(prompts[row_prompt[row]]), row_prompt[row]))
        tokens_done = 0
        training = {module: module.training for module in policy.model.modules()}
        policy.model.eval()
        try:
            while rows:
                length = len(prompts[row_prompt[rows[0]]])
                batch = [row for row in rows[: self._max_rows] if len(prompts[row_prompt[row]]) == length]
                rows = rows[len(batch) :]
                for row, completion in self._batch(prompts, row_prompt, row_keys, params, finish, batch):
                    done[row] = completion
                    tokens_done += len(completion.token_ids)
                if progress is not None:
                    progress(len(done), len(row_prompt), tokens_done)
        finally:
            for module, flag in training.items():
                module.training = flag
        return [done[row] for row in range(len(row_prompt))]

    def _batch(
        self,
        prompts: list[list[int]],
        row_prompt: list[int],
        row_keys: list[int],
        params: SamplingParams,
        finish: Finish,
        rows: list[int],
    ) -> list[tuple[int, Completion]]:
        device = self._policy.device
        distinct = sorted({row_prompt[row] for row in rows})
        of_row = torch.tensor([distinct.index(row_prompt[row]) for row in rows], device=device)
        logits, cache = self._forward(torch.tensor([prompts[i] for i in distinct], device=device), None)
        logits = logits[of_row]
        cache.batch_select_indices(of_row)
        tokens: dict[int, list[int]] = {row: [] for row in rows}
        logprobs: dict[int, list[Tensor]] = {row: [] for row in rows}
        entropies: dict[int, list[Tensor]] = {row: [] for row in rows}
        active = list(rows)
        position = 0
        while True:
            keys = torch.tensor([row_keys[row] for row in active], dtype=torch.int64, device=device)
            drawn = draw(logits, uniform_pairs(keys, position), temperature=params.temperature, top_p=params.top_p)
            position += 1
            for row, token, lp, h in zip(
                active, drawn.tokens.tolist(), drawn.logprobs.cpu(), drawn.entropies.cpu(), strict=True
            ):
                tokens[row].append(token)
                logprobs[row].append(lp)
                entropies[row].append(h)
            keep = [i for i, row in enumerate(active) if not finish.ended(tokens[row])]
            if not keep:
                break
            new = drawn.tokens
            if len(keep) < len(active):
                index = torch.tensor(keep, device=device)
                cache.batch_select_indices(index)
                new = new[index]
                active = [active[i] for i in keep]
            logits, cache = self._forward(new[:, None], cache)
        return [
            (
                row,
                finish.completion(
                    row_prompt[row], tokens[row], torch.stack(logprobs[row]), torch.stack(entropies[row])
                ),
            )
            for row in rows
        ]

    def _forward(self, ids: Tensor, cache: Any) -> tuple[Tensor, Any]:
        policy = self._policy
        lower = policy.compute_dtype if policy.compute_dtype != torch.float32 else None
        with torch.autocast(policy.device.type, dtype=lower, enabled=lower is not None):
            out: Any = policy.model(input_ids=ids, use_cache=True, **{self._cache_name: cache}, **self._last_only)
        made = out[self._cache_name] if self._cache_name in out else cache
        return out.logits[:, -1].float().contiguous(), made
