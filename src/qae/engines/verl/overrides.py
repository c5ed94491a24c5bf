"""A run's configuration in verl's words: overrides of its Hydra configuration `ppo_trainer`, and environment."""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, cast

from qae.advantages import ADVANTAGES
from qae.engines.verl.refusals import skips, warmup_steps
from qae.policies.source import resolve_source
from qae.trainer.config import TrainConfig

PROGRAM = "verl.trainer.main_ppo"
PLUGIN = "qae.integrations.verl.load"
NO_DUAL_CLIP = 1e9  # verl bounds ratios at e^20 < 1e9, so this bound never acts
REDUCTIONS = {
    "token_mean": "token-mean",
    "sequence_mean": "seq-mean-token-mean",
    "sequence_sum": "seq-mean-token-sum",
    "sequence_sum_norm": "seq-mean-token-sum-norm",
}
LOSSES = {
    "clip": "vanilla", "sequence": "gspo", "clip_cov": "clip_cov", "kl_cov": "kl_cov", "cispo": "cispo", "sapo": "sapo",
}  # fmt: skip
# Our name of a constant of a loss -> verl's.
CONSTANTS = {
    "clip_low": "clip_ratio_low",
    "clip_high": "clip_ratio_high",
    "cov_low": "policy_loss.clip_cov_lb",
    "cov_high": "policy_loss.clip_cov_ub",
    "kl_coef": "policy_loss.ppo_kl_coef",
    "tau_positive": "tau_pos",
    "tau_negative": "tau_neg",
}
_BARE = re.compile(r"[A-Za-z/][\w./:-]*")  # what Hydra's grammar takes as a text without quotes
ESTIMATORS = {"quantile": "qae", "leave_one_out": "qae_rloo", "leave_one_out_quantile": "qae_loo"}
# A message's text as it is, behind what the tokenizer puts in front of any text.
RAW_TEMPLATE = "{{%- for message in messages %}}{{{{ {prefix}message['content'] }}}}{{%- endfor %}}"


@dataclass(frozen=True)
class Place:
    """Where a run's verl side keeps its files.

    Attributes:
        run_dir: of the run, absolute.
    """

    run_dir: Path

    @property
    def root(self) -> Path:
        """Everything of verl's lies here."""
        return self.run_dir / "verl"

    @property
    def train(self) -> Path:
        """Training prompts."""
        return self.root / "train.parquet"

    @property
    def heldout(self) -> Path:
        """Held-out prompts."""
        return self.root / "heldout.parquet"

    @property
    def task(self) -> Path:
        """What the reward function needs to grade."""
        return self.root / "task.json"

    @property
    def rollouts(self) -> Path:
        """Verl's dump of each batch."""
        return self.root / "rollouts"

    @property
    def validations(self) -> Path:
        """Verl's dump of each evaluation."""
        return self.root / "validations"

    @property
    def checkpoints(self) -> Path:
        """Verl's checkpoints, one directory a step."""
        return self.root / "checkpoints"

    @property
    def metrics(self) -> Path:
        """Verl's file logger; it truncates, so what a session left is moved away before the next."""
        return self.root / "metrics.jsonl"

    @property
    def log(self) -> Path:
        """All that verl and Ray print."""
        return self.root / "log.txt"


@dataclass(frozen=True)
class Prompts:
    """What the prompts are like, as far as verl must be told.

    Attributes:
        raw: plain text, not chat messages.
        prefix: text of the special tokens that the tokenizer puts before raw text.
        tokens: of the longest one.
        template_kwargs: of the chat template.
        notes: what the task has to say of its data.
    """

    raw: bool
    tokens: int
    prefix: str = ""
    template_kwargs: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()


def command(config: TrainConfig, place: Place, prompts: Prompts, *, python: str = "python") -> list[str]:
    """The whole command, environment apart."""
    given = [f"{key}={literal(value)}" for key, value in overrides(config, place, prompts).items()]
    return [python, "-m", PROGRAM, *given, *config.engine.overrides]


def shell(config: TrainConfig, place: Place, prompts: Prompts, *, python: str = "python") -> str:
    """The command as one would type it, one override a line."""
    env = " ".join(f"{key}={shlex.quote(value)}" for key, value in environment(config, place).items())
    head, *rest = [shlex.quote(word) for word in command(config, place, prompts, python=python)]
    lines = [f"{env} \\", f"{head} {' '.join(rest[:2])} \\", *(f"  {word} \\" for word in rest[2:])]
    return "\n".join(lines).removesuffix(" \\")


