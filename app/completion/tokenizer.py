"""Text to tokens and back, by the rules that completions read prompts by."""

from app.completion import checks, prompts
from app.engine.backend import Vocabulary
from app.schemas import Detokenized, DetokenizeRequest, Tokenized, TokenizeRequest, TokenizerInfo


class TokenizerService:
    """The tokenizer of one model. n_context: what a request may hold."""

    def __init__(self, vocabulary: Vocabulary, n_context: int) -> None:
        self._vocabulary = vocabulary
        self._n_context = n_context

    def tokenize(self, request: TokenizeRequest) -> Tokenized:
        """A text's tokens; with `add_special_tokens`, after the BOS that a completion would read."""
        vocabulary = self._vocabulary
        tokens = vocabulary.tokenize(request.prompt)
        if request.add_special_tokens is not False:
            tokens = prompts.with_bos(vocabulary, tokens)
        return Tokenized(tokens, len(tokens), self._n_context)

    def detokenize(self, request: DetokenizeRequest) -> Detokenized:
        """The text of tokens. Raises InvalidRequest for an id that is none."""
        vocabulary = self._vocabulary
        tokens = [checks.token_id(token, vocabulary.n_tokens, "tokens") for token in request.tokens]
        return Detokenized(prompts.decoded(vocabulary, tokens, special=True))

    def info(self) -> TokenizerInfo:
        """What the model's special tokens are called."""
        vocabulary = self._vocabulary
        bos, eos, pad = (
            None if token is None else prompts.written(vocabulary.name(token))
            for token in (vocabulary.bos, vocabulary.eos, vocabulary.pad)
        )
        return TokenizerInfo(bos, eos, pad, vocabulary.adds_bos, self._n_context, vocabulary.chat_template)
