"""A random-weight Qwen3 with a byte-level BPE tokenizer and a chat template: the shape of a real small model."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

CORPUS = [
    "Natalia sold 48 clips in April and half as many in May. How many clips did she sell altogether?",
    "What is 12 + 7? The answer is 19. Put the final answer within \\boxed{}.",
    "You are a helpful assistant. Think step by step, then give the answer.",
    "<think>\n\n</think>\n\nuser assistant system",
]
# The parts of Qwen3's own template that carry the system prompt and the thinking switch.
CHAT_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\n\n</think>\n\n' }}
{%- endif %}
{%- endif %}"""


def tiny_qwen3_tokenizer() -> PreTrainedTokenizerFast:
    characters = Tokenizer(models.BPE())
    characters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    characters.decoder = decoders.ByteLevel()
    characters.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=340,
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=characters,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=["<|im_start|>"],
        chat_template=CHAT_TEMPLATE,
        model_max_length=131072,
        clean_up_tokenization_spaces=False,
    )


def build_tiny_qwen3(directory: Path, *, seed: int = 0, context_tokens: int = 512) -> Path:
    """Write model and tokenizer to `directory` as save_pretrained does, and return it.

    As with the real one, two tokens end a completion, the embedding has more rows than the tokenizer has tokens,
    and q and k are normalised. About 60,000 parameters.
    """
    tokenizer = tiny_qwen3_tokenizer()
    im_end, endoftext = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    config = Qwen3Config(
        vocab_size=len(tokenizer) + 12,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=context_tokens,
        tie_word_embeddings=True,
        eos_token_id=im_end,
        bos_token_id=endoftext,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=[im_end, endoftext], pad_token_id=endoftext, do_sample=True, temperature=0.6, top_p=0.95
    )
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    model.save_pretrained(directory)
    if bars:
        logging.enable_progress_bar()
    tokenizer.save_pretrained(directory)
    return directory
