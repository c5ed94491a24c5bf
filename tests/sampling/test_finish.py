"""What ends a completion, and the text that remains of it."""

import dataclasses

import pytest
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from qae.sampling import SamplingParams, make_engine
from qae.sampling.finish import Finish
from qae.sampling.rng import row_key
from random_policies import EOS, byte_tokenizer, make_policy


def run(tokenizer, ids, *, eos_ids=(EOS,), max_tokens=99, stop=()):
    """Feed ids one by one; the completion made of those up to the end."""
    finish = Finish(tokenizer, eos_ids, SamplingParams(max_tokens=max_tokens, stop=stop))
    seen: list[int] = []
    for token in ids:
        seen.append(token)
        if finish.ended(seen):
            break
    return finish.completion(0, seen, torch.zeros(len(seen)), torch.zeros(len(seen)))


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


@pytest.fixture(scope="module")
def merged():
    """A tokenizer with a token that holds a stop string and more: "b\\n" and "\\n\\nx"."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {c: i for i, c in enumerate(alphabet)}
    newline = "Ċ"
    merges = [("b", newline), (newline, newline), (newline * 2, "x")]
    for a, b in merges:
        vocab[a + b] = len(vocab)
    backend = Tokenizer(BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def encode(tokenizer, text):
    return tokenizer(text, add_special_tokens=False).input_ids


def test_eos_ends_and_is_not_in_the_text(tokenizer):
    got = run(tokenizer, [*encode(tokenizer, "abc"), EOS, *encode(tokenizer, "def")])
    assert (got.text, got.truncated, got.token_ids[-1], len(got.token_ids)) == ("abc", False, EOS, 4)


def test_any_of_several_eos_ids(tokenizer):
    ids = encode(tokenizer, "abcdef")
    assert run(tokenizer, ids, eos_ids=(EOS, ids[3])).text == "abc"


def test_max_tokens_truncates(tokenizer):
    got = run(tokenizer, encode(tokenizer, "abcdef"), max_tokens=4)
    assert (got.text, got.truncated, len(got.token_ids)) == ("abcd", True, 4)


def test_ending_on_the_last_token_allowed_is_no_truncation(tokenizer):
    assert not run(tokenizer, [*encode(tokenizer, "abc"), EOS], max_tokens=4).truncated
    got = run(tokenizer, encode(tokenizer, "abc\n"), max_tokens=4, stop=("\n",))
    assert (got.text, got.truncated) == ("abc", False)


def test_stop_string_across_tokens_keeps_its_tokens_and_cuts_its_text(tokenizer):
    got = run(tokenizer, encode(tokenizer, "one\ntwo###three"), stop=("###", "!"))
    assert got.text == "one\ntwo"
    assert len(got.token_ids) == len("one\ntwo###")
    assert not got.truncated


def test_a_false_start_does_not_stop(tokenizer):
    assert run(tokenizer, encode(tokenizer, "a##b## ###c"), stop=("###",)).text == "a##b## "


@pytest.mark.parametrize(("stop", "text"), [("\n", "ab"), ("\n\n", "ab\n-"), ("b\n", "a")])
def test_stop_string_inside_a_longer_token(merged, stop, text):
    ids = encode(merged, "ab\n-\n\nxyz")
    assert len(ids) == 6
    assert run(merged, ids, eos_ids=(), stop=(stop,)).text == text


def test_stop_string_of_several_bytes_per_character(tokenizer):
    got = run(tokenizer, encode(tokenizer, "naïve → ok"), stop=("→",))
    assert got.text == "naïve "
    assert len(got.token_ids) == len("naïve →".encode())


def test_the_earliest_stop_string_cuts(merged):
    assert run(merged, encode(merged, "a-\n\nx"), eos_ids=(), stop=("x", "\n")).text == "a-"


def test_a_stop_string_far_into_a_long_completion(tokenizer):
    text = "word " * 60 + "END"
    got = run(tokenizer, encode(tokenizer, text + " more"), stop=("END",), max_tokens=999)
    assert got.text == "word " * 60


def test_a_special_token_as_stop_string_ends_like_eos(tokenizer):
    got = run(tokenizer, [*encode(tokenizer, "ab"), 0, 7], eos_ids=(), stop=("<pad>",))
    assert (got.text, got.token_ids[-1], got.truncated) == ("ab", 0, False)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_engine_stops_at_strings(name):
    policy = make_policy(name)
    free = dataclasses.replace(policy, eos_ids=())
    prompts, keys = [[40, 41, 42]], [row_key(0, i) for i in range(24)]

    def sample(**params):
        return make_engine("builtin", free).generate(
            prompts, [0] * 24, keys, SamplingParams(**({"max_tokens": 12} | params))
        )

    whole = sample()
    seen = [ch for c in whole for ch in c.text[2:] if ch.isascii()]
    stops = (seen[0], seen[7], "no such text")
    stopped = sample(stop=stops)
    assert sum(len(c.token_ids) < len(w.token_ids) for c, w in zip(stopped, whole, strict=True)) >= 2
    for c, w in zip(stopped, whole, strict=True):
        cut = min((i for s in stops if (i := w.text.find(s)) >= 0), default=None)
        assert c.truncated == (cut is None)
        assert c.text == w.text[:cut]
        assert c.token_ids == w.token_ids[: len(c.token_ids)]
        torch.testing.assert_close(c.logprobs, w.logprobs[: len(c.token_ids)], atol=1e-4, rtol=0)
