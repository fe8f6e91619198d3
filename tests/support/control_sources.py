"""Functions with control flow or states, as text, that run on several machines."""

from __future__ import annotations

TRUE = "%on = constant {value = bool[] <true>} : bool[]"

NESTED = """
func @main(%c: bool[], %d: bool[], %x: f32[3]) -> ("y") {
  %y = if(%c) : f32[3] ^() {
    %a = neg(%x) : f32[3]
    %inner = if(%d) : f32[3] ^() {
      %e = exp(%a) : f32[3]
      yield(%e)
    } ^() {
      %k = constant {value = f32[3] <1.0, 2.0, 3.0>} : f32[3]
      yield(%k)
    }
    yield(%inner)
  } ^() {
    %unused, %inner = if(%d) : f32[3], f32[3] ^() {
      %e = exp(%x) : f32[3]
      yield(%e, %x)
    } ^() {
      %e = abs(%x) : f32[3]
      yield(%e, %e)
    }
    yield(%inner)
  }
  return(%y)
}
"""

FIBONACCI = f"""
func @main(%n: i64[], %a: i64[1], %b: i64[1]) -> ("x", "row") {{
  %one = add(%b, %b) : i64[1]
  %x, %y, %row = loop(%n, _, %a, %one) {{trips = 6}} : i64[1], i64[1], i64[6, 1]
      ^(%i: i64[], %p: i64[1], %q: i64[1]) {{
    %next = add(%p, %q) : i64[1]
    {TRUE}
    yield(%on, %q, %next, %p)
  }}
  return(%x, %row)
}}
"""

KINDS = f"""
func @main(%n: i64[], %x: f32[3]) -> ("a", "b", "c", "d", "e") {{
  %k = constant {{value = f32[3] <1.0, 2.0, 3.0>}} : f32[3]
  %v = neg(%x) : f32[3]
  %w = exp(%x) : f32[3]
  %a, %b, %c, %d, %e = loop(%n, _, %x, %k, %v, %w, %w) : f32[3], f32[3], f32[3], f32[3], f32[3]
      ^(%i: i64[], %p: f32[3], %q: f32[3], %r: f32[3], %s: f32[3], %t: f32[3]) {{
    %inner = constant {{value = f32[3] <5.0, 6.0, 7.0>}} : f32[3]
    %made = add(%p, %t) : f32[3]
    {TRUE}
    yield(%on, %made, %q, %inner, %v, %made)
  }}
  return(%a, %b, %c, %d, %e)
}}
"""

LOOP_IN_IF = f"""
func @main(%c: bool[], %n: i64[], %x: f32[N, 2]) -> ("y", "all") {{
  %rows = neg(%x) : f32[N, 2]
  %y, %all = if(%c) : f32[2], f32[N, 2] ^() {{
    %zero = constant {{value = f32[2] <splat 0.0>}} : f32[2]
    %last, %sums = loop(_, _, %zero) {{trips = N}} : f32[2], f32[N, 2]
        ^(%i: i64[], %sum: f32[2]) {{
      %row = gather(%rows, %i) {{axis = 0}} : f32[2]
      %next = add(%sum, %row) : f32[2]
      {TRUE}
      yield(%on, %next, %next)
    }}
    yield(%last, %sums)
  }} ^() {{
    %first = constant {{value = f32[2] <9.0, 9.0>}} : f32[2]
    yield(%first, %rows)
  }}
  return(%y, %all)
}}
"""

CACHE = """
func @main(%new: f32[1, n, 2], %w: f32[2]) -> ("all", "mean") assume [
  min(P + n, 6) == P + n "the cache",
] {
  %past = state {variable = "cache", dtype = f32, shape = [1, P, 2], layout = {strides=12:2:1},
    capacity = 6, axis = 1, length = P} : f32[1, P, 2]{strides=12:2:1}
  %made = mul(%new, %w) : f32[1, n, 2]{strides=12:2:1}
  %present = concat_alias(%past, %made) {axis = 1} : f32[1, P + n, 2]{strides=12:2:1}
  %all = neg(%present) : f32[1, P + n, 2]
  %mean = reduce_sum(%past) {axes = [1], keepdims = false} : f32[1, 2]
  %kept = state {variable = "cache", dtype = f32, shape = [1, P + n, 2],
    layout = {strides=12:2:1}, capacity = 6, axis = 1, length = P}
    : f32[1, P + n, 2]{strides=12:2:1}
  %done = assign(%kept, %present) : f32[1, P + n, 2]{strides=12:2:1}
  return(%all, %mean)
}
"""

