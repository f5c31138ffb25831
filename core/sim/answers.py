"""What the simulated engine answers: a length and token ids that follow from the prompt alone.

A request carries nothing special. The head of the prompt, for example `[B2]`, names a length
law; a hash of all prompt ids draws the length from it and seeds the output ids. A prompt that
already ends in the first tokens of its own answer (prompt + partial) is recognised, so a
continued request gets the rest of the same answer, from any server at any time.

Text stands for its UTF-8 bytes, one id a byte, as with a byte-level tokenizer.
"""

import hashlib
import math
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

VOCABULARY = 163_840
EOS_ID = 163_586
FIRST_OUTPUT_ID = 1000
"""Output ids lie in FIRST_OUTPUT_ID .. FIRST_OUTPUT_ID + 65535, prompts of the demo below 256."""
MARKER = re.compile(rb"\[([A-Za-z0-9_-]{1,16})\]")
SENTENCE = (
    "the value of this function is then used to build a list where each item has one key and "
    "its count so we check that input before return if not empty else raise an error with "
    "clear text first step reads all rows next step maps them onto types last step writes"
)
WORDS = tuple(SENTENCE.split(" "))

_MASK = (1 << 64) - 1
_FNV_START = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3


@dataclass(frozen=True, slots=True)
class LengthLaw:
    """Lognormal answer lengths in tokens."""

    mean: float
    """Mean before the cut at `most`, tokens."""
    cv: float
    """Standard deviation over mean."""
    most: int = 16_384
    """Longest answer, tokens."""

    def draw(self, seed: int) -> int:
        """Return the answer length, EOS included, that belongs to a seed."""
        spread = math.log1p(self.cv * self.cv)
        chance = (_mixed(seed) / 2.0**64) * (1.0 - 2e-9) + 1e-9
        exponent = math.log(self.mean) - spread / 2.0
        exponent += math.sqrt(spread) * NormalDist().inv_cdf(chance)
        return max(2, min(self.most, round(math.exp(exponent))))


DEFAULT_LAW = LengthLaw(mean=1500.0, cv=0.9, most=8192)
"""For prompts whose head names no law of the scenario."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a prompt leads to."""

    seed: int
    done_tokens: int
    """How many tokens of the answer the prompt already ends with."""
    left_tokens: int
    """Tokens until EOS from there, EOS included; 0 or less if EOS was ignored and is past."""

    def output_ids(self, count: int) -> list[int]:
        """Return the next `count` tokens after what is done."""
        ids = _tokens(self.seed, self.done_tokens + count)[self.done_tokens :]
        if 0 < self.left_tokens <= count:
            ids[self.left_tokens - 1] = EOS_ID
        return ids


def ids_of_text(text: str) -> list[int]:
    """Return the ids that a text prompt stands for, one a byte."""
    return list(text.encode("utf-8", "surrogatepass"))


def text_of_ids(ids: Sequence[int]) -> str:
    """Return readable text for output ids; EOS and other special ids have none."""
    return "".join(f" {WORDS[i % len(WORDS)]}" for i in ids if i < EOS_ID)


def answer_to(input_ids: Sequence[int], laws: Mapping[str, LengthLaw]) -> Answer:
    """Return the answer that a prompt, or a prompt and the start of its answer, leads to."""
    prompt_length, seed = _split(input_ids)
    marker = MARKER.match(bytes(i for i in input_ids[:18] if i < 256))
    law = laws.get(marker.group(1).decode() if marker else "", DEFAULT_LAW)
    done = len(input_ids) - prompt_length
    return Answer(seed=seed, done_tokens=done, left_tokens=law.draw(seed) - done)


def _split(input_ids: Sequence[int]) -> tuple[int, int]:
    """Return the length of the original prompt and its seed.

    Every id is tried as the first token of the answer to what stands before it; the seed fixes
    that token, so a chance hit needs a 1 in 65,536 match at every token up to the end.
    """
    value = _FNV_START
    for at, token in enumerate(input_ids):
        is_candidate = at and token >= FIRST_OUTPUT_ID and token == _first_token(value)
        if is_candidate and _is_start_of_answer(value, input_ids[at:]):
            return at, value
        value = ((value ^ token) * _FNV_PRIME) & _MASK
    return len(input_ids), value


def _is_start_of_answer(seed: int, ids: Sequence[int]) -> bool:
    pairs = zip(ids, _tokens(seed, len(ids)), strict=True)
    return all(token in (expected, EOS_ID) for token, expected in pairs)


def _first_token(seed: int) -> int:
    return FIRST_OUTPUT_ID + ((seed * 0x9E3779B97F4A7C15 & _MASK) >> 48)


def _tokens(seed: int, count: int) -> list[int]:
    stream = hashlib.shake_128(seed.to_bytes(8, "big")).digest(2 * max(0, count))
    ids = [FIRST_OUTPUT_ID + value for value in array("H", stream)]
    if ids:
        ids[0] = _first_token(seed)
    return ids


def _mixed(seed: int) -> int:
    return int.from_bytes(hashlib.blake2b(seed.to_bytes(8, "big"), digest_size=8).digest(), "big")
