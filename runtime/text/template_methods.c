// Methods of Python's strings, lists and dicts and of Jinja's loop; and what the clock says.
#include <string.h>

#include "module_fbs.h"
#include "template_value.h"

#define METHOD(name) AOT_FBS_TEMPLATE_METHOD_##name

static bool is_given(aot_value_t argument) {
  return !aot_is(argument, AOT_MISSING);
}

static bool is_option(aot_value_t argument) {
  return is_given(argument) && !aot_is(argument, AOT_NONE);
}

// The string of an argument; fails where it is none.
static aot_string_t *text_of(aot_render_t *render, aot_value_t argument) {
  if (aot_is(argument, AOT_STRING)) return argument.as.string;
  (void)aot_render_fail(render, "a method expected a string, found a %s", aot_type_name(argument));
  return &render->empty;
}

static int64_t count_of(aot_render_t *render, aot_value_t argument) {
  int64_t count = -1;
  if (is_given(argument) && !aot_whole(argument, &count)) {
    (void)aot_render_fail(render, "a method expected a number, found a %s",
                          aot_type_name(argument));
  }
  return count;
}

// ---- strings ----

static bool is_at_end(aot_render_t *render, const aot_string_t *string, const aot_string_t *part,
                      bool is_end) {
  if (part->length > string->length || !aot_render_work(render, part->length / 64)) return false;
  const uint32_t at = is_end ? string->length - part->length : 0;
  return part->length == 0 || memcmp(string->bytes + at, part->bytes, part->length) == 0;
}

static aot_value_t begins(aot_render_t *render, const aot_string_t *string, aot_value_t part,
                          bool is_end) {
  if (!aot_is(part, AOT_LIST) || part.as.list->sort != AOT_IS_TUPLE) {
    return aot_bool(is_at_end(render, string, text_of(render, part), is_end));
  }
  for (uint32_t i = 0; i < part.as.list->count && aot_render_work(render, 1); ++i)
    if (is_at_end(render, string, text_of(render, part.as.list->items[i]), is_end))
      return aot_bool(true);
  return aot_bool(false);
}

static aot_value_t place_of(aot_render_t *render, const aot_string_t *string, aot_value_t part,
                            uint32_t method) {
  const uint32_t at = aot_find(render, string, text_of(render, part), 0, method == METHOD(RFIND));
  if (at == UINT32_MAX) {
    if (method == METHOD(INDEX)) (void)aot_render_fail(render, "a substring is not found");
    return aot_int(-1);
  }
  return aot_int(aot_characters(aot_part(render, string, 0, at)));
}

static aot_value_t occurrences(aot_render_t *render, aot_string_t *string, aot_value_t part) {
  const aot_string_t *own = text_of(render, part);
  if (own->length == 0) return aot_int((int64_t)aot_characters(string) + 1);
  int64_t count = 0;
  for (uint32_t at = 0; render->status == AOT_OK; ++count) {
    at = aot_find(render, string, own, at, false);
    if (at == UINT32_MAX) break;
    at += own->length;
  }
  return aot_int(count);
}

static aot_value_t partition(aot_render_t *render, aot_string_t *string, aot_value_t separator,
                             bool is_last) {
  const aot_string_t *own = text_of(render, separator);
  if (own->length == 0) (void)aot_render_fail(render, "the separator is empty");
  const uint32_t found = aot_find(render, string, own, 0, is_last);
  const bool is_found = found != UINT32_MAX;
  const uint32_t all = string->length;
  const uint32_t begin = is_found ? found : is_last ? 0 : all;
  const uint32_t end = is_found ? found + own->length : begin;
  aot_list_t *parts = aot_list_new(render, 3, AOT_IS_TUPLE);
  aot_list_push(render, parts, aot_string(aot_part(render, string, 0, begin)));
  aot_list_push(render, parts, aot_string(aot_part(render, string, begin, end)));
  aot_list_push(render, parts, aot_string(aot_part(render, string, end, all)));
  return aot_list(parts);
}

static aot_value_t without(aot_render_t *render, aot_string_t *string, aot_value_t part,
                           bool is_end) {
  const aot_string_t *own = text_of(render, part);
  if (!is_at_end(render, string, own, is_end)) return aot_string(string);
  const uint32_t left = string->length - own->length;
  return aot_string(is_end ? aot_part(render, string, 0, left)
                           : aot_part(render, string, own->length, string->length));
}

