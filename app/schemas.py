"""The wire: what requests and answers look like as JSON.

Types and fixed ranges are declared here, once: they are checked by decoding and shown in the API's description.
What depends on settings or the model is checked by `app.completion.service`.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

Prompt = str | list[str | int | list[int]]

I64 = 2**63


class StreamOptions(Struct, frozen=True, kw_only=True):
    """How a stream reports usage."""

    include_usage: Annotated[
        bool | None, Meta(description="One more chunk before `[DONE]`, without choices, with the totals.")
    ] = None
    continuous_usage_stats: Annotated[
        bool | None, Meta(description="With include_usage: every chunk carries the usage so far.")
    ] = None


class CompletionRequest(Struct, frozen=True, kw_only=True):
    """A request for completions. `null` for any field means its default."""

    model: Annotated[str | None, Meta(description="Id or alias of a served model.")] = None
    prompt: Annotated[
        Prompt | UnsetType | None,
        Meta(
            description="A string, a list of strings, a list of token ids, or a list of lists of token ids.",
            examples=["Once upon a time", ["The sea", "The land"], [818, 5279]],
        ),
    ] = UNSET
    best_of: Annotated[
        Annotated[int, Meta(ge=1, le=20)] | None,
        Meta(description="Candidates sampled for each prompt; the n with the best mean log probability are returned."),
    ] = None
    echo: Annotated[bool | None, Meta(description="Put the prompt before the completion.")] = None
    frequency_penalty: Annotated[
        Annotated[float, Meta(ge=-2, le=2)] | None,
        Meta(description="Subtracted from a token's logit for each time it was generated."),
    ] = None
    presence_penalty: Annotated[
        Annotated[float, Meta(ge=-2, le=2)] | None,
        Meta(description="Subtracted from a token's logit once it was generated."),
    ] = None
    repetition_penalty: Annotated[
        Annotated[float, Meta(gt=0, le=2)] | None,
        Meta(description="Divides the positive logits, multiplies the negative ones, of all tokens so far."),
    ] = None
    logit_bias: Annotated[
        dict[str, float] | None,
        Meta(description="Token id to a number in -100..100, added to its logit. -100 bans, 100 forces."),
    ] = None
    logprobs: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="Log probabilities of the tokens, and of so many of the likeliest at each position."),
    ] = None
    max_tokens: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="Most tokens to generate; 0 only reads. Default 16."),
    ] = None
    n: Annotated[Annotated[int, Meta(ge=1, le=128)] | None, Meta(description="Choices for each prompt.")] = None
    seed: Annotated[
        Annotated[int, Meta(ge=-I64, le=I64 - 1)] | None,
        Meta(description="The same seed draws the same tokens. -1 and null: random."),
    ] = None
    stop: Annotated[
        str | list[str] | None,
        Meta(description="Strings before which the text ends; they are not part of it."),
    ] = None
    stream: Annotated[bool | None, Meta(description="Answer with server-sent events.")] = None
    stream_options: StreamOptions | None = None
    suffix: Annotated[str | None, Meta(description="Text that follows the completion.")] = None
    temperature: Annotated[Annotated[float, Meta(ge=0, le=2)] | None, Meta(description="0 is greedy. Default 1.")] = (
        None
    )
    top_p: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None, Meta(description="Mass of the nucleus to sample from.")
    ] = None
    user: Annotated[str | None, Meta(description="Kept for the request's log line.")] = None

    top_k: Annotated[
        Annotated[int, Meta(ge=-1)] | None,
        Meta(description="Sample from the k likeliest tokens; 0 and -1: from all."),
    ] = None
    min_p: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="Sample from tokens at least min_p times as likely as the likeliest."),
    ] = None
    ignore_eos: Annotated[bool | None, Meta(description="Never draw an end-of-generation token.")] = None
    min_tokens: Annotated[Annotated[int, Meta(ge=0)] | None, Meta(description="Do not end before so many tokens.")] = (
        None
    )
    stop_token_ids: Annotated[
        list[int] | None, Meta(description="Tokens that end the completion, beside the model's own.")
    ] = None
    truncate_prompt_tokens: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Read only the last so many tokens of each prompt."),
    ] = None
    return_token_ids: Annotated[
        bool | None, Meta(description="Add `token_ids` and `prompt_token_ids` to each choice.")
    ] = None
    cache_prompt: Annotated[
        bool | None, Meta(description="Whether a beginning that was read for others is not read again. Default true.")
    ] = None


EXTENSIONS = frozenset(
    {
        "top_k",
        "min_p",
        "ignore_eos",
        "min_tokens",
        "stop_token_ids",
        "truncate_prompt_tokens",
        "return_token_ids",
        "cache_prompt",
    }
)
"""Fields that OpenAI's API does not have; refused with --strict."""


class PromptTokensDetails(Struct):
    """Where the prompt tokens came from."""

    cached_tokens: int = 0


