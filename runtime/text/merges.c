// Merging the neighbours that come first until none are left: of bytes or characters by a table of
// pairs, or of characters by the score of what they make.  Short parts by looking at all pairs each
// time, long ones with a heap: the time is at most in the length times its logarithm.
#include "merges.h"

#include <string.h>

#include "module_fbs.h"
#include "status.h"
#include "unicode.h"

#define SHORT 40u         // symbols of a part that needs no heap
#define NEVER UINT32_MAX  // the priority of neighbours that don't merge
#define NONE UINT32_MAX   // no neighbour

// A stretch of the text, and the symbol that it is: of SCORED_MERGES, only once it was merged.
typedef struct node_t {
  uint32_t begin;
  uint32_t bytes;  // 0: its left neighbour has taken it
  uint32_t symbol;
  uint32_t previous;
  uint32_t next;
} node_t;

typedef struct merge_t {
  uint64_t key;  // the priority, and the left node: the least comes first
  uint32_t right;
  uint32_t bytes;  // of both nodes: they have not changed if they still have these
  uint32_t made;
} merge_t;

typedef struct part_t {
  const aot_vocabulary_t *vocabulary;
  const uint8_t *text;
  node_t *nodes;
  size_t count;
} part_t;

// The greater a score, the less.
static uint32_t priority_of(float score) {
  uint32_t bits = 0;
  score += 0.0f;  // no negative zero
  memcpy(&bits, &score, sizeof bits);
  if (score != score) return NEVER - 1;
  const uint32_t ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
  return ~ordered == NEVER ? NEVER - 1 : ~ordered;
}

static uint32_t pair_priority(const part_t *part, const node_t *left, const node_t *right,
                              uint32_t *out_made) {
  const aot_vocabulary_t *vocabulary = part->vocabulary;
  if (vocabulary->scheme != AOT_FBS_SCHEME_SCORED_MERGES) {
    return aot_merge_find(vocabulary, left->symbol, right->symbol, out_made);
  }
  *out_made =
      aot_symbol_find(vocabulary, part->text + left->begin, (size_t)left->bytes + right->bytes);
  return *out_made == AOT_NO_SYMBOL ? NEVER : priority_of(aot_token_score(vocabulary, *out_made));
}

// ---- short parts ----

static void merge_short(part_t *part) {
  uint32_t priorities[SHORT];
  uint32_t made[SHORT];
  node_t *nodes = part->nodes;
  size_t count = part->count;
  for (size_t i = 0; i + 1 < count; ++i)
    priorities[i] = pair_priority(part, &nodes[i], &nodes[i + 1], &made[i]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i)
      if (priorities[i] < priorities[best]) best = i;
    if (priorities[best] == NEVER) break;
    nodes[best].bytes += nodes[best + 1].bytes;
    nodes[best].symbol = made[best];
    --count;
    memmove(nodes + best + 1, nodes + best + 2, (count - best - 1) * sizeof *nodes);
    if (best + 1 < count) {
      memmove(priorities + best + 1, priorities + best + 2,
              (count - best - 2) * sizeof *priorities);
      memmove(made + best + 1, made + best + 2, (count - best - 2) * sizeof *made);
      priorities[best] = pair_priority(part, &nodes[best], &nodes[best + 1], &made[best]);
    }
    if (best > 0) {
      priorities[best - 1] = pair_priority(part, &nodes[best - 1], &nodes[best], &made[best - 1]);
    }
  }
  part->count = count;
}

// ---- long parts ----

typedef struct heap_t {
  merge_t *merges;
  size_t count;
} heap_t;

static void heap_push(heap_t *heap, merge_t merge) {
  size_t at = heap->count++;
  while (at > 0 && merge.key < heap->merges[(at - 1) / 2].key) {
    heap->merges[at] = heap->merges[(at - 1) / 2];
    at = (at - 1) / 2;
  }
  heap->merges[at] = merge;
}

static merge_t heap_pop(heap_t *heap) {
  const merge_t first = heap->merges[0];
  const merge_t last = heap->merges[--heap->count];
  size_t at = 0;
  for (;;) {
    size_t child = 2 * at + 1;
    if (child >= heap->count) break;
    if (child + 1 < heap->count && heap->merges[child + 1].key < heap->merges[child].key) ++child;
    if (last.key <= heap->merges[child].key) break;
    heap->merges[at] = heap->merges[child];
    at = child;
  }
  heap->merges[at] = last;
  return first;
}

