// Printing of messages, names and texts to a terminal or a JSON report.
#ifndef AOT_TOOLS_PRINT_H_
#define AOT_TOOLS_PRINT_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

// Prints a line to stderr; returns false.
__attribute__((format(printf, 1, 2))) bool fail(const char *format, ...);

// Whether all that was printed was written; says so if not.
bool flush_report(void);

// Texts from a module, or of the caller, as JSON's escapes have them: control characters but those
// in `kept` as \u001b, bytes that are no UTF-8 as \ufffd.
void print_text(FILE *stream, const char *text, size_t bytes, const char *kept);
void print_name(const char *name);  // to standard output
void print_json_text(const char *text);

#endif  // AOT_TOOLS_PRINT_H_