class Usage(Struct):
    """Tokens read, once a prompt; and drawn, for all candidates."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TokenizeRequest(Struct, frozen=True, kw_only=True):
    """A text to be cut into tokens. Special tokens in it are parsed."""

    model: str | None = None
    prompt: str
    add_special_tokens: Annotated[bool | None, Meta(description="Put BOS first if the model asks for it.")] = None


class Tokenized(Struct):
    """The tokens of a text."""

    tokens: list[int]
    count: int
    max_model_len: int


class DetokenizeRequest(Struct, frozen=True, kw_only=True):
    """Tokens to be made text."""

    model: str | None = None
    tokens: list[int]


class Detokenized(Struct):
    """The text of tokens."""

    prompt: str


class TokenizerInfo(Struct):
    """The model's special tokens by name, null where it has none; its chat template, which segue does not use."""

    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    add_bos_token: bool
    model_max_length: int
    chat_template: str | None


class FimRequest(Struct, frozen=True, kw_only=True):
    """A gap to be filled, as Mistral's API asks for it. Fields mean what they mean in a CompletionRequest."""

    model: str | None = None
    prompt: str
    suffix: str | None = None
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    random_seed: Annotated[int, Meta(ge=-I64, le=I64 - 1)] | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None


class Message(Struct):
    """What was inserted, in the form of a chat's answer."""

    content: str
    role: Literal["assistant"] = "assistant"


class FimChoice(Struct):
    """One insertion; a stream has `delta` in place of `message`."""

    index: int
    finish_reason: Literal["stop", "length"] | None
    message: Message | UnsetType = UNSET
    delta: Message | UnsetType = UNSET


class FimCompletion(Struct):
    """Mistral's answer."""

    id: str
    object: Literal["chat.completion", "chat.completion.chunk"]
    created: int
    model: str
    choices: list[FimChoice]
    usage: Usage | UnsetType = UNSET


class InfillRequest(Struct, frozen=True, kw_only=True):
    """A gap to be filled, as llama.cpp's /infill asks for it; the defaults are that server's.

    `prompt` follows `input_prefix`. n_predict -1: until the gap is full, or the context.
    """

    model: str | None = None
    input_prefix: str | None = None
    input_suffix: str | None = None
    prompt: str | None = None
    n_predict: Annotated[int, Meta(ge=-1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-I64, le=I64 - 1)] | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None


class Timings(Struct):
    """How long it took: tokens, milliseconds, and tokens a second, of the prompt and of the completion."""

    prompt_n: int
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float


class Infilled(Struct):
    """llama.cpp's answer; in a stream `stop` is false on all chunks but the last."""

    content: str
    stop: bool
    model: str | UnsetType = UNSET
    stop_type: Literal["eos", "limit", "none"] | UnsetType = UNSET
    tokens_predicted: int | UnsetType = UNSET
    tokens_evaluated: int | UnsetType = UNSET
    tokens_cached: int | UnsetType = UNSET
    truncated: bool | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET


class Props(Struct):
    """What llama.cpp's clients ask a server of itself."""

    default_generation_settings: dict[str, int]
    total_slots: int
    model_alias: str
    model_path: str
    chat_template: str
    modalities: dict[str, bool]
    build_info: str


class Logprobs(Struct):
    """Four arrays of one length: one entry a token."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    text_offset: list[int] = []

    def extend(self, other: "Logprobs") -> None:
        """Append the entries of another."""
        self.tokens += other.tokens
        self.token_logprobs += other.token_logprobs
        self.top_logprobs += other.top_logprobs
        self.text_offset += other.text_offset


class Choice(Struct):
    """A completion, or in a stream a piece of one."""

    text: str
    index: int
    logprobs: Logprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Completion(Struct):
    """The answer, or in a stream a chunk of it, whose `usage` is there only if asked for."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: Usage | UnsetType | None = UNSET


class DeviceShare(Struct):
    """What a device holds of the model: layers, and bytes of weights, of the KV cache, and to compute in."""

    name: str
    description: str
    layers: int
    weights_bytes: int
    cache_bytes: int
    compute_bytes: int


class OffloadMeta(Struct):
    """How many layers were asked onto GPUs, and how many are there, the output after the last block counted as one."""

    gpu_layers_asked: int | Literal["all", "auto"]
    gpu_layers: int
    layers: int
    flash_attention: bool
    cache_type_k: str
    cache_type_v: str
    devices: list[DeviceShare]


class ModelMeta(Struct):
    """What a model is: sizes in tokens, parameters and bytes."""

    architecture: str
    n_vocab: int
    n_params: int
    size: int
    quantization: str
    n_ctx_train: int
    supports_suffix: bool
    offload: OffloadMeta


class ModelStatus(Struct, omit_defaults=True):
    """The state in the words of llama.cpp's router."""

    value: Literal["unloaded", "loading", "loaded"]
    failed: bool = False


class Model(Struct):
    """A name under which a model is served; `root` is the model's own id. meta: null until it was loaded once."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int
    state: Literal["unloaded", "loading", "loaded", "failed"]
    status: ModelStatus
    meta: ModelMeta | None


class ModelList(Struct):
    """Every name that can be asked for."""

    object: Literal["list"]
    data: list[Model]


class Health(Struct):
    """A token could be generated now."""

    status: Literal["ok"]


class ErrorBody(Struct):
    """What went wrong. `param`: the field at fault. `code`: for programs."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(Struct):
    """The envelope of every error."""

    error: ErrorBody
