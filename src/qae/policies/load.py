"""Loading and saving policies."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from qae.policies.device import resolve_compute_dtype, resolve_device
from qae.policies.lora import add_lora, has_lora, merged_state_dict, save_adapter
from qae.policies.policy import Policy, PolicyError
from qae.policies.quiet import no_progress_bars
from qae.policies.source import resolve_source, tensors_fault

# Architectures that transformers would load as a causal model, with a fresh head or the wrong attention mask.
_OTHER_HEADS = ("MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering", "PreTraining")


def load_policy(
    path: str, *, dtype: str = "auto", device: str = "auto", lora: Mapping[str, Any] | None = None
) -> Policy:
    """A causal language model with its tokenizer, ready for sampling and training.

    Parameters are float32 whatever the file holds, so that small updates are not rounded away; `dtype` is that
    of the matrix products.

    Args:
        path: `tiny` (shipped), `smollm2` (after `qae fetch smollm2`), a Hugging Face directory, or a Hub id.
        dtype: auto, float32 or bfloat16; auto is bfloat16 where it is measured to be clearly faster.
        device: auto, cpu, cuda or mps.
        lora: options of `qae.policies.lora.add_lora`; None trains every parameter.

    Returns:
        The policy, its model in evaluation mode.

    Raises:
        PolicyError: nothing there, not a causal language model, incomplete, or a missing extra.

    Example:
        >>> policy = load_policy("tiny", device="cpu")
        >>> policy.context_tokens, policy.tokenizer.decode(policy.eos_ids)
        (128, '<eos>')
    """
    where = resolve_device(device)
    source = resolve_source(path)
    with no_progress_bars(only_if=Path(source).is_dir()):
        model = _load_model(path, source)
        tokenizer = _load_tokenizer(path, source)
    text_config = model.config.get_text_config()
    rows = cast(torch.Tensor, model.get_input_embeddings().weight).shape[0]
    if len(tokenizer) > rows:
        raise PolicyError(
            f"policy.path={path}: the tokenizer has {len(tokenizer)} tokens, the model {rows}; they do not belong "
            "together"
        )
    compute_dtype = resolve_compute_dtype(dtype, where, text_config.hidden_size)
    if lora is not None:
        add_lora(model, lora)
    eos_ids = _eos_ids(model, tokenizer)
    return Policy(
        model=model.to(where),  # pyright: ignore[reportArgumentType]
        tokenizer=tokenizer,
        eos_ids=eos_ids,
        pad_id=_pad_id(tokenizer, eos_ids),
        context_tokens=_context_tokens(path, text_config, tokenizer),
        name=path,
        compute_dtype=compute_dtype,
        device=where,
    )


def save_policy(policy: Policy, directory: Path) -> None:
    """Write model, tokenizer and generation config so that transformers loads the directory as it is.

    With LoRA the directory holds the merged model, and `adapter/` in it the adapter alone in peft's format (to
    go on training bit for bit, see `load_adapter`). The policy itself is not changed.

    Args:
        policy: what to save.
        directory: made if it is not there; the caller renames it into place if it must appear at once.
    """
    model = policy.model
    with no_progress_bars():
        if has_lora(model):
            save_adapter(model, directory / "adapter")
            model = _merged_copy(model)
        model.save_pretrained(directory)
        policy.tokenizer.save_pretrained(directory)


def _load_model(path: str, source: str) -> PreTrainedModel:
    try:
        loaded = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, output_loading_info=True)
    except SafetensorError as error:
        files = sorted(Path(source).glob("*.safetensors"))
        damaged = next((file for file in files if tensors_fault(file)), source)
        raise PolicyError(
            f"policy.path={path}: {damaged} is damaged ({error}); write or download it again, or give another directory"
        ) from error
    except (ValueError, OSError, KeyError) as error:
        what = "is not a causal language model" if "Unrecognized configuration" in str(error) else "cannot be loaded"
        first_line = str(error).strip().partition("\n")[0]
        raise PolicyError(f"policy.path={path} {what}: {first_line}") from error
    model, report = cast(tuple[PreTrainedModel, dict[str, Any]], loaded)
    architectures: list[str] = model.config.architectures or []
    if model.config.is_encoder_decoder or (architectures and all(a.endswith(_OTHER_HEADS) for a in architectures)):
        raise PolicyError(
            f"policy.path={path} is not a causal language model but {', '.join(architectures)}; "
            "give one that AutoModelForCausalLM can train, such as Qwen3 or Llama"
        )
    missing = sorted(report["missing_keys"])
    if missing:
        raise PolicyError(
            f"policy.path={path}: the weights lack {len(missing)} tensors of {type(model).__name__} "
            f"(first: {missing[0]}), which would start at random; give a complete checkpoint"
        )
    return model


def _load_tokenizer(path: str, source: str) -> PreTrainedTokenizerBase:
    try:
        return AutoTokenizer.from_pretrained(source)
    except Exception as error:  # whatever the tokenizer's own code raises
        raise PolicyError(
            f"policy.path={path}: its tokenizer cannot be loaded ({type(error).__name__}: {error})"
        ) from error


def _eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    ids: set[int] = set()
    for owner in (tokenizer, model.config.get_text_config(), model.generation_config):
        eos = cast(int | list[int] | None, getattr(owner, "eos_token_id", None))
        ids.update(eos if isinstance(eos, list) else [] if eos is None else [eos])
    return tuple(sorted(ids))


def _pad_id(tokenizer: PreTrainedTokenizerBase, eos_ids: tuple[int, ...]) -> int:
    pad = tokenizer.pad_token_id
    return cast(int, pad) if pad is not None else (eos_ids or (0,))[0]


def _context_tokens(path: str, text_config: Any, tokenizer: PreTrainedTokenizerBase) -> int:
    context = getattr(text_config, "max_position_embeddings", None) or tokenizer.model_max_length
    if context > 2**31:
        raise PolicyError(
            f"policy.path={path}: neither config.json (max_position_embeddings) nor the tokenizer "
            "(model_max_length) says how long its context is; add one of them"
        )
    return int(context)


def _merged_copy(model: PreTrainedModel) -> PreTrainedModel:
    with torch.device("meta"):
        copy = type(model)(model.config)
    copy.load_state_dict(merged_state_dict(model), assign=True)
    copy.tie_weights()
    copy.generation_config = model.generation_config
    return copy
