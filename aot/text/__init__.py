"""Language models' text: vocabularies as models store them, chat templates and generation.

Files:
    vocabulary, gguf, tokenizer_json: a vocabulary, and how GGUF files and Hugging Face store it
    language_program, generation, batch: a language module's program; the loop that continues one
        text, and several
    chat: conversations as a module's chat template writes them
    embedding: texts' embeddings by a module that embeds them
"""

from aot.text.vocabulary import NO_SYMBOL, PreTokeniser, Scheme, TokenType, Vocabulary

__all__ = ["NO_SYMBOL", "PreTokeniser", "Scheme", "TokenType", "Vocabulary"]
