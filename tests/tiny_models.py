"""Random models small enough for a test, with a policy around them."""

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen3Config

from qae.policies.policy import Policy

SHAPE = {
    "vocab_size": 41,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}
CONFIGS = {
    "llama": lambda: LlamaConfig(**SHAPE, head_dim=8),
    "qwen2": lambda: Qwen2Config(**SHAPE),
    "qwen3": lambda: Qwen3Config(**SHAPE, head_dim=16, tie_word_embeddings=True),
}


def character_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character, 41 in all."""
    vocabulary = {t: i for i, t in enumerate(["<pad>", "<eos>", "<bos>", *"0123456789+-*/=#?()abcdefghijklmnopqr."])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>")


def random_policy(kind: str = "llama", *, seed: int = 0) -> Policy:
    """A random-weight policy of the given kind, in fp32 on the CPU; weights large enough to be far from uniform."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIGS[kind](), attn_implementation="sdpa").float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(6)
    return Policy(
        model=model.eval(),
        tokenizer=character_tokenizer(),
        eos_ids=(1,),
        pad_id=0,
        context_tokens=128,
        name=kind,
        compute_dtype=torch.float32,
        device=torch.device("cpu"),
    )
