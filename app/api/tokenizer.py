"""Text to tokens and back, as vLLM's tools and lm-evaluation-harness ask for it, at the root and under /v1."""

from litestar import get, post

from app.api.bodies import decoder, off_loop
from app.completion.tokenizer import TokenizerService
from app.schemas import Detokenized, DetokenizeRequest, Tokenized, TokenizeRequest, TokenizerInfo

_tokenize = decoder(TokenizeRequest)
_detokenize = decoder(DetokenizeRequest)


@post(["/tokenize", "/v1/tokenize"], status_code=200)
async def tokenize(body: bytes, tokenizer: TokenizerService) -> Tokenized:
    """The tokens of a text, as the model would read it."""
    return await off_loop(body, lambda body: tokenizer.tokenize(_tokenize(body)))


@post(["/detokenize", "/v1/detokenize"], status_code=200)
async def detokenize(body: bytes, tokenizer: TokenizerService) -> Detokenized:
    """The text of tokens, special ones by their names: tokenised again, it gives the same tokens."""
    return await off_loop(body, lambda body: tokenizer.detokenize(_detokenize(body)))


@get(["/tokenizer_info", "/v1/tokenizer_info"])
async def tokenizer_info(tokenizer: TokenizerService) -> TokenizerInfo:
    """The special tokens by name; null where the model has none."""
    return tokenizer.info()
