// Values of a chat template that is being run, as Python and Jinja have them, and the memory that
// they are in.  The first thing that fails stops the run: what is computed behind that is empty,
// and aot_render_t.status says so, so that callers check once for an instruction.
#ifndef AOT_TEMPLATE_VALUE_H_
#define AOT_TEMPLATE_VALUE_H_

#include "status.h"
#include "template.h"

typedef enum aot_kind_t {
  AOT_MISSING = 0,  // no value: a variable that is not set, an argument that was not given
  AOT_UNDEFINED,    // Jinja's
  AOT_NONE,
  AOT_BOOL,
  AOT_INT,
  AOT_FLOAT,
  AOT_STRING,
  AOT_LIST,
  AOT_MAP,
  AOT_NAMESPACE,
  AOT_MACRO,
  AOT_LOOP,
  AOT_FUNCTION,
  AOT_METHOD,  // of an object, that is not called
} aot_kind_t;

// Sorts of lists.
enum { AOT_IS_LIST = 0, AOT_IS_TUPLE, AOT_IS_RANGE, AOT_IS_VIEW, AOT_IS_GENERATOR };

typedef struct aot_value_t {
  uint8_t kind;
  union {
    bool boolean;
    int64_t integer;
    double number;
    uint32_t function;
    struct aot_string_t *string;  // UNDEFINED: the name, or NULL
    struct aot_list_t *list;
    struct aot_map_t *map;  // NAMESPACE too
    struct aot_macro_t *macro;
    struct aot_loop_t *loop;
  } as;
} aot_value_t;

// UTF-8.  A mark of a byte says who wrote it: 0, the template.
typedef struct aot_string_t {
  const uint8_t *bytes;
  const uint8_t *marks;  // NULL: all are `mark`
  uint32_t length;
  uint32_t characters;  // UINT32_MAX: not counted yet
  uint8_t mark;
} aot_string_t;

typedef struct aot_list_t {
  aot_value_t *items;
  uint32_t count;
  uint32_t capacity;
  uint8_t sort;
} aot_list_t;

// Keys and values in turn, in the order in which they came.
typedef struct aot_map_t {
  aot_value_t *pairs;
  uint32_t count;
  uint32_t capacity;
} aot_map_t;

// The variables of a function that is running, or that macros remember.
typedef struct aot_environment_t {
  struct aot_environment_t *parent;
  aot_value_t slots[];
} aot_environment_t;

typedef struct aot_macro_t {
  uint32_t function;
  aot_environment_t *outer;
} aot_macro_t;

typedef struct aot_loop_t {
  aot_list_t *list;
  uint32_t next;  // the element behind the present one
} aot_loop_t;

typedef struct aot_chunk_t aot_chunk_t;

// A run.
typedef struct aot_render_t {
  const aot_allocator_t *allocator;
  const aot_template_t *code;
  aot_error_t *error;
  aot_status_t status;
  uint64_t steps;  // that are left
  uint64_t bytes;  // of memory that are left
  aot_chunk_t *chunks;
  aot_string_t *texts;  // of the code
  aot_map_t *variables;
  int64_t seconds;  // of the local clock since 1970; INT64_MIN: there is none
  aot_string_t empty;
  aot_list_t no_items;
  aot_map_t no_pairs;
} aot_render_t;

#define AOT_MOST_NESTING 64u  // of values in values

// ---- memory, steps and failing ----

// template_memory.c: all of this section but what is inline.

// Says what is wrong, unless something was before; false.
bool aot_render_fail(aot_render_t *render, const char *format, ...) AOT_PRINTF(2, 3);
// Counts work; false where there was too much.
bool aot_render_work(aot_render_t *render, uint64_t steps);
// Zeroed, for the rest of the run; NULL where there is none.
void *aot_render_allocate(aot_render_t *render, uint64_t bytes);
void aot_render_free(aot_render_t *render);

aot_list_t *aot_list_new(aot_render_t *render, uint32_t capacity, uint8_t sort);
void aot_list_push(aot_render_t *render, aot_list_t *list, aot_value_t value);
aot_map_t *aot_map_new(aot_render_t *render, uint32_t capacity);
// Makes room for one more in an array; false where there is none.
bool aot_grow(aot_render_t *render, void **items, uint32_t count, uint32_t *capacity, size_t size);

