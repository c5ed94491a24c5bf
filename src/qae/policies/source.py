"""From a `policy.path` to what transformers can load, or an error that says what to do."""

from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig

from qae.policies.policy import PolicyError
from qae.policies.smollm2 import smollm2_directory

TINY = Path(__file__).parent / "tiny"

_WEIGHTS = ("*.safetensors", "*.bin")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")
_HUB_SECONDS = 5.0


def resolve_source(path: str) -> str:
    """The local directory or Hub id behind `tiny`, `smollm2`, a directory or a Hub id.

    Args:
        path: what `policy.path` says.

    Returns:
        A directory that has a config, weights and a tokenizer, or an id that the Hub or its local cache has.

    Raises:
        PolicyError: nothing there; the text names the path, what was looked for and the next step.

    Example:
        >>> Path(resolve_source("tiny")).name
        'tiny'
    """
    if path == "tiny":
        return str(TINY)
    if path == "smollm2":
        return str(smollm2_directory())
    directory = Path(path).expanduser()
    if directory.is_dir():
        return str(_checked_directory(path, directory))
    if directory.exists():
        raise PolicyError(f"policy.path={path} is a file; give the directory with config.json, weights and tokenizer")
    if path.startswith(("/", ".", "~")) or path.count("/") > 1 or "\\" in path:
        raise PolicyError(
            f"policy.path={path}: no such directory (looked for {directory.absolute()}); "
            "give tiny, smollm2, a Hugging Face directory or a Hub id such as Qwen/Qwen3-0.6B"
        )
    return _checked_hub_id(path)


def tensors_fault(path: Path) -> str | None:
    """What is wrong with a safetensors file, by its header and its length; None if nothing is.

    Args:
        path: the file.

    Example:
        >>> tensors_fault(TINY / "model.safetensors"), tensors_fault(TINY / "none.safetensors")
        (None, 'it is missing')
    """
    if not path.is_file():
        return "it is missing"
    try:
        with safe_open(path, framework="pt"):
            return None
    except SafetensorError as error:
        return str(error)


def _checked_directory(path: str, directory: Path) -> Path:
    checkpoints = sorted(p for p in directory.glob("checkpoints/*") if (p / "config.json").is_file())
    if not (directory / "config.json").is_file():
        hint = (
            f"this is a run: its newest checkpoint is {checkpoints[-1]}"
            if checkpoints
            else "give the directory that save_pretrained wrote"
        )
        raise PolicyError(f"policy.path={path}: no config.json in {directory.absolute()}; {hint}")
    for what, names in (("weights", _WEIGHTS), ("tokenizer", _TOKENIZERS)):
        if not any(next(directory.glob(name), None) for name in names):
            raise PolicyError(
                f"policy.path={path}: no {what} in {directory.absolute()} (looked for {', '.join(names)}); "
                f"save the {what} there with save_pretrained"
            )
    return directory


def _checked_hub_id(path: str) -> str:
    """Ask the Hub first: transformers alone retries a dead network for half a minute."""
    try:
        HfApi().model_info(path, timeout=_HUB_SECONDS)
    except GatedRepoError:
        raise PolicyError(
            f"policy.path={path}: gated on the Hub; accept its terms there and run `hf auth login`"
        ) from None
    except (RepositoryNotFoundError, HFValidationError):
        raise PolicyError(
            f"policy.path={path}: no directory or run {Path(path).absolute()} and no such model on the Hub "
            "(or it is private: run `hf auth login`)"
        ) from None
    except Exception as error:  # no network: the class depends on the hub library's version
        try:
            AutoConfig.from_pretrained(path, local_files_only=True)
        except (OSError, ValueError):
            if "/" in path and Path(path).parent.is_dir():
                raise PolicyError(
                    f"policy.path={path}: no such directory or run (looked for {Path(path).absolute()}), and the Hub "
                    "cannot be reached to look there; give a directory that is there, or tiny"
                ) from None
            raise PolicyError(
                f"policy.path={path}: no directory or run {Path(path).absolute()}, not in the Hub's local cache, and "
                f"the Hub cannot be reached ({type(error).__name__}); download it on a machine with a network "
                f"(`hf download {path} --local-dir DIR`) and give policy.path=DIR, or use policy.path=tiny"
            ) from None
    return path
