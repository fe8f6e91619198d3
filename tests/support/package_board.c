// Runs a packaged library's steps and prints the bits of what they give: on this machine, and on a
// Cortex-M without a C library, whose messages go to the debugger (semihosting).
#include "steps.h"

#ifdef BOARD

extern void stack_top(void);  // an address, as all of these
extern uint32_t data_from[], data_begin[], data_end[], bss_begin[], bss_end[];
int main(void);

static void call_debugger(uint32_t what, const void *argument) {
  register uint32_t r0 __asm__("r0") = what;
  register const void *r1 __asm__("r1") = argument;
  __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
}

static void say(const char *text) {
  call_debugger(4, text);
}

static void leave(int status) {
  const uint32_t arguments[2] = {0x20026, (uint32_t)status};
  call_debugger(0x20, arguments);
}

__attribute__((used)) static void fault(void) {
  say("fault\n");
  leave(3);
}

__attribute__((used)) static void start(void) {
  *(volatile uint32_t *)0xe000ed88u |= 0xfu << 20;  // the floating-point unit
  __asm__ volatile("dsb\nisb");
  for (uint32_t *to = data_begin, *from = data_from; to < data_end;)
    *to++ = *from++;
  for (uint32_t *to = bss_begin; to < bss_end;)
    *to++ = 0;
  leave(main());
}

__attribute__((used, section(".vectors"))) static void (*const vectors[16])(void) = {
    stack_top, start, fault, fault, fault, fault, fault};

// What compilers call, C library or not.
void *memset(void *to, int value, size_t bytes);
void *memcpy(void *to, const void *from, size_t bytes);
void *memset(void *to, int value, size_t bytes) {
  for (volatile uint8_t *at = to; bytes > 0; --bytes)
    *at++ = (uint8_t)value;
  return to;
}
void *memcpy(void *to, const void *from, size_t bytes) {
  const volatile uint8_t *read = from;
  for (volatile uint8_t *at = to; bytes > 0; --bytes)
    *at++ = *read++;
  return to;
}

#else

#include <stdio.h>

static void say(const char *text) {
  (void)fputs(text, stdout);
}

#endif

static void say_words(const uint8_t *data, size_t bytes) {
  char text[3] = {0, 0, 0};
  for (size_t i = 0; i < bytes; ++i) {
    text[0] = "0123456789abcdef"[data[i] >> 4];
    text[1] = "0123456789abcdef"[data[i] & 15];
    say(text);
  }
  say("\n");
}

static _Alignas(AOT_STATIC_ALIGNMENT) uint8_t arena[ARENA_BYTES];

int main(void) {
  // Garbage, so that nothing relies on what memory holds at first.
  for (size_t i = 0; i < sizeof arena; ++i)
    arena[i] = 0xa5;
  return run_steps(arena, say_words);
}