// Text that grows.
typedef struct aot_builder_t {
  aot_render_t *render;
  uint8_t *bytes;
  uint8_t *marks;  // NULL: all are `mark`
  uint32_t length;
  uint32_t capacity;
  uint8_t mark;
} aot_builder_t;

void aot_build(aot_builder_t *builder, const void *bytes, size_t count, uint8_t mark);
void aot_build_string(aot_builder_t *builder, const aot_string_t *string);
void aot_build_character(aot_builder_t *builder, uint32_t character, uint8_t mark);
void aot_build_text(aot_builder_t *builder, const char *text);
aot_value_t aot_built(aot_builder_t *builder);

// ---- making values ----

static inline aot_value_t aot_none(void) {
  return (aot_value_t){.kind = AOT_NONE};
}
static inline aot_value_t aot_missing(void) {
  return (aot_value_t){.kind = AOT_MISSING};
}
static inline aot_value_t aot_undefined(aot_string_t *name) {
  return (aot_value_t){.kind = AOT_UNDEFINED, .as.string = name};
}
static inline aot_value_t aot_bool(bool value) {
  return (aot_value_t){.kind = AOT_BOOL, .as.boolean = value};
}
static inline aot_value_t aot_int(int64_t value) {
  return (aot_value_t){.kind = AOT_INT, .as.integer = value};
}
static inline aot_value_t aot_float(double value) {
  return (aot_value_t){.kind = AOT_FLOAT, .as.number = value};
}
static inline aot_value_t aot_string(aot_string_t *value) {
  return (aot_value_t){.kind = AOT_STRING, .as.string = value};
}
static inline aot_value_t aot_list(aot_list_t *value) {
  return (aot_value_t){.kind = AOT_LIST, .as.list = value};
}
static inline aot_value_t aot_map(aot_map_t *value) {
  return (aot_value_t){.kind = AOT_MAP, .as.map = value};
}
static inline bool aot_is(aot_value_t value, aot_kind_t kind) {
  return value.kind == kind;
}
// The bytes of a text for a message, which cuts what it has no room for.
static inline int aot_shown(const aot_string_t *string) {
  return string->length < 0x1000 ? (int)string->length : 0x1000;
}
static inline uint8_t aot_mark_at(const aot_string_t *string, uint32_t at) {
  return string->marks != NULL ? string->marks[at] : string->mark;
}

// ---- what values are ----

void aot_map_set(aot_render_t *render, aot_map_t *map, aot_value_t key, aot_value_t value);
// NULL where there is no such key.
const aot_value_t *aot_map_find(aot_render_t *render, const aot_map_t *map, aot_value_t key);
const aot_value_t *aot_map_find_text(aot_render_t *render, const aot_map_t *map, const char *key);

const char *aot_type_name(aot_value_t value);
bool aot_truth(aot_value_t value);
// Of INT and BOOL.
bool aot_whole(aot_value_t value, int64_t *out_integer);
bool aot_number(aot_value_t value, double *out_number);
bool aot_equal(aot_render_t *render, aot_value_t left, aot_value_t right);
// Less than 0, 0 or more; fails where the two have no order.
int aot_order(aot_render_t *render, aot_value_t left, aot_value_t right);
bool aot_contains(aot_render_t *render, aot_value_t whole, aot_value_t part);
// The elements of a value; a generator has none left then.  An empty list where it has none.
aot_list_t *aot_elements(aot_render_t *render, aot_value_t value);
bool aot_length(aot_value_t value, int64_t *out_length);
// value.name and value[key]; `names` says which types have an attribute of that name.
aot_value_t aot_attribute(aot_render_t *render, aot_value_t value, aot_string_t *name,
                          uint32_t names);
aot_value_t aot_item(aot_render_t *render, aot_value_t value, aot_value_t key, uint32_t names);
// Of a path such as "a.0.b", as filters take it.
aot_value_t aot_path(aot_render_t *render, aot_value_t value, aot_value_t path);
aot_value_t aot_slice(aot_render_t *render, aot_value_t value, const aot_value_t bounds[3]);

