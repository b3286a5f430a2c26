"""What a caller of the engine says, and what it is told."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from dhlo.errors import DhloError
from dhlo.serve.stores import Store

if TYPE_CHECKING:
    from dhlo import _runtime
    from dhlo.distributed import Communicator
    from dhlo.model import CompiledModel

__all__ = [
    "Choice",
    "EngineOptions",
    "EngineStats",
    "Event",
    "FinishReason",
    "Output",
    "QueueFullError",
    "SamplingParams",
    "TokenLogprobs",
]


class QueueFullError(DhloError):
    """The engine has as many requests in work and waiting as it may, or takes no more."""


class FinishReason(enum.Enum):
    """Why a choice ended."""

    STOP = "stop"  # a stop token, or a stop string
    LENGTH = "length"  # `max_tokens`, or as many as the model has positions for
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    ERROR = "error"  # the step failed: `Event.error`


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of a request are chosen. Logits go through, in this order: penalties and bias, the grammar's mask,
    temperature, top_k, top_p, min_p."""

    max_tokens: int = 16
    """Of each choice; at least 1."""
    temperature: float = 1.0
    """0: the most likely token, the first of equals."""
    top_k: int = 0
    """Only the k most likely tokens; 0: all."""
    top_p: float = 1.0
    """Only the fewest most likely tokens whose probabilities sum to this, above 0 and at most 1 (Holtzman et al. 2020)."""
    min_p: float = 0.0
    """Only tokens at least this times as likely as the most likely one, 0 to 1."""
    presence_penalty: float = 0.0
    """Subtracted from logits of tokens that the choice has already, -2 to 2."""
    frequency_penalty: float = 0.0
    """The same times how often it has them."""
    repetition_penalty: float = 1.0
    """Logits of tokens of prompt and choice are divided by this where positive, and multiplied where negative (Keskar et al. 2019);
    above 0."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to logits, by token."""
    seed: int | None = None
    """Of the request's random numbers: tokens are the same whatever else is in the batch, up to rounding of logits.
    None: by the system."""
    n: int = 1
    """Choices, which share the prompt's blocks."""
    logprobs: int | None = None
    """Give each token's log-probability, and those of so many most likely ones (at most 20), before temperature and what cuts."""
    stop_tokens: tuple[int, ...] = ()
    """End a choice; the token that does is given."""
    stop: tuple[str, ...] = ()
    """End a choice where its text has one of these; needs the vocabulary's bytes (`EngineOptions.vocabulary`)."""
    ignore_eos: bool = False
    """Take no notice of `EngineOptions.eos_tokens`."""
    priority: int = 0
    """Requests of lower numbers go first, and those of higher ones give up their blocks first. Among equals, shorter prompts go
    before longer ones that came not much earlier."""
    timeout: float | None = None
    """Seconds until the request ends with FinishReason.DEADLINE."""
    cache_salt: str = ""
    """Requests share what they begin with only with others of the same salt."""
    constrain: Callable[[int, Sequence[int], memoryview], object] | None = None
    """A grammar: called with a choice, its tokens so far and a memory of 32-bit numbers, in which the bits of the tokens that
    may come next stay set and the others are cleared (token t is bit t % 32 of number t // 32). Called by the engine's thread,
    which it holds up; what it raises ends the choice with FinishReason.ERROR."""
    speculate: bool = True
    """Let drafts be verified for this request, if the engine has a source of them."""
    adapter: str = ""
    """The name of an adapter that is loaded; empty: none."""
    beam_width: int = 0
    """Beam search with so many beams, at most `max_sequences`; 0: none. The `n` choices, at most `beam_width`, are the best texts
    that it finds, the best one first, as those of transformers' `generate(num_beams=...)`; they are told of when it is over.
    Log-probabilities are those before penalties and bias, which are applied to them. With what says how tokens are drawn (a
    temperature but 0 or 1, `top_k`, `top_p`, `min_p`), with `stop` and with `constrain` it is refused."""
    length_penalty: float = 1.0
    """Scores of beam search are sums of log-probabilities over this power of the number of tokens, -10 to 10: larger numbers favour
    longer texts."""
    early_stopping: bool | Literal["never"] = False
    """When a beam search that has found `beam_width` texts is over: at once (True), if no beam's score is better now than the worst
    of theirs (False), or if none can become better ("never")."""


