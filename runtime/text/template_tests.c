// Jinja's tests, and the operators that take two values.
#include <string.h>

#include "module_fbs.h"
#include "template_value.h"

#define TEST(name) AOT_FBS_TEMPLATE_TEST_##name
#define OP(name) AOT_FBS_TEMPLATE_OP_##name

static bool is_number(aot_value_t value) {
  double number = 0;
  return aot_number(value, &number);
}

static bool remainder_is(aot_render_t *render, aot_value_t value, aot_value_t by, int64_t wanted) {
  const aot_value_t rest = aot_operate(render, OP(MODULO), value, by);
  return render->status == AOT_OK && aot_equal(render, rest, aot_int(wanted));
}

static bool is_in_case(aot_render_t *render, aot_value_t value, int how) {
  aot_string_t *string = aot_as_string(render, value);
  const aot_string_t *same = aot_in_case(render, string, how).as.string;
  const aot_string_t *other =
      aot_in_case(render, string, how == AOT_LOWER ? AOT_UPPER : AOT_LOWER).as.string;
  return aot_strings_equal(string, same) && !aot_strings_equal(string, other);
}

static bool is_same(aot_render_t *render, aot_value_t value, aot_value_t other) {
  if (value.kind != other.kind) return false;
  if (aot_is(value, AOT_LIST)) return value.as.list == other.as.list;
  if (aot_is(value, AOT_MAP)) return value.as.map == other.as.map;
  return aot_equal(render, value, other);
}

static bool has_elements(aot_value_t value) {
  return aot_is(value, AOT_UNDEFINED) || aot_is(value, AOT_STRING) || aot_is(value, AOT_LIST) ||
         aot_is(value, AOT_MAP);
}

// Tests of what a value is.
static bool is_of_kind(uint32_t test, aot_value_t value) {
  switch (test) {
    case TEST(BOOLEAN):
      return aot_is(value, AOT_BOOL);
    case TEST(CALLABLE):
      return aot_is(value, AOT_MACRO) || aot_is(value, AOT_FUNCTION) || aot_is(value, AOT_METHOD) ||
             aot_is(value, AOT_UNDEFINED);
    case TEST(DEFINED):
      return !aot_is(value, AOT_UNDEFINED);
    case TEST(FALSE):
      return aot_is(value, AOT_BOOL) && !value.as.boolean;
    case TEST(FLOAT):
      return aot_is(value, AOT_FLOAT);
    case TEST(INTEGER):
      return aot_is(value, AOT_INT);
    case TEST(ITERABLE):
      return has_elements(value);
    case TEST(MAPPING):
      return aot_is(value, AOT_MAP);
    case TEST(NONE):
      return aot_is(value, AOT_NONE);
    case TEST(NUMBER):
      return is_number(value);
    case TEST(SEQUENCE):
      return has_elements(value) &&
             !(aot_is(value, AOT_LIST) && value.as.list->sort > AOT_IS_RANGE);
    case TEST(STRING):
      return aot_is(value, AOT_STRING);
    case TEST(TRUE):
      return aot_is(value, AOT_BOOL) && value.as.boolean;
    default:
      return aot_is(value, AOT_UNDEFINED);
  }
}

bool aot_test(aot_render_t *render, uint32_t test, aot_value_t value, aot_value_t argument) {
  static const uint8_t operators[AOT_FBS_TEMPLATE_TEST_COUNT] = {
      [TEST(EQ)] = OP(EQUAL),      [TEST(NE)] = OP(NOT_EQUAL), [TEST(LT)] = OP(LESS),
      [TEST(LE)] = OP(LESS_EQUAL), [TEST(GT)] = OP(GREATER),   [TEST(GE)] = OP(GREATER_EQUAL),
      [TEST(IN)] = OP(IN)};
  if (operators[test] != 0) {
    return aot_truth(aot_operate(render, operators[test], value, argument));
  }
  switch (test) {
    case TEST(DIVISIBLEBY):
      return remainder_is(render, value, argument, 0);
    case TEST(EVEN):
      return remainder_is(render, value, aot_int(2), 0);
    case TEST(ODD):
      return remainder_is(render, value, aot_int(2), 1);
    case TEST(LOWER):
      return is_in_case(render, value, AOT_LOWER);
    case TEST(UPPER):
      return is_in_case(render, value, AOT_UPPER);
    case TEST(SAMEAS):
      return is_same(render, value, argument);
    default:
      return is_of_kind(test, value);
  }
}