SUM = """
func @main(%x: f32[N, 3]) -> ("y") {
  %past = state {variable = "sum", dtype = f32, shape = [3]} : f32[3]
  %s = reduce_sum(%x) {axes = [0], keepdims = false} : f32[3]
  %present = add(%past, %s) : f32[3]
  %y = sub(%present, %past) : f32[3]
  %kept = state {variable = "sum", dtype = f32, shape = [3]} : f32[3]
  %done = assign(%kept, %present) : f32[3]
  return(%y)
}
"""

TOTAL = SUM.replace("%y = sub(%present, %past)", "%y = add(%present, %present)")

# A cache beside a sum that is kept in two halves.
MIXED = """
func @main(%new: f32[2, n, 3]) -> ("all", "total") assume [min(P + n, 7) == P + n "the cache"] {
  %past = state {variable = "k", dtype = f32, shape = [2, P, 3], layout = {strides=21:3:1},
    capacity = 7, axis = 1, length = P} : f32[2, P, 3]{strides=21:3:1}
  %sum = state {variable = "s", dtype = f32, shape = [2, 3]} : f32[2, 3]
  %made = neg(%new) : f32[2, n, 3]{strides=21:3:1}
  %present = concat_alias(%past, %made) {axis = 1} : f32[2, P + n, 3]{strides=21:3:1}
  %all = exp(%present) : f32[2, P + n, 3]
  %added = reduce_sum(%new) {axes = [1], keepdims = false} : f32[2, 3]
  %total = add(%sum, %added) : f32[2, 3]
  %k = state {variable = "k", dtype = f32, shape = [2, P + n, 3], layout = {strides=21:3:1},
    capacity = 7, axis = 1, length = P} : f32[2, P + n, 3]{strides=21:3:1}
  %s = state {variable = "s", dtype = f32, shape = [2, 3]} : f32[2, 3]
  %1 = assign(%k, %present) : f32[2, P + n, 3]{strides=21:3:1}
  %2 = assign(%s, %total) : f32[2, 3]
  return(%all, %total)
}
"""

# The heads' rows lie a capacity apart.
HEADS = """
func @main(%new: f32[2, 1, 3]) -> ("all", "prior") assume [
  min(P + 1, 5) == P + 1 "the cache",
] {
  %past = state {variable = "k", dtype = f32, shape = [2, P, 3], layout = {strides=15:3:1},
    capacity = 5, axis = 1, length = P} : f32[2, P, 3]{strides=15:3:1}
  %other = state {variable = "v", dtype = f32, shape = [2, P, 3], layout = {strides=15:3:1},
    capacity = 5, axis = 1, length = P} : f32[2, P, 3]{strides=15:3:1}
  %made = exp(%new) : f32[2, 1, 3]{strides=15:3:1}
  %minus = neg(%new) : f32[2, 1, 3]{strides=15:3:1}
  %present = concat_alias(%past, %made) {axis = 1} : f32[2, P + 1, 3]{strides=15:3:1}
  %values = concat_alias(%other, %minus) {axis = 1} : f32[2, P + 1, 3]{strides=15:3:1}
  %all = sub(%present, %values) : f32[2, P + 1, 3]
  %prior = reduce_sum(%other) {axes = [1], keepdims = false} : f32[2, 3]
  %1 = state {variable = "k", dtype = f32, shape = [2, P + 1, 3], layout = {strides=15:3:1},
    capacity = 5, axis = 1, length = P} : f32[2, P + 1, 3]{strides=15:3:1}
  %2 = assign(%1, %present) : f32[2, P + 1, 3]{strides=15:3:1}
  %3 = state {variable = "v", dtype = f32, shape = [2, P + 1, 3], layout = {strides=15:3:1},
    capacity = 5, axis = 1, length = P} : f32[2, P + 1, 3]{strides=15:3:1}
  %4 = assign(%3, %values) : f32[2, P + 1, 3]{strides=15:3:1}
  return(%all, %prior)
}
"""
