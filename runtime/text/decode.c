// Tokens to text: whole characters, of which a token may be a part.
#include <string.h>

#include "module_fbs.h"
#include "sizes.h"
#include "status.h"
#include "unicode.h"
#include "vocabulary.h"

static const uint8_t replacement[3] = {0xEF, 0xBF, 0xBD};

typedef struct writer_t {
  aot_decoder_t decoder;  // as it becomes
  bool takes_space;       // from the start of the text
  char *text;
  size_t capacity;
  size_t count;  // also of bytes that did not fit
} writer_t;

static void write_character(writer_t *writer, const uint8_t *bytes, size_t count) {
  const bool is_first = !writer->decoder.is_begun;
  writer->decoder.is_begun = true;
  if (is_first && writer->takes_space && bytes[0] == ' ') return;
  if (writer->count + count <= writer->capacity) memcpy(writer->text + writer->count, bytes, count);
  writer->count += count;
}

static void write_byte(writer_t *writer, uint8_t byte) {
  aot_decoder_t *decoder = &writer->decoder;
  uint8_t *kept = decoder->kept;
  kept[decoder->kept_bytes++] = byte;
  while (decoder->kept_bytes > 0) {
    uint32_t character = 0;
    size_t count = aot_utf8_read(kept, decoder->kept_bytes, &character);
    if (count > 0) {
      write_character(writer, kept, count);
    } else {
      count = aot_utf8_wrong(kept, decoder->kept_bytes);
      if (count == 0) return;  // may still become one
      write_character(writer, replacement, sizeof replacement);
    }
    decoder->kept_bytes = (uint8_t)(decoder->kept_bytes - count);
    memmove(kept, kept + count, decoder->kept_bytes);
  }
}

static void write_bytes(writer_t *writer, const uint8_t *text, uint32_t bytes) {
  for (uint32_t i = 0; i < bytes; ++i)
    write_byte(writer, text[i]);
}

// SentencePiece's text: U+2581 is a space.
static void write_piece(writer_t *writer, const uint8_t *text, uint32_t bytes) {
  for (uint32_t i = 0; i < bytes;) {
    if (bytes - i >= 3 && text[i] == 0xE2 && text[i + 1] == 0x96 && text[i + 2] == 0x81) {
      write_byte(writer, ' ');
      i += 3;
    } else {
      write_byte(writer, text[i++]);
    }
  }
}

static unsigned digit(uint8_t character) {
  if (character >= '0' && character <= '9') return character - '0';
  const uint8_t lower = character | 0x20;
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10u : 16;
}

// The byte of a text such as <0x0A>.
static void write_named_byte(writer_t *writer, const uint8_t *text, uint32_t bytes) {
  if (bytes != 6 || digit(text[3]) > 15 || digit(text[4]) > 15) return;
  write_byte(writer, (uint8_t)(digit(text[3]) << 4 | digit(text[4])));
}

static void write_token(writer_t *writer, const aot_vocabulary_t *vocabulary, uint32_t token) {
  uint32_t bytes = 0;
  const uint8_t *text = aot_symbol_text(vocabulary, token, &bytes);
  switch (vocabulary->token_types[token] & AOT_TYPE_MASK) {
    case AOT_FBS_TOKEN_TYPE_NORMAL:
      if (vocabulary->escapes_spaces) {
        write_piece(writer, text, bytes);
      } else {
        write_bytes(writer, text, bytes);
      }
      break;
    case AOT_FBS_TOKEN_TYPE_USER_DEFINED:
      write_bytes(writer, text, bytes);
      break;
    case AOT_FBS_TOKEN_TYPE_BYTE:
      write_named_byte(writer, text, bytes);
      break;
    case AOT_FBS_TOKEN_TYPE_CONTROL:
    case AOT_FBS_TOKEN_TYPE_UNKNOWN:
      if (writer->decoder.shows_control) write_bytes(writer, text, bytes);
      break;
    default:
      break;
  }
}

aot_status_t aot_decode(const aot_vocabulary_t *vocabulary, aot_decoder_t *decoder,
                        const int32_t *tokens, size_t count, char *text, size_t capacity,
                        aot_error_t *error, size_t *out_bytes) {
  if (out_bytes == NULL) return aot_fail(error, AOT_ERROR_ARGUMENT, "out_bytes is NULL");
  *out_bytes = 0;
  if (vocabulary == NULL || decoder == NULL || (tokens == NULL && count > 0) ||
      (text == NULL && capacity > 0)) {
    return aot_fail(error, AOT_ERROR_ARGUMENT,
                    "the vocabulary, the decoder, the tokens or the text are NULL");
  }
  aot_decoder_t own;
  AOT_TRY(aot_struct_take(decoder, "aot_decoder_t", &own, sizeof own, error));
  writer_t writer = {own, vocabulary->adds_space != 0 && !vocabulary->space_is_suffix, text,
                     capacity, 0};
  if (writer.decoder.kept_bytes > 3) {
    return aot_fail(error, AOT_ERROR_ARGUMENT, "the decoder is not one that was zero at first");
  }
  for (size_t i = 0; i < count; ++i) {
    if (tokens[i] < 0 || !aot_is_token(vocabulary, (uint32_t)tokens[i])) {
      return aot_fail(error, AOT_ERROR_ARGUMENT, "token %zu is %ld, the vocabulary has %u", i,
                      (long)tokens[i], (unsigned)vocabulary->token_count);
    }
    write_token(&writer, vocabulary, (uint32_t)tokens[i]);
  }
  *out_bytes = writer.count;
  if (writer.count > capacity) {
    return aot_fail(error, AOT_ERROR_CAPACITY, "the text has %zu bytes, there is room for %zu",
                    writer.count, capacity);
  }
  aot_struct_give(&writer.decoder, sizeof writer.decoder, decoder);
  return AOT_OK;
}

size_t aot_decode_end(aot_decoder_t *decoder, char text[3]) {
  aot_decoder_t own;
  if (text == NULL || aot_struct_take(decoder, "aot_decoder_t", &own, sizeof own, NULL) != AOT_OK ||
      own.kept_bytes == 0) {
    return 0;
  }
  own.kept_bytes = 0;
  own.is_begun = true;
  aot_struct_give(&own, sizeof own, decoder);
  memcpy(text, replacement, sizeof replacement);
  return sizeof replacement;
}
