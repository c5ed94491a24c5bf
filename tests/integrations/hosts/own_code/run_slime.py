"""The reward post-processing of slime's rollout manager, loading our hook by its path as slime does."""

import sys
from pathlib import Path
from types import SimpleNamespace

from host_stubs import Stubs, report

checkout, package = Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, str(checkout))
stubs = Stubs(
    "ray", "sglang", "sglang_router", "megatron", "httpx", "wandb", "aiohttp", "fastapi", "uvicorn", "pybase64",
    "pylatexenc", "torch_memory_saver", "mcp", "blobfile", "PIL", "qwen_vl_utils", "orjson", "setproctitle",
    "msgspec", "requests",
    "mooncake", "zmq", "cachetools", "tensorboard", "datasets", "polars",
)  # fmt: skip

from importlib import import_module

Sample = import_module(f"{package}.utils.types").Sample
misc = import_module(f"{package}.utils.misc")
args = SimpleNamespace(
    reward_key=None, advantage_estimator="grpo", rewards_normalization=True, grpo_std_normalization=True,
    n_samples_per_prompt=4, rollout_batch_size=2,
    custom_reward_post_process_path="qae.integrations.slime.quantile_rewards",
)  # fmt: skip


def sample(group: int, reward: float, **options):
    return Sample(group_index=group, reward=reward, response_length=3, **options)


# Two prompts of 4 and 3, interleaved, and one sample that is removed.
mixed = zip([0, 1, 0, 1, 0, 1, 0], [1.0, 1, 0, 1, 0, 0, 0], strict=True)
samples = [sample(group, reward) for group, reward in mixed]
samples.append(sample(0, 5.0, remove_sample=True))


def post_process(hook, samples):
    """The method of slime's rollout manager; miles has made a function of it."""
    if package == "miles":
        conversion = import_module("miles.ray.rollout.train_data_conversion")
        return conversion._post_process_rewards(args, samples, hook)
    rollout = import_module("slime.ray.rollout")
    classes = [value for value in vars(rollout).values() if isinstance(value, type)]
    manager = next(cls for cls in classes if "_post_process_rewards" in vars(cls))
    itself = manager.__new__(manager)
    itself.args, itself.custom_reward_post_process_func = args, hook
    return itself._post_process_rewards(samples)


raw, ours = post_process(misc.load_function(args.custom_reward_post_process_path), samples)
_, own = post_process(None, [sample(0, r) for r in (1.0, 0, 0, 0)] + [sample(1, r) for r in (1.0, 1, 1, 0)])
report(checkout, stubs, raw=raw, quantile=ours, own_mean=list(own))
