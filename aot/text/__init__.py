"""What a language model makes of text: vocabularies, as models have them."""

from aot.text.vocabulary import NO_SYMBOL, ChatForm, PreTokeniser, Scheme, TokenType, Vocabulary

__all__ = ["NO_SYMBOL", "ChatForm", "PreTokeniser", "Scheme", "TokenType", "Vocabulary"]