@dataclass(frozen=True)
class TokenLogprobs:
    """Natural logarithms of probabilities: of a token that was chosen, and of the most likely ones, in falling order."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Event:
    """New tokens of a choice, or its end."""

    choice: int
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Of each token, if they are wanted."""
    finish: FinishReason | None = None
    """Given with the choice's last tokens."""
    stop: str | None = None
    """The stop string that ended it."""
    error: str = ""
    score: float = 0.0
    """Of what beam search has found: the sum of its tokens' log-probabilities over their number to `length_penalty`."""


@dataclass(frozen=True)
class Choice:
    """All tokens of a choice."""

    tokens: tuple[int, ...]
    finish: FinishReason
    logprobs: tuple[TokenLogprobs, ...] = ()
    stop: str | None = None
    error: str = ""
    score: float = 0.0
    """Of beam search, by which choices are in order."""


@dataclass(frozen=True)
class Output:
    """A request that has ended."""

    choices: tuple[Choice, ...]
    prompt_tokens: int
    cached_tokens: int
    """Of the prompt, whose keys and values were known."""


@dataclass(frozen=True)
class EngineOptions:
    """How an engine works. Sizes that aren't given follow from the model and the machine."""

    cache_bytes: int | None = None
    """Memory for the pools; None: a quarter of what the machine has free."""
    max_step_tokens: int = 256
    """Tokens of a step at most: prompts that are longer go in parts."""
    max_sequences: int | None = None
    """Choices in a step at most, no more than its tokens; None: as many, up to 128, and with an `encoder` up to those whose sources
    fit into a quarter of the memory that is free. More than fit into all of it are refused."""
    max_waiting: int = 1024
    """Requests that wait at most; more are refused with QueueFullError."""
    max_positions: int | None = None
    """Tokens of prompt and choice together at most; None: what fits into the pools."""
    eos_tokens: tuple[int, ...] = ()
    vocabulary: tuple[bytes, ...] = ()
    """The bytes of each token, for stop strings."""
    prefix_cache: bool = True
    prompt_lookup: int = 0
    """Drafts of so many tokens at most from what the sequence said before (Saxena 2023); 0: none."""
    cache_folder: str | None = None
    """Blocks that memory has no room for are kept there, and those that it has as the engine is closed; also for other processes.
    Made if it isn't there. Needs `prefix_cache`, `cache_folder_bytes` and a model's digest."""
    cache_folder_bytes: int = 0
    """Of all files there at most; those that were used longest ago go first."""
    model_digest: bytes = b""
    """32 bytes that stand for code and weights of the model, and of its encoder: blocks in a folder or a store are of these alone.
    Empty: those of `CompiledModel.digest`, and with an encoder of another binary SHA-256 of both."""
    draft_model: CompiledModel | _runtime.Model | None = None
    """A smaller step of the same vocabulary and tokens of a block that drafts what the model may say (Leviathan et al. 2023),
    with a cache of its own."""
    draft_tokens: int = 8
    """Tokens of its drafts at most; fewer where fewer pay."""
    draft_branches: int = 4
    """So many of them at most follow the same token, 1 to 32: where a request takes the most likely tokens, what the draft model
    holds most likely is drafted, as a tree. 1: each follows another."""
    draft_cache_bytes: int | None = None
    """Memory for its pools; None: as many blocks as the model has."""
    draft_max_positions: int | None = None
    """Tokens that it has positions for: what comes behind isn't drafted. None: no limit."""
    cache_store: Store | None = None
    """The same as `cache_folder`, as objects of a store (`dhlo.serve.stores`), which keeps them as long as it does. With a folder,
    blocks go to both, and the store is asked for those that the folder lacks. Needs `prefix_cache` and a model's digest."""
    cache_store_threads: int = 8
    """Calls of the store at once, 1 to 64."""
    preemption: Literal["recompute", "swap"] = "recompute"
    """What becomes of keys and values of a choice that gives up its blocks: they are computed again, or copied out of the pools and
    back."""
    swap_bytes: int | None = None
    """Memory of what is swapped out at most: choices that find none are computed again. None: as much as the pools."""
    communicator: Communicator | None = None
    """Connects the processes that run a step with collective operations together with this one, number 0: see `dhlo.serve.shards`.
    None: what the model was bound to (`CompiledModel.bind_process_group`), if it was."""
    peer_timeout: float = 60.0
    """Seconds that an operation with them takes at most, above 0."""
    evict_to: int | None = None
    """Tokens of a sequence whose keys and values are kept at most, a multiple of a block's: a sequence that comes to so many goes
    on without one of its blocks, within a prompt without an eighth of them. None: all are kept."""
    evict_sinks: int = 1
    """Blocks at a sequence's beginning that stay."""
    evict_recent: int = 1
    """Blocks at its end that stay."""
    evict_by: Literal["recent", "norms"] = "recent"
    """Which of the others go: the oldest (StreamingLLM, arXiv 2309.17453), or those with the least mean of |V| / |K| over tokens,
    heads and layers (PagedEviction, arXiv 2509.04377)."""
    encoder: CompiledModel | _runtime.Model | None = None
    """What a step with cross attention needs: computes of a request's inputs, once, the keys and values that this reads, [1, heads,
    positions, depth], in the order of the step's inputs for them (`dhlo.integrations.encoder_decoder.source_program`)."""
    max_source_positions: int | None = None
    """Of these, at most, where the encoder gives any number: sources of texts. Memory for so many is kept ready for each of
    `max_sequences`. None: it gives the same number always."""


