"""Text to tokens and back, as vLLM's tools and lm-evaluation-harness ask for it, at the root and under /v1."""

from typing import Any

from litestar import Request, get, post

from app.api.bodies import decoder, off_loop
from app.api.leases import Leasing
from app.schemas import Detokenized, DetokenizeRequest, Tokenized, TokenizeRequest, TokenizerInfo

_tokenize = decoder(TokenizeRequest)
_detokenize = decoder(DetokenizeRequest)


@post(["/tokenize", "/v1/tokenize"], status_code=200)
async def tokenize(request: Request[Any, Any, Any], body: bytes, leasing: Leasing) -> Tokenized:
    """The tokens of a text, as the model would read it."""
    asked = await off_loop(body, _tokenize)
    tokenizer = (await leasing.of(request, asked.model)).tokenizer
    return await off_loop(body, lambda _: tokenizer.tokenize(asked))


@post(["/detokenize", "/v1/detokenize"], status_code=200)
async def detokenize(request: Request[Any, Any, Any], body: bytes, leasing: Leasing) -> Detokenized:
    """The text of tokens, special ones by their names: tokenised again, it gives the same tokens."""
    asked = await off_loop(body, _detokenize)
    tokenizer = (await leasing.of(request, asked.model)).tokenizer
    return await off_loop(body, lambda _: tokenizer.detokenize(asked))


@get(["/tokenizer_info", "/v1/tokenizer_info"])
async def tokenizer_info(request: Request[Any, Any, Any], leasing: Leasing) -> TokenizerInfo:
    """The special tokens by name, null where the model has none; ?model= names one of several."""
    return (await leasing.of(request, request.query_params.get("model"))).tokenizer.info()
