"""One update of verl's real FSDP2 engine on processors, as a program: `torchrun verl_update.py TASK`, JSON on stdout.

The environment must have VERL_PLATFORM=cpu, VERL_ENGINE_DEVICE=cuda and VERL_USE_EXTERNAL_MODULES.

skip: gradients with and without the rows of advantage 0, in three loss modes, and the time of each.
same: loss and gradient norm of one fixed batch, by verl and by the local trainer.
"""

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from hydra import compose, initialize_config_module
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.utils.losses import ppo_loss

from qae.engines.verl.overrides import Place, Prompts, command
from qae.integrations.verl.skip import SkippingEngine
from qae.policies import load_policy
from qae.trainer.config import TrainConfig
from qae.trainer.step import Learner, Rows

PROMPT_TOKENS, COMPLETION_TOKENS, VOCABULARY = 6, 40, 22
SMALL = [
    "engine=verl", "engine.platform=cpu", "rollout.prompts=4", "rollout.group_size=8", "update.minibatches=1",
    "update.warmup=0", "update.behaviour_logprobs=sampler", f"rollout.max_tokens={COMPLETION_TOKENS}",
]  # fmt: skip


def config_of(*overrides: str) -> TrainConfig:
    return TrainConfig.load("tiny", *SMALL, f"engine.workers={dist.get_world_size()}", *overrides)