def environment(config: TrainConfig, place: Place) -> dict[str, str]:
    """What every process of the run must have in its environment; also sent to Ray's workers by the command."""
    env = {
        "VERL_USE_EXTERNAL_MODULES": PLUGIN,
        "VERL_FILE_LOGGER_PATH": str(place.metrics),
        "TOKENIZERS_PARALLELISM": "false",
        "HYDRA_FULL_ERROR": "1",
    }
    if skips(config):
        env["QAE_SKIP_ZERO_ADVANTAGE"] = "1"
    if config.engine.platform == "cpu":
        env |= {
            "VERL_PLATFORM": "cpu",
            "VERL_ENGINE_DEVICE": "cuda",
            "OMP_NUM_THREADS": "1",
            # Idle workers would be of no use: verl's have an environment of their own.
            "RAY_prestart_worker_first_driver": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "TQ_NUM_THREADS": "1",
        }
    return env


def overrides(config: TrainConfig, place: Place, prompts: Prompts) -> dict[str, Any]:
    """Verl's key -> value; a leading + is Hydra's word for a key that verl's own configuration does not have.

    Args:
        config: the run, already held against `refuse`.
        place: its files.
        prompts: what its prompts are like.
    """
    parts = (
        _algorithm(config), _data(config, place, prompts), _model(config, prompts), _actor(config, prompts),
        _rollout(config), _reward(config, place), _trainer(config, place), _ray(config, place),
    )  # fmt: skip
    merged: dict[str, Any] = {}
    for part in parts:
        merged |= dict(part)
    return merged | (dict(_cpu(config)) if config.engine.platform == "cpu" else {})


def _algorithm(config: TrainConfig) -> Iterator[tuple[str, Any]]:
    advantage, algorithm = config.algorithm.advantage, config.algorithm
    yield "algorithm.adv_estimator", estimator(config)
    taken = signature(ADVANTAGES[advantage.name]).parameters if advantage.name in ADVANTAGES else {}
    for option in ("k", "divisor", "eps", "flat_tolerance"):
        if option in taken:
            yield f"+algorithm.qae_{option}", getattr(advantage, option)
    yield "algorithm.norm_adv_by_std_in_grpo", advantage.scale != "none"
    if advantage.scale == "mean":
        yield "+algorithm.qae_scale", "mean"
    yield "+algorithm.qae_on", advantage.on
    yield "+algorithm.qae_cut", config.update.cut
    yield "algorithm.use_kl_in_reward", False
    dynamic = algorithm.dynamic_sampling.enabled
    yield "algorithm.filter_groups.enable", dynamic
    if dynamic:
        yield "algorithm.filter_groups.metric", "acc"
        yield "algorithm.filter_groups.max_inflight_gen_batches", 1
    if config.update.behaviour_logprobs == "sampler":
        yield "algorithm.rollout_correction.bypass_mode", True
    if config.update.importance_cap is not None:
        yield "algorithm.rollout_correction.rollout_is", "token"
        yield "algorithm.rollout_correction.rollout_is_threshold", config.update.importance_cap


def estimator(config: TrainConfig) -> str:
    """Verl's name of the advantage estimator."""
    advantage = config.algorithm.advantage
    if advantage.name == "quantile" and advantage.method == "linear":
        return "qae_linear"
    return ESTIMATORS.get(advantage.name, f"qae_{advantage.name}")


def _data(config: TrainConfig, place: Place, prompts: Prompts) -> Iterator[tuple[str, Any]]:
    yield "data.train_files", str(place.train)
    yield "data.val_files", str(place.heldout)
    yield "data.train_batch_size", config.rollout.prompts
    yield "data.max_prompt_length", prompts.tokens
    yield "data.max_response_length", config.rollout.max_tokens
    yield "data.filter_overlong_prompts", False
    yield "data.shuffle", config.task.name == "data"  # a generated task is in the order of the local engine already
    yield "data.validation_shuffle", False
    yield "data.seed", config.seed
    for key, value in (prompts.template_kwargs or {}).items():
        yield f"+data.apply_chat_template_kwargs.{key}", value