static aot_value_t join(aot_render_t *render, const aot_string_t *between, aot_value_t value) {
  const aot_list_t *list = aot_elements(render, value);
  aot_builder_t builder = {.render = render};
  for (uint32_t i = 0; i < list->count && render->status == AOT_OK; ++i) {
    if (i > 0) aot_build_string(&builder, between);
    aot_build_string(&builder, text_of(render, list->items[i]));
  }
  return aot_built(&builder);
}

static aot_value_t strip(aot_render_t *render, aot_string_t *string, aot_value_t characters,
                         uint32_t method) {
  const int sides = (method != METHOD(RSTRIP) ? AOT_STRIP_BEGIN : 0) |
                    (method != METHOD(LSTRIP) ? AOT_STRIP_END : 0);
  aot_string_t *own = is_option(characters) ? text_of(render, characters) : NULL;
  return aot_string(aot_stripped(render, string, own, sides));
}

static aot_value_t split(aot_render_t *render, aot_string_t *string, const aot_value_t *arguments,
                         bool is_from_end) {
  const aot_string_t *separator = is_option(arguments[0]) ? text_of(render, arguments[0]) : NULL;
  return aot_split(render, string, separator, count_of(render, arguments[1]), is_from_end);
}

// Methods that compare, find or count.
static aot_value_t search(aot_render_t *render, uint32_t method, aot_string_t *string,
                          const aot_value_t *arguments) {
  if (is_given(arguments[1]) || is_given(arguments[2])) {
    (void)aot_render_fail(render, "a method is called with places in a string");
  }
  switch (method) {
    case METHOD(COUNT_):
      return occurrences(render, string, arguments[0]);
    case METHOD(STARTSWITH):
      return begins(render, string, arguments[0], false);
    case METHOD(ENDSWITH):
      return begins(render, string, arguments[0], true);
    default:
      return place_of(render, string, arguments[0], method);
  }
}

static aot_value_t of_string(aot_render_t *render, uint32_t method, aot_string_t *string,
                             const aot_value_t *arguments) {
  switch (method) {
    case METHOD(CAPITALIZE):
      return aot_in_case(render, string, AOT_CAPITALIZED);
    case METHOD(COUNT_):
    case METHOD(ENDSWITH):
    case METHOD(FIND):
    case METHOD(INDEX):
    case METHOD(RFIND):
    case METHOD(STARTSWITH):
      return search(render, method, string, arguments);
    case METHOD(JOIN):
      return join(render, string, arguments[0]);
    case METHOD(LOWER):
      return aot_in_case(render, string, AOT_LOWER);
    case METHOD(LSTRIP):
    case METHOD(RSTRIP):
    case METHOD(STRIP):
      return strip(render, string, arguments[0], method);
    case METHOD(PARTITION):
    case METHOD(RPARTITION):
      return partition(render, string, arguments[0], method == METHOD(RPARTITION));
    case METHOD(REMOVEPREFIX):
    case METHOD(REMOVESUFFIX):
      return without(render, string, arguments[0], method == METHOD(REMOVESUFFIX));
    case METHOD(REPLACE):
      return aot_with_replaced(render, string, text_of(render, arguments[0]),
                               text_of(render, arguments[1]), count_of(render, arguments[2]));
    case METHOD(SPLIT):
    case METHOD(RSPLIT):
      return split(render, string, arguments, method == METHOD(RSPLIT));
    case METHOD(SPLITLINES):
      return aot_lines(render, string, aot_truth(arguments[0]));
    case METHOD(TITLE):
      return aot_in_case(render, string, AOT_TITLE);
    case METHOD(UPPER):
      return aot_in_case(render, string, AOT_UPPER);
    default:
      return aot_missing();
  }
}

// ---- lists, dicts, loops ----

static aot_value_t of_list(aot_render_t *render, uint32_t method, aot_list_t *list,
                           const aot_value_t *arguments) {
  if (list->sort > AOT_IS_TUPLE) return aot_missing();
  if (method == METHOD(COPY)) return aot_list(list);
  if (method != METHOD(COUNT_) && method != METHOD(INDEX)) return aot_missing();
  int64_t count = 0;
  for (uint32_t i = 0; i < list->count && render->status == AOT_OK; ++i) {
    if (!aot_equal(render, list->items[i], arguments[0])) continue;
    if (method == METHOD(INDEX)) return aot_int(i);
    ++count;
  }
  if (method == METHOD(INDEX)) (void)aot_render_fail(render, "a value is not in the list");
  return aot_int(count);
}

