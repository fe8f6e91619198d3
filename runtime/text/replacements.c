// Lookup of the longest start of a text in SentencePiece's double array.
#include "replacements.h"

#include <string.h>

#include "unicode.h"

#define MOST_TEXT_BYTES 1024u  // of one: a text grows by no more for each of its bytes

aot_replacements_t aot_replacements_open(const aot_vocabulary_t *vocabulary) {
  aot_replacements_t table = {NULL, 0, NULL, 0};
  const uint8_t *data = vocabulary->replacements;
  if (vocabulary->replacement_bytes <= 4) return table;
  uint32_t bytes = 0;
  memcpy(&bytes, data, sizeof bytes);
  const uint32_t rest = vocabulary->replacement_bytes - 4;
  if (bytes >= rest || bytes % 4 != 0) return table;
  return (aot_replacements_t){data + 4, bytes / 4, data + 4 + bytes, rest - bytes};
}

bool aot_is_replacement_table(const aot_vocabulary_t *vocabulary) {
  if (vocabulary->replacement_bytes == 0) return true;
  const aot_replacements_t table = aot_replacements_open(vocabulary);
  uint32_t length = 0;
  for (uint32_t i = 0; i < table.text_bytes; ++i) {
    length = table.texts[i] == 0 ? 0 : length + 1;
    if (length > MOST_TEXT_BYTES) return false;
  }
  return table.text_bytes > 0 && table.texts[table.text_bytes - 1] == 0 &&
         aot_utf8_check(table.texts, table.text_bytes) == table.text_bytes;
}

// Whether a character may begin at a byte of a text, or the text end before it.
static bool is_boundary(uint8_t byte) {
  return (byte & 0xC0) != 0x80;
}

static bool node_at(const aot_replacements_t *table, uint32_t index, uint32_t *out_node) {
  if (index >= table->node_count) return false;
  memcpy(out_node, table->nodes + 4 * (size_t)index, sizeof *out_node);
  return true;
}

static uint32_t base_of(uint32_t node) {
  return (node >> 10) << ((node & (1u << 9)) >> 6);
}

size_t aot_replaced(const aot_replacements_t *table, const uint8_t *text, size_t bytes,
                    const uint8_t **out_text, size_t *out_bytes) {
  size_t longest = 0;
  uint32_t place = 0;
  uint32_t node = 0;
  if (!node_at(table, 0, &node)) return 0;
  uint32_t index = base_of(node);
  for (size_t i = 0; i < bytes && text[i] != 0; ++i) {
    index ^= text[i];
    if (!node_at(table, index, &node) || (node & 0x800000FFu) != text[i]) break;
    index ^= base_of(node);
    if ((node >> 8 & 1) == 0) continue;
    if (i + 1 < bytes && !is_boundary(text[i + 1])) continue;
    if (!node_at(table, index, &node)) break;
    longest = i + 1;
    place = node & 0x7FFFFFFFu;
  }
  if (longest == 0 || place >= table->text_bytes || !is_boundary(table->texts[place])) return 0;
  const uint8_t *end = memchr(table->texts + place, 0, table->text_bytes - place);
  if (end == NULL) return 0;
  *out_text = table->texts + place;
  *out_bytes = (size_t)(end - *out_text);
  return longest;
}
