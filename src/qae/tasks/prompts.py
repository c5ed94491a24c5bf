"""From a prompt, raw or chat, to token ids."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from transformers import PreTrainedTokenizerBase


def encode_prompt(
    prompt: str | Sequence[Mapping[str, str]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    template_kwargs: Mapping[str, Any] | None = None,
) -> list[int]:
    """Token ids of a raw prompt, or of chat messages by the tokenizer's template with the assistant's turn opened.

    Raw text gets the special tokens that the tokenizer puts in front (BOS), never one behind it: an EOS there
    would end the text before the completion began.

    Args:
        prompt: text, or messages with role and content.
        tokenizer: of the policy.
        template_kwargs: further arguments of the chat template, such as `enable_thinking`.

    Returns:
        The ids.

    Raises:
        ValueError: messages, but the tokenizer has no chat template.

    Example:
        >>> from qae.policies import load_policy
        >>> encode_prompt("2*3+4?", load_policy("tiny", device="cpu").tokenizer)
        [5, 13, 6, 14, 7, 16]
    """
    if isinstance(prompt, str):
        ids = list(tokenizer.encode(prompt))
        return ids[:-1] if ids and ids[-1] == tokenizer.eos_token_id else ids
    if not tokenizer.chat_template:
        raise ValueError(
            "the prompt is chat messages, but the policy's tokenizer has no chat template; use a policy that was "
            "made for chat, or plain text prompts (task.chat=false)"
        )
    rendered = tokenizer.apply_chat_template(
        [dict(message) for message in prompt],
        add_generation_prompt=True,
        return_dict=False,
        **(template_kwargs or {}),
    )
    return list(cast(list[int], rendered))


def stop_strings(stop: str | Sequence[str]) -> tuple[str, ...]:
    r"""What a config gives as `stop`: one string, or several.

    Args:
        stop: not empty, where it is text.

    Returns:
        The strings.

    Raises:
        ValueError: one of them is empty, which would end every completion before it began.

    Example:
        >>> stop_strings("Question:"), stop_strings(["\\n", "</s>"])
        (('Question:',), ('\\n', '</s>'))
    """
    strings = (stop,) if isinstance(stop, str) else tuple(stop)
    if not all(strings):
        raise ValueError(f"stop={list(strings)} must be texts of at least one character; leave it out for none")
    return strings


def read_prompt(value: object, where: str) -> str | tuple[dict[str, str], ...]:
    """A cell of a data set as a prompt.

    Args:
        value: text, or a list of messages with role and content.
        where: the place, for the error.

    Returns:
        The prompt.

    Raises:
        ValueError: it is neither.

    Example:
        >>> read_prompt([{"role": "user", "content": "1+1?", "name": "me"}], "data.jsonl, row 1")
        ({'role': 'user', 'content': '1+1?'},)
    """
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, (list, tuple)) and value:
        messages = cast(Sequence[object], value)
        fields = [cast(Mapping[str, object], m) if isinstance(m, Mapping) else {} for m in messages]
        pairs = [(m.get("role"), m.get("content")) for m in fields]
        found = tuple({"role": r, "content": c} for r, c in pairs if isinstance(r, str) and isinstance(c, str))
        if len(found) == len(messages):
            return found
    raise ValueError(f"{where} must be text or a list of messages with role and content, got {str(value)[:60]!r}")