static aot_value_t of_map(aot_render_t *render, uint32_t method, aot_map_t *map,
                          const aot_value_t *arguments) {
  if (method == METHOD(COPY)) return aot_map(map);
  if (method == METHOD(GET)) {
    const aot_value_t *found = aot_map_find(render, map, arguments[0]);
    if (found != NULL) return *found;
    return is_given(arguments[1]) ? arguments[1] : aot_none();
  }
  if (method != METHOD(ITEMS) && method != METHOD(KEYS) && method != METHOD(VALUES)) {
    return aot_missing();
  }
  aot_list_t *made = aot_list_new(render, map->count, AOT_IS_VIEW);
  for (uint32_t i = 0; i < map->count && render->status == AOT_OK; ++i) {
    aot_value_t item = map->pairs[2 * i + (method == METHOD(VALUES) ? 1 : 0)];
    if (method == METHOD(ITEMS)) {
      item = aot_list(aot_list_new(render, 2, AOT_IS_TUPLE));
      aot_list_push(render, item.as.list, map->pairs[2 * (size_t)i]);
      aot_list_push(render, item.as.list, map->pairs[2 * (size_t)i + 1]);
    }
    aot_list_push(render, made, item);
  }
  return aot_list(made);
}

aot_value_t aot_method(aot_render_t *render, uint32_t method, aot_value_t value,
                       const aot_value_t *arguments, uint32_t count) {
  aot_value_t made = aot_missing();
  if (aot_is(value, AOT_STRING)) made = of_string(render, method, value.as.string, arguments);
  if (aot_is(value, AOT_LIST)) made = of_list(render, method, value.as.list, arguments);
  if (aot_is(value, AOT_MAP)) made = of_map(render, method, value.as.map, arguments);
  if (aot_is(value, AOT_LOOP) && method == METHOD(CYCLE) && count > 0) {
    const uint32_t next = value.as.loop->next;
    made = arguments[(next > 0 ? next - 1 : 0) % count];
  }
  if (!aot_is(made, AOT_MISSING)) return made;
  if (aot_is(value, AOT_UNDEFINED)) (void)aot_attribute(render, value, &render->empty, 0);
  (void)aot_render_fail(render, "a %s has no such method", aot_type_name(value));
  return aot_none();
}

// ---- the clock ----

typedef struct clock_time_t {
  int64_t year;
  int month;  // from 1
  int day;
  int of_year;  // from 1
  int of_week;  // 0: Sunday
  int hour;
  int minute;
  int second;
} clock_time_t;

static int64_t days_before_year(int64_t year) {
  const int64_t past = year - 1;
  return 365 * past + past / 4 - past / 100 + past / 400;
}

static int days_of_month(int64_t year, int month) {
  static const uint8_t days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  const bool is_leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
  return days[month - 1] + (month == 2 && is_leap ? 1 : 0);
}

// Of seconds since 1970; of a year from 1 to 9999.
static bool time_of(int64_t seconds, clock_time_t *out_time) {
  if (seconds < -62135596800 || seconds >= 253402300800) return false;
  const int64_t days = (seconds + 62135596800) / 86400;  // since the first day of year 1
  const int rest = (int)((seconds + 62135596800) % 86400);
  int64_t year = days / 366 + 1;
  while (days_before_year(year + 1) <= days)
    ++year;
  int day = (int)(days - days_before_year(year));
  *out_time = (clock_time_t){.year = year,
                             .month = 1,
                             .of_year = day + 1,
                             .of_week = (int)((days + 1) % 7),
                             .hour = rest / 3600,
                             .minute = rest / 60 % 60,
                             .second = rest % 60};
  for (; day >= days_of_month(year, out_time->month); ++out_time->month)
    day -= days_of_month(year, out_time->month);
  out_time->day = day + 1;
  return true;
}

static const char *const months[] = {"January",   "February", "March",    "April",
                                     "May",       "June",     "July",     "August",
                                     "September", "October",  "November", "December"};
