"""An FSDP2 engine for verl that leaves rows with advantage 0 out of the forward and backward pass of an update.

    QAE_SKIP_ZERO_ADVANTAGE=1    VERL_USE_EXTERNAL_MODULES=qae.integrations.verl.load

Exact: such a row's loss and gradient are 0, and the denominators stay those of the whole mini-batch. The number of
completions is passed to verl's loss by the trainer, the number of tokens is counted by the engine over the rows it is
given, so the loss is told the count from before. Terms that act on these rows too (a KL penalty, an entropy bonus) and
losses that look at all tokens (Clip-Cov, KL-Cov) are refused.

Old log-probs and the entropy metric still see every row; actor/pg_clipfrac and actor/ppo_kl are means over the rows
kept. All ranks run as many rows as the rank with the most, as FSDP's collectives must meet; the shortest rows with
advantage 0 fill up.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from verl.utils import tensordict_utils as tu  # pyright: ignore[reportMissingImports]
from verl.utils.device import get_device_id  # pyright: ignore[reportMissingImports]
from verl.workers.engine.base import EngineRegistry  # pyright: ignore[reportMissingImports]
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead  # pyright: ignore[reportMissingImports]

EVERY_TOKEN = ("clip_cov", "kl_cov")
EXACT_MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


class SkippingEngine(FSDPEngineWithLMHead):  # pyright: ignore[reportUntypedBaseClass]
    """verl's FSDP engine; an update's forward and backward pass see only the rows that act."""

    def forward_backward_batch(self, data: Any, loss_function: Callable[..., Any], forward_only: bool = False) -> Any:
        """One mini-batch on this rank; as the base class, without the rows that cannot act."""
        if forward_only or "advantages" not in data.keys():  # a TensorDict iterates over rows
            return super().forward_backward_batch(data, loss_function, forward_only=forward_only)
        reason = inexact(loss_config(loss_function))
        if reason:
            raise ValueError(f"QAE_SKIP_ZERO_ADVANTAGE=1 is refused: {reason}; unset it")
        group, n = self.get_data_parallel_group(), len(data)
        acts, lengths = acting(data["advantages"], data["loss_mask"])
        # verl's own reductions run on the device; a group of NCCL alone has no other.
        counts = torch.tensor([int(acts.sum())], device=get_device_id())
        dist.all_reduce(counts, op=dist.ReduceOp.MAX, group=group)
        micro = 1
        if not tu.get_non_tensor_data(data=data, key="use_dynamic_bsz", default=True):
            micro = int(data["micro_batch_size_per_gpu"])
        kept = min(n, -(-max(1, int(counts)) // micro) * micro)
        tokens = torch.tensor(float(lengths.sum()), dtype=torch.float64, device=get_device_id())
        dist.all_reduce(tokens, group=group)
        chosen = torch.argsort(torch.where(acts, -1, lengths), stable=True)[:kept].sort().values
        some = tu.index_select_tensor_dict(data, chosen)
        output = super().forward_backward_batch(some, _with_tokens(loss_function, int(tokens)), forward_only=False)
        # A list, as verl flattens what each rank reports.
        output["metrics"]["actor/rows_kept_frac"] = [kept / n]
        return output


def acting(advantages: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """[n] whether a row has a token with an advantage; [n] its tokens. Both tensors padded or jagged."""
    if not advantages.is_nested:
        return ((advantages != 0) & (mask != 0)).any(-1), mask.sum(-1)
    rows = list(zip(advantages.unbind(), mask.unbind(), strict=True))
    acts = [bool(((a != 0) & (m != 0)).any()) for a, m in rows]
    return torch.tensor(acts), torch.tensor([int(m.sum()) for _, m in rows])


def inexact(actor: Any) -> str | None:
    """Why leaving out rows with advantage 0 would change this actor's gradient; None if it would not.

    Args:
        actor: verl's section `actor_rollout_ref.actor`.
    """
    if actor.use_kl_loss:
        return "actor.use_kl_loss=True acts on rows with advantage 0 too"
    if actor.entropy_coeff:
        return f"actor.entropy_coeff={actor.entropy_coeff} acts on rows with advantage 0 too"
    mode = actor.policy_loss.loss_mode
    if mode in EVERY_TOKEN:
        return f"actor.policy_loss.loss_mode={mode} chooses among the tokens of all rows"
    if actor.loss_agg_mode not in EXACT_MODES:
        return f"actor.loss_agg_mode={actor.loss_agg_mode} is not one of {', '.join(EXACT_MODES)}"
    if actor.loss_agg_mode == "seq-mean-token-sum-norm" and actor.loss_scale_factor is None:
        return "actor.loss_agg_mode=seq-mean-token-sum-norm divides by the longest row there is; set loss_scale_factor"
    return None


def loss_config(loss_function: Any) -> Any:
    """The actor's section that verl has bound to its loss."""
    config = getattr(loss_function, "keywords", {}).get("config")
    if config is None:
        raise ValueError(
            "QAE_SKIP_ZERO_ADVANTAGE=1: cannot tell which loss this is, so cannot tell whether it is exact"
        )
    return config


def register() -> None:
    """Take the place of verl's FSDP engine. A key with a vendor wins over verl's own, which has none."""
    backends: dict[str, Any] = EngineRegistry._engines["language_model"]
    for vendor in ("nvidia", "cpu"):
        free = [name for name in ("fsdp", "fsdp2") if ("cuda", vendor) not in backends[name]]
        if free:
            EngineRegistry.register(model_type="language_model", backend=free, device="cuda", vendor=vendor)(
                SkippingEngine
            )


def _with_tokens(loss_function: Callable[..., Any], tokens: int) -> Callable[..., Any]:
    @wraps(loss_function)
    def told(*args: Any, data: Any, **kwargs: Any) -> Any:
        tu.assign_non_tensor(data, batch_num_tokens=tokens)
        return loss_function(*args, data=data, **kwargs)

    return told