// ---- operators ----

static aot_value_t large(aot_render_t *render) {
  (void)aot_render_fail(render, "an integer has more than 64 bits");
  return aot_none();
}

static aot_value_t power(aot_render_t *render, int64_t base, int64_t exponent) {
  int64_t product = 1;
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(product, base, &product)) {
      return large(render);
    }
    if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) return large(render);
  }
  return aot_int(product);
}

static aot_value_t divide(aot_render_t *render, uint32_t op, int64_t left, int64_t right) {
  if (right == 0) {
    (void)aot_render_fail(render, "a division by 0");
    return aot_none();
  }
  if (op == OP(DIVIDE)) return aot_float((double)left / (double)right);
  if (right == -1) {
    if (op == OP(MODULO)) return aot_int(0);
    return left == INT64_MIN ? large(render) : aot_int(-left);
  }
  int64_t quotient = left / right;
  int64_t rest = left % right;
  if (rest != 0 && (rest < 0) != (right < 0)) {
    rest += right;
    --quotient;
  }
  return aot_int(op == OP(MODULO) ? rest : quotient);
}

static aot_value_t of_integers(aot_render_t *render, uint32_t op, int64_t left, int64_t right) {
  int64_t result = 0;
  bool is_large = false;
  switch (op) {
    case OP(ADD):
      is_large = __builtin_add_overflow(left, right, &result);
      break;
    case OP(SUBTRACT):
      is_large = __builtin_sub_overflow(left, right, &result);
      break;
    case OP(MULTIPLY):
      is_large = __builtin_mul_overflow(left, right, &result);
      break;
    case OP(POWER):
      if (right >= 0) return power(render, left, right);
      (void)aot_render_fail(render, "a power below 0");
      return aot_none();
    default:
      return divide(render, op, left, right);
  }
  return is_large ? large(render) : aot_int(result);
}

static aot_value_t of_numbers(aot_render_t *render, uint32_t op, double left, double right) {
  switch (op) {
    case OP(ADD):
      return aot_float(left + right);
    case OP(SUBTRACT):
      return aot_float(left - right);
    case OP(MULTIPLY):
      return aot_float(left * right);
    case OP(DIVIDE):
      if (right != 0) return aot_float(left / right);
      (void)aot_render_fail(render, "a division by 0");
      return aot_none();
    default:
      (void)aot_render_fail(render, "//, %% and ** are for integers only");
      return aot_none();
  }
}

static aot_value_t repeated(aot_render_t *render, aot_value_t value, int64_t times) {
  if (aot_is(value, AOT_STRING)) {
    aot_builder_t builder = {.render = render};
    for (; times > 0 && value.as.string->length > 0 && aot_render_work(render, 1); --times)
      aot_build_string(&builder, value.as.string);
    return aot_built(&builder);
  }
  const aot_list_t *list = value.as.list;
  aot_list_t *made = aot_list_new(render, 0, list->sort);
  for (; times > 0 && list->count > 0 && aot_render_work(render, list->count); --times)
    for (uint32_t i = 0; i < list->count; ++i)
      aot_list_push(render, made, list->items[i]);
  return aot_list(made);
}

static bool is_sequence(aot_value_t value) {
  return aot_is(value, AOT_STRING) ||
         (aot_is(value, AOT_LIST) && value.as.list->sort <= AOT_IS_TUPLE);
}

static aot_value_t joined(aot_render_t *render, aot_value_t left, aot_value_t right) {
  if (aot_is(left, AOT_STRING)) {
    aot_builder_t builder = {.render = render};
    aot_build_string(&builder, left.as.string);
    aot_build_string(&builder, right.as.string);
    return aot_built(&builder);
  }
  const aot_list_t *one = left.as.list, *two = right.as.list;
  aot_list_t *made = aot_list_new(render, one->count + two->count, one->sort);
  if (!aot_render_work(render, (uint64_t)one->count + two->count)) return aot_list(made);
  for (uint32_t i = 0; i < one->count; ++i)
    aot_list_push(render, made, one->items[i]);
  for (uint32_t i = 0; i < two->count; ++i)
    aot_list_push(render, made, two->items[i]);
  return aot_list(made);
}