// ---- text ----

// template_text.c: parts, places, cases and kinds of characters.
// template_write.c: values as text, and numbers of text.
// template_json.c: JSON that is read.

uint32_t aot_characters(aot_string_t *string);
// A part of a string by bytes, which shares them.
aot_string_t *aot_part(aot_render_t *render, const aot_string_t *string, uint32_t begin,
                       uint32_t end);
// The byte at which a character begins.
uint32_t aot_character_at(aot_string_t *string, uint32_t index);
bool aot_strings_equal(const aot_string_t *left, const aot_string_t *right);
// Where `part` is in a string from a byte on, the first or the last place; UINT32_MAX: nowhere.
uint32_t aot_find(aot_render_t *render, const aot_string_t *string, const aot_string_t *part,
                  uint32_t begin, bool is_last);
enum { AOT_STRIP_BEGIN = 1, AOT_STRIP_END = 2 };
// `characters` NULL: white space.
aot_string_t *aot_stripped(aot_render_t *render, aot_string_t *string, aot_string_t *characters,
                           int sides);
aot_value_t aot_with_replaced(aot_render_t *render, const aot_string_t *string,
                              const aot_string_t *old, const aot_string_t *by, int64_t most);
aot_value_t aot_split(aot_render_t *render, aot_string_t *string, const aot_string_t *separator,
                      int64_t most, bool is_from_end);
aot_value_t aot_lines(aot_render_t *render, aot_string_t *string, bool keeps_ends);
enum { AOT_LOWER, AOT_UPPER, AOT_CAPITALIZED, AOT_TITLE, AOT_TITLE_OF_WORDS };
aot_value_t aot_in_case(aot_render_t *render, aot_string_t *string, int how);
bool aot_is_white(uint32_t character);
bool aot_is_printable(uint32_t character);
uint32_t aot_read_character(const aot_string_t *string, uint32_t *at);

// What str() makes of a value, and what writing it writes.
void aot_write(aot_builder_t *builder, aot_value_t value);
aot_string_t *aot_as_string(aot_render_t *render, aot_value_t value);
void aot_write_float(aot_builder_t *builder, double number);

// Options of Python's json.dumps.
typedef struct aot_json_options_t {
  const aot_string_t *indent;  // NULL: in one line
  const aot_string_t *between;
  const aot_string_t *behind_key;
  bool is_ascii;
  bool sorts_keys;
} aot_json_options_t;

void aot_write_json(aot_builder_t *builder, aot_value_t value, const aot_json_options_t *options);
// A value of JSON; `own_marks` where strings below "messages" have the number of their message.
bool aot_read_json(aot_render_t *render, const char *text, size_t bytes, aot_value_t *out_value);
bool aot_read_float(const char *text, size_t bytes, double *out_number);

// ---- order ----

// template_order.c: what is compared of an element: an attribute of it, where one is named; texts
// in lower case unless case matters.
aot_value_t aot_key_of(aot_render_t *render, aot_value_t item, aot_value_t attribute,
                       bool has_case);
// A new list in order; equal elements stay as they are, the other way round too.
aot_value_t aot_sorted(aot_render_t *render, const aot_list_t *list, aot_value_t attribute,
                       bool has_case, bool is_reverse);
// The items of a dict, as tuples in a list of a sort.
aot_value_t aot_pairs(aot_render_t *render, const aot_map_t *map, uint8_t sort);

// ---- what can be called ----

// template_filters.c: filters.
// template_tests.c: tests and operators.
// template_methods.c: methods, and the time as text.

aot_value_t aot_filter(aot_render_t *render, uint32_t filter, aot_value_t value,
                       const aot_value_t *arguments);
bool aot_test(aot_render_t *render, uint32_t test, aot_value_t value, aot_value_t argument);
aot_value_t aot_method(aot_render_t *render, uint32_t method, aot_value_t value,
                       const aot_value_t *arguments, uint32_t count);
aot_value_t aot_operate(aot_render_t *render, uint32_t op, aot_value_t left, aot_value_t right);
aot_value_t aot_formatted_time(aot_render_t *render, const aot_string_t *format);

#endif  // AOT_TEMPLATE_VALUE_H_