static void add_pair(const part_t *part, heap_t *heap, uint32_t left, uint32_t right) {
  if (left == NONE || right == NONE) return;
  const node_t *nodes = part->nodes;
  uint32_t made = 0;
  const uint32_t priority = pair_priority(part, &nodes[left], &nodes[right], &made);
  if (priority == NEVER) return;
  heap_push(heap, (merge_t){(uint64_t)priority << 32 | left, right,
                            nodes[left].bytes + nodes[right].bytes, made});
}

// A merge makes at most two new pairs, so that 3 * count of them are enough.
static void merge_long(part_t *part, merge_t *merges) {
  heap_t heap = {merges, 0};
  node_t *nodes = part->nodes;
  const uint32_t count = (uint32_t)part->count;
  for (uint32_t i = 0; i < count; ++i) {
    nodes[i].previous = i == 0 ? NONE : i - 1;
    nodes[i].next = i + 1 == count ? NONE : i + 1;
  }
  for (uint32_t i = 0; i + 1 < count; ++i)
    add_pair(part, &heap, i, i + 1);
  while (heap.count > 0) {
    const merge_t merge = heap_pop(&heap);
    const uint32_t left = (uint32_t)merge.key;
    node_t *taken = &nodes[merge.right];
    if (nodes[left].bytes == 0 || taken->bytes == 0) continue;
    if (nodes[left].bytes + taken->bytes != merge.bytes) continue;
    nodes[left].bytes = merge.bytes;
    nodes[left].symbol = merge.made;
    nodes[left].next = taken->next;
    taken->bytes = 0;
    if (taken->next != NONE) nodes[taken->next].previous = left;
    add_pair(part, &heap, nodes[left].previous, left);
    add_pair(part, &heap, left, nodes[left].next);
  }
  size_t kept = 0;
  for (uint32_t i = 0; i < count; ++i)
    if (nodes[i].bytes > 0) nodes[kept++] = nodes[i];
  part->count = kept;
}

static void merge(part_t *part, merge_t *merges) {
  if (part->count <= SHORT) {
    merge_short(part);
  } else {
    merge_long(part, merges);
  }
}

// ---- bytes ----

// A symbol that is no token is the tokens of its bytes.  As with llama.cpp, those without one are
// left out: the unknown token of such vocabularies is often the one that ends text.
static void push_symbol(aot_encoder_t *encoder, uint32_t symbol) {
  const aot_vocabulary_t *vocabulary = encoder->vocabulary;
  if (aot_is_token(vocabulary, symbol)) {
    aot_push(encoder, symbol);
    return;
  }
  uint32_t bytes = 0;
  const uint8_t *text = aot_symbol_text(vocabulary, symbol, &bytes);
  for (uint32_t i = 0; i < bytes && vocabulary->byte_symbol_count > 0; ++i) {
    const uint32_t token = vocabulary->byte_symbols[text[i]];
    if (aot_is_token(vocabulary, token)) aot_push(encoder, token);
  }
}

#define OF_LINE_ENDS 2u  // of ignores_merges

// Whether a part that is a token is that token, whatever merges make of it.
static bool takes_whole(const aot_vocabulary_t *vocabulary, const uint8_t *text, size_t bytes) {
  if (vocabulary->ignores_merges != OF_LINE_ENDS) return vocabulary->ignores_merges != 0;
  size_t ends = 0;
  while (ends < bytes && text[ends] == '\n')
    ++ends;
  return ends == bytes;
}

// Whether a part was the token of its text.
static bool push_whole(aot_encoder_t *encoder, const uint8_t *text, size_t bytes) {
  const uint32_t whole = aot_symbol_find(encoder->vocabulary, text, bytes);
  if (whole != AOT_NO_SYMBOL) aot_push(encoder, whole);
  return whole != AOT_NO_SYMBOL;
}

aot_status_t aot_merge_bytes(aot_encoder_t *encoder, const uint8_t *text, size_t bytes) {
  const aot_vocabulary_t *vocabulary = encoder->vocabulary;
  if ((bytes == 1 || takes_whole(vocabulary, text, bytes)) && push_whole(encoder, text, bytes))
    return AOT_OK;
  node_t own[SHORT];
  part_t part = {vocabulary, text, own, bytes};
  merge_t *merges = NULL;
  if (bytes > SHORT) {
    void *memory = NULL;
    AOT_TRY(aot_encoder_memory(encoder, bytes * (3 * sizeof(merge_t) + sizeof(node_t)), &memory));
    merges = memory;
    part.nodes = (node_t *)(void *)(merges + 3 * bytes);
  }
  for (uint32_t i = 0; i < bytes; ++i)
    part.nodes[i] = (node_t){i, 1, vocabulary->byte_symbols[text[i]], NONE, NONE};
  merge(&part, merges);
  for (size_t i = 0; i < part.count; ++i)
    push_symbol(encoder, part.nodes[i].symbol);
  return AOT_OK;
}

