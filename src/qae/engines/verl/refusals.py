"""What a configuration asks for that verl cannot do (refused by name), or does in its own way (said before the run)."""

from collections.abc import Iterator

from qae.tasks import Task
from qae.trainer.config import TrainConfig
from qae.trainer.keys import ConfigError

CONTROLS = ("asymre", "fixed", "random_mask", "w_reinforce")
LORA_KEYS = ("r", "lora_alpha", "target_modules")


def refuse(config: TrainConfig) -> None:
    """Refuse what verl cannot express; all of it at once.

    Raises:
        ConfigError: names each key, its value and the next step.
    """
    found = list(refusals(config))
    if found:
        raise ConfigError("engine=verl cannot do this: " + "; ".join(found))


def refusals(config: TrainConfig) -> Iterator[str]:
    """One sentence for each thing that verl has no word for."""
    algorithm, rollout, update, engine = config.algorithm, config.rollout, config.update, config.engine
    if rollout.prompts % update.minibatches:
        yield (
            f"update.minibatches={update.minibatches} does not divide rollout.prompts={rollout.prompts}, and verl's "
            "mini-batches are whole numbers of prompts: choose a divisor"
        )
    elif (rollout.prompts // update.minibatches * rollout.group_size) % (engine.workers * engine.nodes):
        yield (
            f"a mini-batch of {rollout.prompts // update.minibatches} prompts x {rollout.group_size} completions "
            f"cannot be shared by {engine.workers * engine.nodes} workers: change update.minibatches or engine.workers"
        )
    if algorithm.advantage.name in CONTROLS:
        yield (
            f"algorithm.advantage={algorithm.advantage.name} is a control of the study, with settings of its own that "
            "verl's estimators do not get: use engine=local"
        )
    if algorithm.advantage.name == "leave_one_out_quantile" and algorithm.advantage.method == "linear":
        yield "algorithm.advantage.method=linear: verl's qae_loo is the exact quantile of the others; leave it out"
    if algorithm.overlong.filter:
        yield "algorithm.overlong.filter=true: verl has no masking of truncated completions; use overlong.buffer_tokens"
    if algorithm.overlong.buffer_tokens and (algorithm.overlong.max_tokens or rollout.max_tokens) != rollout.max_tokens:
        yield (
            f"algorithm.overlong.max_tokens={algorithm.overlong.max_tokens} is not rollout.max_tokens="
            f"{rollout.max_tokens}: verl's penalty has no floor beyond it; leave it out"
        )
    if algorithm.dynamic_sampling.enabled and not algorithm.dynamic_sampling.max_refills:
        yield (
            "algorithm.dynamic_sampling.max_refills=0: verl always refills dropped groups; set enabled=false, or "
            "max_refills above 0"
        )
    if update.schedule == "linear":
        yield "update.schedule=linear: verl has constant and cosine"
    if update.behaviour_logprobs == "sampler" and update.importance_cap is not None:
        yield "update.importance_cap needs recomputed log-probs: set update.behaviour_logprobs=recompute"
    if rollout.stop:
        yield f"rollout.stop={list(rollout.stop)}: verl's agent loop passes no stop strings; let EOS end completions"
    if rollout.engine != "builtin":
        yield f"rollout.engine={rollout.engine} is the local engine's; verl's is engine.rollout"
    unknown = sorted(set(config.policy.lora or ()) - set(LORA_KEYS))
    if unknown:
        yield f"policy.lora.{unknown[0]}: verl takes {', '.join(LORA_KEYS)} only"
    if config.policy.device not in ("auto", engine.platform):
        yield f"policy.device={config.policy.device} contradicts engine.platform={engine.platform}: set it to auto"
    if engine.platform == "cpu" and config.policy.dtype == "bfloat16":
        yield "policy.dtype=bfloat16 on engine.platform=cpu: float32 only"
    if engine.platform == "cpu" and config.policy.lora is not None:
        yield "policy.lora on engine.platform=cpu: verl asks vLLM or SGLang about LoRA, and neither is there"
    if engine.platform == "cpu" and engine.nodes > 1:
        yield f"engine.nodes={engine.nodes}: engine.platform=cpu is for one machine"
    reason = config.inexact_skipping() or _chooses(config)
    if algorithm.skip_zero_advantage == "on" and reason:
        yield f"algorithm.skip_zero_advantage=on: {reason}; use auto or off"


def refuse_task(task: Task, config: TrainConfig) -> None:
    """Refuse what only the task knows.

    Raises:
        ConfigError: stop strings, or fewer prompts than a step needs.
    """
    if task.stop:
        raise ConfigError(
            f"engine=verl cannot do this: the task {task.name} ends completions at {list(task.stop)}, and verl's "
            "agent loop passes no stop strings; use engine=local"
        )
    if task.size is not None and task.size < config.rollout.prompts:
        raise ConfigError(
            f"rollout.prompts={config.rollout.prompts} is more than the {task.size} training problems, and verl draws "
            "a batch without repeats: lower it"
        )


def skips(config: TrainConfig) -> bool:
    """Whether rows with advantage 0 are left out of verl's update."""
    return config.algorithm.skip_zero_advantage != "off" and not (config.inexact_skipping() or _chooses(config))


def _chooses(config: TrainConfig) -> str | None:
    loss = config.algorithm.loss.name
    if loss in ("clip_cov", "kl_cov"):
        return f"verl's {loss} chooses among the tokens of all rows of a micro-batch"
    return None


def warmup_steps(config: TrainConfig) -> int:
    """The warm-up in verl's unit, rollout batches, rounded to the nearest."""
    return round(config.update.warmup / (config.update.minibatches * config.update.epochs))


def departures(config: TrainConfig) -> Iterator[str]:
    """What the run does otherwise than engine=local, one sentence each."""
    update, algorithm = config.update, config.algorithm
    if update.warmup:
        yield (
            f"warm-up: verl moves the learning rate once a rollout batch and starts at 0; {update.warmup} updates "
            f"become {warmup_steps(config)} of its steps"
        )
    if algorithm.dynamic_sampling.enabled:
        yield (
            "dynamic sampling: verl asks for two prompts for each dropped one until the batch is full, without the "
            f"bound of {algorithm.dynamic_sampling.max_refills} refills, and throws the surplus away"
        )
    if algorithm.loss.name in ("clip_cov", "kl_cov"):
        yield f"{algorithm.loss.name}: verl chooses tokens in each micro-batch, not over the whole update"
    if algorithm.loss.name == "sequence":
        yield "GSPO: verl's ratio is that of the sequence with the gradient of each token, which is the same gradient"
    if update.behaviour_logprobs == "auto":
        yield "behaviour log-probs: recomputed by verl before the updates (update.behaviour_logprobs=auto)"
    if update.cut == "groups" and update.epochs > 1:
        yield "mini-batches: verl keeps their members over the epochs"
    if algorithm.skip_zero_advantage == "auto" and not skips(config):
        yield f"rows with advantage 0 are not skipped: {config.inexact_skipping() or _chooses(config)}"
