"""LoRA adapters by peft, injected in place: the model keeps its class, its layers and its name."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from qae.policies.policy import PolicyError

if TYPE_CHECKING:
    from peft import LoraConfig

_DEFAULTS: dict[str, Any] = {
    "r": 16,
    "alpha": 32,
    "dropout": 0.0,
    "target_modules": "all-linear",
    "rslora": False,
    "seed": 0,
}
_ADAPTER = "default"
_WEIGHTS = "adapter_model.safetensors"


def add_lora(model: PreTrainedModel, options: Mapping[str, Any]) -> None:
    """Freeze the model and give its linear layers trainable adapters, which change nothing at first.

    Args:
        model: changed in place.
        options: r (16), alpha (32), dropout (0), target_modules ("all-linear": all but the output layer),
            rslora (False), seed of the adapters' initial values (0).

    Raises:
        PolicyError: peft is missing, or an unknown option.
    """
    config = _config(options)
    from peft import inject_adapter_in_model

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int({**_DEFAULTS, **options}["seed"]))
        inject_adapter_in_model(config, model, _ADAPTER)


def has_lora(model: nn.Module) -> bool:
    """Whether `add_lora` was applied to the model."""
    return _ADAPTER in getattr(model, "peft_config", {})


@torch.no_grad()
def merged_state_dict(model: PreTrainedModel) -> dict[str, Tensor]:
    """The state dict of the model without adapters that computes the same: base weight + scaling * B A.

    Without adapters it is the plain state dict. The model is not changed.

    Args:
        model: with or without adapters.

    Returns:
        Names as in the plain model; layers without an adapter share memory with it.
    """
    merged: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if ".lora_" in name:
            continue
        owner, _, leaf = name.rpartition(".")
        if owner.endswith(".base_layer"):
            owner = owner.removesuffix(".base_layer")
            if leaf == "weight":
                layer = cast(Any, model.get_submodule(owner))
                tensor = tensor + layer.get_delta_weight(_ADAPTER)
        merged[f"{owner}.{leaf}" if owner else leaf] = tensor
    return merged


def save_adapter(model: PreTrainedModel, directory: Path) -> None:
    """Write the adapter alone, in peft's format, to be loaded onto the original model.

    Args:
        model: with adapters.
        directory: made if it is not there.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"base_model.model.{name.replace(f'.{_ADAPTER}', '')}": tensor.contiguous()
        for name, tensor in model.state_dict().items()
        if ".lora_" in name
    }
    save_file(tensors, directory / _WEIGHTS, metadata={"format": "pt"})
    cast("LoraConfig", cast(Any, model).peft_config[_ADAPTER]).save_pretrained(str(directory))


def load_adapter(model: PreTrainedModel, directory: Path) -> None:
    """Copy the weights that `save_adapter` wrote into the model's adapters, bit for bit.

    Args:
        model: with adapters of the same shapes.
        directory: what `save_adapter` wrote.

    Raises:
        PolicyError: no adapter there, or another one.
    """
    if not (directory / _WEIGHTS).is_file():
        raise PolicyError(f"no LoRA adapter in {directory} (looked for {_WEIGHTS})")
    found = load_file(directory / _WEIGHTS)
    own = {name: tensor for name, tensor in model.state_dict().items() if ".lora_" in name}
    wanted = {f"base_model.model.{name.replace(f'.{_ADAPTER}', '')}": tensor for name, tensor in own.items()}
    if {k: v.shape for k, v in found.items()} != {k: v.shape for k, v in wanted.items()}:
        raise PolicyError(f"the LoRA adapter in {directory} has other layers or another rank than policy.lora asks for")
    with torch.no_grad():
        for name, tensor in found.items():
            wanted[name].copy_(tensor)


def _config(options: Mapping[str, Any]) -> "LoraConfig":
    unknown = [key for key in options if key not in _DEFAULTS]
    if unknown:
        raise PolicyError(f"policy.lora.{unknown[0]}: unknown option; options are {', '.join(_DEFAULTS)}")
    try:
        from peft import LoraConfig
    except ImportError:
        raise PolicyError("policy.lora needs peft: pip install 'qae[lora]'") from None
    given = {**_DEFAULTS, **options}
    return LoraConfig(
        r=given["r"],
        lora_alpha=given["alpha"],
        lora_dropout=given["dropout"],
        target_modules=given["target_modules"],
        use_rslora=given["rslora"],
        task_type="CAUSAL_LM",
    )