// ---- characters ----

// The nodes of a character: one, or where only its bytes have tokens, and merges are of tokens, one
// for each of those.
static size_t add_character(const aot_vocabulary_t *vocabulary, const uint8_t *text, uint32_t begin,
                            uint32_t bytes, node_t *nodes) {
  const bool is_scored = vocabulary->scheme == AOT_FBS_SCHEME_SCORED_MERGES;
  uint32_t symbol = is_scored ? AOT_NO_SYMBOL : aot_symbol_find(vocabulary, text + begin, bytes);
  nodes[0] = (node_t){begin, bytes, symbol, NONE, NONE};
  if (is_scored || symbol != AOT_NO_SYMBOL || vocabulary->byte_symbol_count == 0) return 1;
  for (uint32_t i = 0; i < bytes; ++i) {
    if (!aot_is_token(vocabulary, vocabulary->byte_symbols[text[begin + i]])) return 1;
  }
  for (uint32_t i = 0; i < bytes; ++i)
    nodes[i] = (node_t){begin + i, 1, vocabulary->byte_symbols[text[begin + i]], NONE, NONE};
  return bytes;
}

// SentencePiece's way to write a space.
static size_t write_space(const aot_vocabulary_t *vocabulary, uint8_t *out) {
  static const uint8_t space[3] = {0xE2, 0x96, 0x81};
  if (!vocabulary->escapes_spaces) {
    out[0] = ' ';
    return 1;
  }
  memcpy(out, space, sizeof space);
  return sizeof space;
}

// `text` with its spaces written so; at most three times as long.
static size_t write_text(const aot_vocabulary_t *vocabulary, const uint8_t *text, size_t bytes,
                         bool adds_space, uint8_t *out) {
  size_t count = adds_space ? write_space(vocabulary, out) : 0;
  for (size_t i = 0; i < bytes; ++i) {
    if (text[i] == ' ') {
      count += write_space(vocabulary, out + count);
    } else {
      out[count++] = text[i];
    }
  }
  return count;
}

aot_status_t aot_merge_characters(aot_encoder_t *encoder, const uint8_t *text, size_t bytes,
                                  bool adds_space) {
  const aot_vocabulary_t *vocabulary = encoder->vocabulary;
  if (takes_whole(vocabulary, text, bytes) && push_whole(encoder, text, bytes)) return AOT_OK;
  // Nodes: a character each, or where those of a space are its bytes, three each.
  const bool is_scored = vocabulary->scheme == AOT_FBS_SCHEME_SCORED_MERGES;
  const uint64_t most = ((uint64_t)bytes + 1) * (is_scored ? 1 : 3);
  void *memory = NULL;
  AOT_TRY(aot_encoder_memory(encoder, most * (3 * sizeof(merge_t) + sizeof(node_t) + 3), &memory));
  merge_t *merges = memory;
  node_t *nodes = (node_t *)(void *)(merges + 3 * most);
  uint8_t *own = (uint8_t *)(nodes + most);
  const size_t length = write_text(vocabulary, text, bytes, adds_space, own);
  part_t part = {vocabulary, own, nodes, 0};
  for (uint32_t at = 0; at < length;) {
    const uint32_t width = (uint32_t)aot_utf8_bytes(own[at]);
    part.count += add_character(vocabulary, own, at, width, nodes + part.count);
    at += width;
  }
  merge(&part, merges);
  for (size_t i = 0; i < part.count; ++i) {
    const node_t *node = &nodes[i];
    uint32_t symbol = node->symbol;
    if (symbol == AOT_NO_SYMBOL)
      symbol = aot_symbol_find(vocabulary, own + node->begin, node->bytes);
    if (symbol == AOT_NO_SYMBOL) {
      aot_push_bytes(encoder, own + node->begin, node->bytes);
    } else {
      push_symbol(encoder, symbol);
    }
  }
  return AOT_OK;
}
