"""Language models' text: vocabularies as models store them, chat templates and generation.

Files:
    vocabulary, gguf, tokenizer_json: a vocabulary, and how GGUF files and Hugging Face store it
    pre_tokenisers, patterns, characters, unicode_categories: regular expressions by which text is
        cut: by the names of GGUF files, their syntax, and their sets of characters
    word_pieces: what BERT's vocabularies do to text before words become pieces
    language_program, generation, batch: a language module's program; the loop that continues one
        text, and several
    chat: conversations as a module's chat template writes them
    embedding: texts' embeddings by a module that embeds them
"""

from aot.text.vocabulary import NO_SYMBOL, Scheme, TokenType, Vocabulary

__all__ = ["NO_SYMBOL", "Scheme", "TokenType", "Vocabulary"]