@dataclass(frozen=True)
class EngineStats:
    """What an engine has done and holds. Blocks are those of the group with the most."""

    running: int
    waiting: int
    steps: int
    prompt_tokens: int
    """Computed, those of preempted requests again."""
    cached_tokens: int
    """Of prompts, found in the cache."""
    generated_tokens: int
    preemptions: int
    blocks: int
    blocks_used: int
    blocks_cached: int
    """Of no request any more, kept for others that begin alike."""
    unused_slots: int
    """Reserved by sequences, without a token."""
    drafted_tokens: int
    accepted_tokens: int
    finished: Mapping[str, int]
    """Choices by `FinishReason.value`."""
    tiers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By tier, `folder` and `store` if there is one: `bytes` there, `blocks` of this model among them, as far as is known (of a
    store: those that were put there), `hits` (blocks that were brought from there), `failures` (what couldn't be written or read,
    or was damaged), `dropped` (blocks that came faster than they could be written)."""
    step_seconds: float = 0.0
    """Spent in steps of the model."""
    host_seconds: float = 0.0
    """Spent between them: scheduling, cache and sampling."""
    drafts: int = 0
    """That were verified, of `drafted_tokens` together."""
    accepted_at: tuple[int, ...] = ()
    """Of `accepted_tokens`, those that were first, second, ... of their draft; of the first 16 positions."""
    draft_steps: int = 0
    """Of the draft model."""
    draft_failures: int = 0
    """Of these: their choices went on without its drafts."""
    draft_seconds: float = 0.0
    """Spent in it: of neither `step_seconds` nor `host_seconds`."""
    swaps: int = 0
    """Of preemptions, those that were swapped out."""
    swapped_bytes: int = 0
    """That they take now."""
    evicted_blocks: int = 0
    """That sequences went on without (`EngineOptions.evict_to`)."""
    encoded: int = 0
    """Runs of the encoder."""
    encoder_seconds: float = 0.0
    """Spent in them: of neither `step_seconds` nor `host_seconds`."""
    failure: str = ""
    """Why the engine can run no requests any more, and another one is needed: a process that runs its steps with it is gone, or
    events can't be handed on. Empty as long as it can."""