// Python's % of a string: %s, %d and %%.
static aot_value_t formatted(aot_render_t *render, const aot_string_t *format, aot_value_t value) {
  const bool is_tuple = aot_is(value, AOT_LIST) && value.as.list->sort == AOT_IS_TUPLE;
  const aot_value_t *items = is_tuple ? value.as.list->items : &value;
  const uint32_t count = is_tuple ? value.as.list->count : 1;
  uint32_t used = 0, done = 0;
  int64_t whole = 0;
  aot_builder_t builder = {.render = render};
  for (uint32_t at = 0; at < format->length && aot_render_work(render, 1); ++at) {
    if (format->bytes[at] != '%') continue;
    aot_build_string(&builder, aot_part(render, format, done, at));
    const uint8_t kind = at + 1 < format->length ? format->bytes[++at] : 0;
    done = at + 1 < format->length ? at + 1 : format->length;
    if (kind == '%') {
      aot_build(&builder, "%", 1, aot_mark_at(format, at));
    } else if ((kind != 's' && kind != 'd' && kind != 'i') || used >= count) {
      (void)aot_render_fail(render, "a format of %% has other than %%s and %%d of each value");
    } else if (kind != 's' && !aot_whole(items[used], &whole)) {
      (void)aot_render_fail(render, "%%d is no format of a %s", aot_type_name(items[used]));
    } else {
      aot_write(&builder, kind == 's' ? items[used] : aot_int(whole));
      ++used;
    }
  }
  if (used < count && (is_tuple || !aot_is(value, AOT_MAP))) {
    (void)aot_render_fail(render, "a format of %% has too few places");
  }
  aot_build_string(&builder, aot_part(render, format, done, format->length));
  return aot_built(&builder);
}

static aot_value_t arithmetic(aot_render_t *render, uint32_t op, aot_value_t left,
                              aot_value_t right) {
  int64_t a = 0, b = 0;
  double x = 0, y = 0;
  const bool left_is_whole = aot_whole(left, &a), right_is_whole = aot_whole(right, &b);
  if (left_is_whole && right_is_whole) return of_integers(render, op, a, b);
  if (aot_number(left, &x) && aot_number(right, &y)) return of_numbers(render, op, x, y);
  if (op == OP(ADD) && is_sequence(left) && left.kind == right.kind &&
      (aot_is(left, AOT_STRING) || left.as.list->sort == right.as.list->sort)) {
    return joined(render, left, right);
  }
  if (op == OP(MULTIPLY) && is_sequence(left) && right_is_whole) return repeated(render, left, b);
  if (op == OP(MULTIPLY) && is_sequence(right) && left_is_whole) return repeated(render, right, a);
  if (op == OP(MODULO) && aot_is(left, AOT_STRING)) {
    return formatted(render, left.as.string, right);
  }
  const aot_value_t wrong = aot_is(right, AOT_UNDEFINED) ? right : left;
  if (aot_is(wrong, AOT_UNDEFINED) && wrong.as.string != NULL) {
    (void)aot_render_fail(render, "'%.*s' is undefined", aot_shown(wrong.as.string),
                          (const char *)wrong.as.string->bytes);
  }
  (void)aot_render_fail(render, "a %s and a %s cannot be computed with", aot_type_name(left),
                        aot_type_name(right));
  return aot_none();
}

aot_value_t aot_operate(aot_render_t *render, uint32_t op, aot_value_t left, aot_value_t right) {
  switch (op) {
    case OP(EQUAL):
      return aot_bool(aot_equal(render, left, right));
    case OP(NOT_EQUAL):
      return aot_bool(!aot_equal(render, left, right));
    case OP(LESS):
      return aot_bool(aot_order(render, left, right) < 0);
    case OP(LESS_EQUAL):
      return aot_bool(aot_order(render, left, right) <= 0);
    case OP(GREATER):
      return aot_bool(aot_order(render, left, right) > 0);
    case OP(GREATER_EQUAL):
      return aot_bool(aot_order(render, left, right) >= 0);
    case OP(IN):
      return aot_bool(aot_contains(render, right, left));
    case OP(NOT_IN):
      return aot_bool(!aot_contains(render, right, left));
    default:
      return arithmetic(render, op, left, right);
  }
}
