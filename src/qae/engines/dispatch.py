"""Run a configuration with the engine that it names."""

from pathlib import Path

from qae.trainer.config import TrainConfig
from qae.trainer.loop import Observer


def train(
    config: TrainConfig,
    *,
    run_dir: Path | None = None,
    resume: Path | None = None,
    observer: Observer | None = None,
) -> Path:
    """Train a policy and leave a run directory behind: in this process, or on verl if `engine.name` says so.

    Args:
        config: what to do (`TrainConfig.load`). When resuming, the run's own configuration with what may change.
        run_dir: where to write; default runs/<name>-<time>/.
        resume: a run directory to continue from its newest checkpoint.
        observer: told of everything that happens.

    Returns:
        The run directory: config.yaml, metrics.jsonl, rollouts/, checkpoints/.

    Raises:
        ConfigError: something asked for cannot be.
        Interrupted: after Ctrl-C or SIGTERM.
        NothingToLearn: local engine: several steps in a row without a mixed group.
        VerlError: verl failed.
    """
    if config.engine.name == "verl":
        from qae.engines.verl.run import train as run
    else:
        from qae.trainer.loop import train as run
    return run(config, run_dir=run_dir, resume=resume, observer=observer)
