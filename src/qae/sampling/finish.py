"""When a completion ends, and what its text is: EOS ids, stop strings, the token limit."""

from typing import Any

from torch import Tensor

from qae.sampling.types import Completion, SamplingParams

# Last tokens that are decoded and searched for a stop string, before the whole completion is.
_TAIL_TOKENS = 32


class Finish:
    """Decides token by token whether a row has ended.

    A stop string is looked for only after a token whose own text holds the last character of one (or an incomplete
    character), so that most tokens cost a dictionary look-up. A stop string that is one special token of the
    tokenizer ends a completion as an EOS id does.
    """

    def __init__(self, tokenizer: Any, eos_ids: tuple[int, ...], params: SamplingParams) -> None:
        if params.max_tokens < 1:
            raise ValueError(f"max_tokens is {params.max_tokens}: it must be at least 1")
        if "" in params.stop:
            raise ValueError("stop holds an empty string, which would end every completion at once: leave it out")
        self._tokenizer = tokenizer
        self._max_tokens = params.max_tokens
        special = {s: i for s in params.stop if (i := _special_id(tokenizer, s)) is not None}
        self.end_ids = frozenset(eos_ids) | frozenset(special.values())
        self._stop = tuple(s for s in params.stop if s not in special)
        self._last_characters = frozenset(s[-1] for s in self._stop)
        self._tail = _TAIL_TOKENS + max(map(len, self._stop), default=0)
        self._may_stop: dict[int, bool] = {}

    def ended(self, token_ids: list[int]) -> bool:
        """True if the row's newest token is its last one."""
        token = token_ids[-1]
        if token in self.end_ids or len(token_ids) >= self._max_tokens:
            return True
        if not self._stop:
            return False
        may = self._may_stop.get(token)
        if may is None:
            # Twice, because a tokenizer may strip the space in front of a text's first token.
            text = self._decode([token, token])
            may = self._may_stop[token] = "\ufffd" in text or not self._last_characters.isdisjoint(text)
        if not may or self._cut(self._decode(token_ids[-self._tail :])) is None:
            return False
        return self._cut(self._decode(token_ids)) is not None

    def completion(self, prompt_index: int, token_ids: list[int], logprobs: Tensor, entropies: Tensor) -> Completion:
        """The finished row as a `Completion`."""
        if not bool(logprobs.isfinite().all()):
            raise FloatingPointError(
                f"a log-prob of a completion of prompt {prompt_index} is not finite: the policy's weights hold NaN or "
                "infinite numbers. Go back to an earlier checkpoint, with a smaller update.lr"
            )
        ended_by_id = token_ids[-1] in self.end_ids
        text = self._decode(token_ids[:-1] if ended_by_id else token_ids)
        cut = None if ended_by_id else self._cut(text)
        return Completion(
            prompt_index=prompt_index,
            token_ids=token_ids,
            text=text if cut is None else text[:cut],
            logprobs=logprobs,
            entropies=entropies,
            truncated=not ended_by_id and cut is None,
        )

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _cut(self, text: str) -> int | None:
        found = [i for s in self._stop if (i := text.find(s)) >= 0]
        return min(found, default=None)


def _special_id(tokenizer: Any, text: str) -> int | None:
    if text not in tokenizer.all_special_tokens:
        return None
    return int(tokenizer.convert_tokens_to_ids(text))


def check_prompts(
    prompts: list[list[int]],
    row_prompt: list[int],
    row_keys: list[int],
    context_tokens: int,
    params: SamplingParams,
) -> None:
    """Refuse a call that cannot be served, before anything is computed."""
    if len(row_prompt) != len(row_keys):
        raise ValueError(f"row_prompt has {len(row_prompt)} rows and row_keys {len(row_keys)}: one of each per row")
    for index in sorted(set(row_prompt)):
        if not 0 <= index < len(prompts):
            raise ValueError(f"row_prompt holds {index}, but there are {len(prompts)} prompts")
        length = len(prompts[index])
        if length == 0:
            raise ValueError(f"prompt {index} is empty: a model needs at least one token to start from, such as BOS")
        if length + params.max_tokens > context_tokens:
            raise ValueError(
                f"prompt {index} has {length} tokens and max_tokens is {params.max_tokens}: together "
                f"{length + params.max_tokens}, but the policy's context is {context_tokens}. Lower "
                f"max_tokens to {max(context_tokens - length, 0)} or shorten the prompt"
            )