def _model(config: TrainConfig, prompts: Prompts) -> Iterator[tuple[str, Any]]:
    model = "actor_rollout_ref.model"
    path = config.policy.path
    local = path in ("tiny", "smollm2") or Path(path).expanduser().is_dir()
    yield f"{model}.path", resolve_source(path) if local else path
    yield f"{model}.use_remove_padding", True
    yield f"{model}.enable_gradient_checkpointing", config.update.checkpoint_activations
    if prompts.raw:
        prefix = f"'{prompts.prefix}' + " if prompts.prefix else ""
        yield f"{model}.custom_chat_template", RAW_TEMPLATE.format(prefix=prefix)
    lora = config.policy.lora
    if lora is not None:
        yield f"{model}.lora_rank", lora.get("r", 8)
        yield f"{model}.lora_alpha", lora.get("lora_alpha", 8)
        if "target_modules" in lora:
            yield f"{model}.target_modules", lora["target_modules"]


def _actor(config: TrainConfig, prompts: Prompts) -> Iterator[tuple[str, Any]]:
    actor, update, algorithm = "actor_rollout_ref.actor", config.update, config.algorithm
    yield f"{actor}.strategy", "fsdp2"
    yield f"{actor}.ppo_mini_batch_size", config.rollout.prompts // update.minibatches
    yield f"{actor}.ppo_epochs", update.epochs
    yield f"{actor}.shuffle", False
    yield f"{actor}.data_loader_seed", config.seed
    yield f"{actor}.use_dynamic_bsz", True
    longest = prompts.tokens + config.rollout.max_tokens
    yield f"{actor}.ppo_max_token_len_per_gpu", max(update.tokens_per_microbatch, longest)
    yield f"{actor}.fsdp_config.seed", config.seed
    yield f"{actor}.optim.lr", update.lr
    yield f"{actor}.optim.lr_warmup_steps", warmup_steps(config)
    yield f"{actor}.optim.lr_scheduler_type", update.schedule
    yield f"{actor}.optim.betas", list(update.betas)
    yield f"{actor}.optim.weight_decay", update.weight_decay
    yield f"{actor}.optim.clip_grad", update.max_grad_norm
    yield f"{actor}.grad_clip", update.max_grad_norm
    yield from ((f"{actor}.{key}", value) for key, value in _loss(config))
    yield f"{actor}.loss_agg_mode", REDUCTIONS[algorithm.reduction]
    if algorithm.reduction == "sequence_sum_norm":
        yield f"{actor}.loss_scale_factor", config.rollout.max_tokens
    yield f"{actor}.entropy_coeff", algorithm.entropy_bonus
    yield f"{actor}.use_kl_loss", algorithm.kl > 0
    if algorithm.kl:
        yield f"{actor}.kl_loss_coef", algorithm.kl
        yield f"{actor}.kl_loss_type", "low_var_kl"
    yield f"{actor}.checkpoint.save_contents", ["model", "optimizer", "extra", "hf_model"]
    if config.policy.dtype == "float32":
        for part in ("param", "reduce", "buffer"):
            yield f"+{actor}.fsdp_config.mixed_precision.{part}_dtype", "fp32"


def _loss(config: TrainConfig) -> Iterator[tuple[str, Any]]:
    loss = config.algorithm.loss
    yield "policy_loss.loss_mode", LOSSES[loss.name]
    for ours, theirs in CONSTANTS.items():
        if getattr(loss, ours) is not None:
            yield theirs, getattr(loss, ours)
    if loss.select_frac is not None:
        name = "clip_cov_ratio" if loss.name == "clip_cov" else "kl_cov_ratio"
        yield f"policy_loss.{name}", loss.select_frac
    yield "clip_ratio_c", NO_DUAL_CLIP if loss.dual_clip is None else loss.dual_clip


def _rollout(config: TrainConfig) -> Iterator[tuple[str, Any]]:
    rollout, engine, evaluation = "actor_rollout_ref.rollout", config.engine, config.eval
    yield f"{rollout}.name", engine.rollout
    yield f"{rollout}.n", config.rollout.group_size
    yield f"{rollout}.temperature", config.rollout.temperature
    yield f"{rollout}.top_p", 1.0
    yield f"{rollout}.top_k", -1
    yield f"{rollout}.seed", config.seed
    yield f"{rollout}.tensor_model_parallel_size", engine.tensor_parallel
    yield f"{rollout}.calculate_log_probs", True
    yield f"{rollout}.val_kwargs.n", evaluation.samples
    yield f"{rollout}.val_kwargs.temperature", evaluation.temperature
    yield f"{rollout}.val_kwargs.top_p", evaluation.top_p
    yield f"{rollout}.val_kwargs.do_sample", evaluation.temperature > 0