def actor_of(config: TrainConfig) -> Any:
    words = command(config, Place(Path("unused").absolute()), Prompts(raw=True, tokens=PROMPT_TOKENS))[3:]
    with initialize_config_module(config_module="verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=words).actor_rollout_ref


def engine_of(kind: type[Any], settings: Any) -> Any:
    model, actor = (omega_conf_to_dataclass(settings[part]) for part in ("model", "actor"))
    model.model_type = "language_model"
    engine = kind(
        model_config=model, engine_config=actor.engine, optimizer_config=actor.optim, checkpoint_config=actor.checkpoint
    )
    engine.initialize()
    return engine


def rows_of(n: int, acting: float, seed: int, length: int = COMPLETION_TOKENS) -> Rows:
    """Random prompts and completions; behaviour log-probs are the policy's own with noise, so that clips act."""
    made = torch.Generator().manual_seed(seed)

    def tokens(count: int) -> list[int]:
        return torch.randint(3, VOCABULARY, (count,), generator=made).tolist()

    prompts = [tokens(PROMPT_TOKENS) for _ in range(n // 4)]
    lengths = torch.randint(length // 3, length + 1, (n,), generator=made).tolist()
    completions = [tokens(count) for count in lengths]
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    advantages = torch.randn(n, generator=made) * (torch.rand(n, generator=made) < acting)
    noise = 0.4 * torch.randn(mask.shape, generator=made)
    group = [i // 4 for i in range(n)]
    rows = Rows(prompts, group, completions, torch.zeros(mask.shape), advantages, mask)
    learner = Learner(TrainConfig.load("tiny"), load_policy("tiny", dtype="float32", device="cpu"), share_prompts=False)
    exact = learner._logprobs(learner.policy, rows, range(n))
    return Rows(prompts, group, completions, (exact + noise).where(mask, 0.0), advantages, mask)


def tensordict_of(rows: Rows, members: range) -> TensorDict:
    def jagged(values: list[torch.Tensor]) -> torch.Tensor:
        return torch.nested.as_nested_tensor(values, layout=torch.jagged)

    prompts = [torch.tensor(rows.prompts[rows.group[i]]) for i in members]
    responses = [torch.tensor(rows.completions[i]) for i in members]
    ones = [torch.ones(len(r), dtype=torch.int64) for r in responses]
    return TensorDict(
        {
            "input_ids": jagged([torch.cat(pair) for pair in zip(prompts, responses, strict=True)]),
            "position_ids": jagged([torch.arange(len(p) + len(r)) for p, r in zip(prompts, responses, strict=True)]),
            "prompts": jagged(prompts),
            "responses": jagged(responses),
            "response_mask": jagged(ones),
            "loss_mask": jagged(ones),
            "old_log_probs": jagged(
                [rows.behaviour_logprobs[i, : len(r)] for i, r in zip(members, responses, strict=True)]
            ),
            "advantages": jagged(
                [torch.full((len(r),), float(rows.advantages[i])) for i, r in zip(members, responses, strict=True)]
            ),
        },
        batch_size=len(members),
    )


def update(engine: Any, settings: Any, data: TensorDict, *, dynamic: bool = True) -> dict[str, Any]:
    """One forward and backward pass and one optimiser step of verl's engine."""
    actor = omega_conf_to_dataclass(settings.actor)
    data = data.clone()
    tu.assign_non_tensor(
        data, use_remove_padding=False, use_dynamic_bsz=dynamic, max_token_len_per_gpu=512, micro_batch_size_per_gpu=4,
        use_fused_kernels=False, temperature=1.0, global_batch_size=len(data) * dist.get_world_size(),
        calculate_entropy=bool(actor.entropy_coeff),
    )  # fmt: skip
    with engine.train_mode():
        engine.optimizer_zero_grad()
        began = time.perf_counter()
        output = engine.forward_backward_batch(data, partial(ppo_loss, config=actor), forward_only=False)
        seconds = time.perf_counter() - began
        gradient = torch.cat([p.grad.full_tensor().flatten() for p in engine.module.parameters()])
        norm = float(engine.optimizer_step())
    return {
        "gradient": gradient,
        "norm": norm,
        "loss": float(sum(float(x) for x in output["loss"])),
        "seconds": seconds,
        "kept": output["metrics"].get("actor/rows_kept_frac", [1.0])[0],
    }


def skip() -> list[dict[str, Any]]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    rows = rows_of(64, 0.25, seed=5)
    mine = tensordict_of(rows, range(rank * 64 // ranks, (rank + 1) * 64 // ranks))
    found: list[dict[str, Any]] = []
    for reduction in ("token_mean", "sequence_mean", "sequence_sum"):
        settings = actor_of(config_of(f"algorithm.reduction={reduction}", "update.lr=1e-9"))
        for dynamic in (True, False):
            full, some = (
                update(engine_of(kind, settings), settings, mine, dynamic=dynamic)
                for kind in (FSDPEngineWithLMHead, SkippingEngine)
            )
            difference = float((full["gradient"] - some["gradient"]).norm() / full["gradient"].norm())
            found.append(
                {
                    "reduction": reduction,
                    "dynamic": dynamic,
                    "difference": difference,
                    "norm": full["norm"],
                    "kept": some["kept"],
                    "seconds": [full["seconds"], some["seconds"]],
                }
            )
    settings = actor_of(config_of("update.lr=1e-9"))
    engines = [engine_of(kind, settings) for kind in (FSDPEngineWithLMHead, SkippingEngine)]
    times = [[update(engine, settings, mine)["seconds"] for engine in engines] for _ in range(5)]
    found.append({"reduction": "timing", "seconds": [min(pair[i] for pair in times) for i in (0, 1)]})
    return found


def same() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    rows = rows_of(32, 0.6, seed=7)
    for overrides in (
        ("algorithm.preset=dapo", "algorithm.loss.dual_clip=3.0"),
        ("algorithm.preset=grpo",),
        ("algorithm.preset=dr_grpo",),
        ("algorithm.preset=gspo", "algorithm.loss.clip_low=0.03", "algorithm.loss.clip_high=0.04"),
        ("algorithm.preset=dapo", "algorithm.loss=cispo"),
        ("algorithm.preset=grpo", "algorithm.loss=sapo"),
        ("algorithm.preset=dapo", "algorithm.entropy_bonus=0.01"),
    ):
        config = config_of(*overrides)
        local = config.model_copy(update={"engine": TrainConfig().engine})
        policy = load_policy("tiny", dtype="float32", device="cpu")
        stats = Learner(local, policy).learn(rows, step=1)
        settings = actor_of(config)
        theirs = update(engine_of(FSDPEngineWithLMHead, settings), settings, tensordict_of(rows, range(32)))
        found.append(
            {
                "overrides": overrides,
                "loss": [stats.losses[0], theirs["loss"]],
                "norm": [stats.grad_norms[0], theirs["norm"]],
            }
        )
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    report = {"skip": skip, "same": same}[sys.argv[1]]()
    if dist.get_rank() == 0:
        print("report " + json.dumps(report), flush=True)
    dist.destroy_process_group()