static const char *const week_days[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                        "Thursday", "Friday", "Saturday"};

static void build_padded(aot_builder_t *builder, int64_t number, int digits, char pad) {
  char text[8];
  int at = (int)sizeof text;
  for (int i = 0; i < digits || number > 0; ++i, number /= 10) {
    const bool is_digit = number > 0 || i == 0;
    const char digit = (char)('0' + number % 10);
    text[--at] = is_digit ? digit : pad;
  }
  if (pad != '\0') {
    aot_build(builder, text + at, sizeof text - (size_t)at, 0);
    return;
  }
  while (at < (int)sizeof text - 1 && text[at] == '\0')
    ++at;
  aot_build(builder, text + at, sizeof text - (size_t)at, 0);
}

// One directive of strftime; `pad` '\0' leaves padding out. False where it is not known.
static bool build_time(aot_builder_t *builder, const clock_time_t *time, uint8_t kind, char pad) {
  const int hour = time->hour % 12 == 0 ? 12 : time->hour % 12;
  const struct {
    char kind;
    int digits;
    int64_t number;
  } numbers[] = {{'d', 2, time->day},
                 {'m', 2, time->month},
                 {'Y', 4, time->year},
                 {'y', 2, time->year % 100},
                 {'H', 2, time->hour},
                 {'I', 2, hour},
                 {'M', 2, time->minute},
                 {'S', 2, time->second},
                 {'j', 3, time->of_year},
                 {'w', 1, time->of_week},
                 {'u', 1, time->of_week == 0 ? 7 : time->of_week}};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i) {
    if (numbers[i].kind != (char)kind) continue;
    build_padded(builder, numbers[i].number, numbers[i].digits, pad);
    return true;
  }
  switch (kind) {
    case 'B':
      aot_build_text(builder, months[time->month - 1]);
      return true;
    case 'b':
    case 'h':
      aot_build(builder, months[time->month - 1], 3, 0);
      return true;
    case 'A':
      aot_build_text(builder, week_days[time->of_week]);
      return true;
    case 'a':
      aot_build(builder, week_days[time->of_week], 3, 0);
      return true;
    case 'p':
      aot_build_text(builder, time->hour < 12 ? "AM" : "PM");
      return true;
    case 'e':
      build_padded(builder, time->day, 2, pad == '\0' ? '\0' : ' ');
      return true;
    case 'Z':  // of a time without a zone
    case 'z':
      return true;
    case '%':
      aot_build_text(builder, "%");
      return true;
    default:
      return false;
  }
}

// A directive, or one that stands for several.
static bool build_directive(aot_builder_t *builder, const clock_time_t *time, uint8_t kind,
                            char pad) {
  const char *several = kind == 'F'   ? "Y-m-d"
                        : kind == 'T' ? "H:M:S"
                        : kind == 'R' ? "H:M"
                        : kind == 'D' ? "m/d/y"
                                      : NULL;
  if (several == NULL) return build_time(builder, time, kind, pad);
  for (; *several != '\0'; ++several) {
    if (strchr("-:/", *several) != NULL) {
      aot_build(builder, several, 1, 0);
    } else {
      (void)build_time(builder, time, (uint8_t)*several, '0');
    }
  }
  return true;
}

aot_value_t aot_formatted_time(aot_render_t *render, const aot_string_t *format) {
  clock_time_t time;
  aot_builder_t builder = {.render = render};
  if (!time_of(render->seconds, &time)) {
    (void)aot_render_fail(render, "it asks for the time, and there is no clock");
    return aot_none();
  }
  for (uint32_t at = 0; at < format->length && aot_render_work(render, 1); ++at) {
    if (format->bytes[at] != '%') {
      aot_build(&builder, format->bytes + at, 1, aot_mark_at(format, at));
      continue;
    }
    const bool has_flag = at + 1 < format->length && format->bytes[at + 1] == '-';
    at += has_flag ? 2 : 1;
    const uint8_t kind = at < format->length ? format->bytes[at] : 0;
    if (!build_directive(&builder, &time, kind, has_flag ? '\0' : '0')) {
      (void)aot_render_fail(render, "strftime_now has no %%%c",
                            kind < 0x80 && kind >= 0x20 ? kind : '?');
    }
  }
  return aot_built(&builder);
}