def _reward(config: TrainConfig, place: Place) -> Iterator[tuple[str, Any]]:
    yield "reward.custom_reward_function.path", "pkg://qae.engines.verl.reward"
    yield "reward.custom_reward_function.name", "compute_score"
    yield "+reward.custom_reward_function.reward_kwargs.task", str(place.task)
    overlong = config.algorithm.overlong
    if overlong.buffer_tokens:
        yield "reward.reward_manager.name", "dapo"
        yield "+reward.reward_kwargs.max_resp_len", config.rollout.max_tokens
        buffer = "+reward.reward_kwargs.overlong_buffer_cfg"
        yield f"{buffer}.enable", True
        yield f"{buffer}.len", overlong.buffer_tokens
        yield f"{buffer}.penalty_factor", overlong.factor
        yield f"{buffer}.log", False


def _trainer(config: TrainConfig, place: Place) -> Iterator[tuple[str, Any]]:
    engine, evaluates = config.engine, config.eval.problems > 0
    yield "trainer.v1.trainer_mode", "qae_sync"
    yield "trainer.n_gpus_per_node", engine.workers
    yield "trainer.nnodes", engine.nodes
    yield "trainer.total_training_steps", config.steps
    yield "trainer.total_epochs", config.steps
    yield "trainer.val_before_train", evaluates
    yield "trainer.test_freq", (config.eval.every or config.steps) if evaluates else -1
    yield "trainer.save_freq", config.checkpoint.every or config.steps
    yield "trainer.max_actor_ckpt_to_keep", config.checkpoint.keep
    yield "trainer.default_local_dir", str(place.checkpoints)
    yield "trainer.resume_mode", "auto"
    yield "trainer.rollout_data_dir", str(place.rollouts)
    yield "trainer.validation_data_dir", str(place.validations)
    yield "trainer.logger", ["console", "file", *(name for name in config.track if name != "jsonl")]
    yield "trainer.project_name", "qae"
    yield "trainer.experiment_name", config.name
    yield "critic.enable", False
    yield "hydra.run.dir", str(place.root / "hydra")  # else outputs/ in the working directory


def _ray(config: TrainConfig, place: Place) -> Iterator[tuple[str, Any]]:
    """The environment, once more, for the workers of a cluster that is already there."""
    for key, value in environment(config, place).items():
        yield f"+ray_kwargs.ray_init.runtime_env.env_vars.{key}", value


def _cpu(config: TrainConfig) -> Iterator[tuple[str, Any]]:
    workers = config.engine.workers
    yield "trainer.device", "cpu"
    yield "actor_rollout_ref.rollout.name", "qae_cpu"
    yield "actor_rollout_ref.rollout.free_cache_engine", False
    yield "actor_rollout_ref.rollout.agent.num_workers", 1
    yield "actor_rollout_ref.rollout.dtype", "float32"
    yield "actor_rollout_ref.model.use_remove_padding", False
    yield "+actor_rollout_ref.model.override_config.attn_implementation", "sdpa"
    yield "actor_rollout_ref.actor.use_torch_compile", False
    yield "actor_rollout_ref.actor.fsdp_config.use_torch_compile", False
    for part in ("param", "reduce", "buffer"):
        yield f"+actor_rollout_ref.actor.fsdp_config.mixed_precision.{part}_dtype", "fp32"
    yield "reward.num_workers", 1
    yield "data.dataloader_num_workers", 0
    yield "transfer_queue.backend.SimpleStorage.num_data_storage_units", 1
    yield "transfer_queue.backend.SimpleStorage.total_storage_size", 10_000
    # Logical slots: verl wants three processors a rank, and a GPU each, whatever the machine has.
    yield "ray_kwargs.ray_init.num_cpus", 8 + 4 * workers
    yield "+ray_kwargs.ray_init.num_gpus", workers
    yield "+ray_kwargs.ray_init.include_dashboard", False
    yield "+ray_kwargs.ray_init.object_store_memory", 500_000_000


def literal(value: Any) -> str:
    """A value in the grammar of Hydra's overrides.

    Example:
        >>> [literal(x) for x in (True, None, 1e-06, "a/b.c", "a {x}", ["jsonl", 2], "1")]
        ['True', 'null', '1e-06', 'a/b.c', '"a {x}"', '[jsonl,2]', '"1"']
    """
    if value is None:
        return "null"
    if isinstance(value, (bool, int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(literal(item) for item in cast(list[Any], value)) + "]"
    text = str(value)
    if _BARE.fullmatch(text) and text.lower() not in ("true", "false", "null", "nan", "inf"):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
