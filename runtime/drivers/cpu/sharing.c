#include "sharing.h"

#include <string.h>

#include "status.h"

// A dispatch instruction has at least as many words: each has a site of its own.
#define LEAST_WORDS 5u
// Below this, what another CPU must fetch takes longer than what it does.
#define LEAST_SHARED_NS 5000u
// Waking a thread takes some microseconds of the caller's time, and more until it runs.
#define LEAST_WAKING_NS 30000u
#define LEAST_WAKING_RUN_NS 100000u
#define LEAST_CHUNK_NS 1000u
// Pieces a thread: slow cores beside fast ones take fewer.
#define CHUNKS_A_THREAD 8u
#define MOST_NS ((uint64_t)4000000000)  // what a site's field can hold
// Runs in which what is not shared is measured: the first ones, then one in so many.
#define FIRST_RUNS 8u
#define LATER_RUNS 16u
// Runs that are looked at together: single ones are disturbed now and then.
#define JUDGED_RUNS 8u
#define FIRST_REST_RUNS 32u
#define MOST_REST_RUNS 256u

aot_status_t aot_sharing_create(const aot_allocator_t *allocator, uint32_t threads, uint32_t words,
                                aot_error_t *error, aot_sharing_t *out_sharing) {
  const uint32_t count = words / LEAST_WORDS + 1;
  void *memory = NULL;
  AOT_TRY(aot_allocate(allocator, (uint64_t)count * sizeof(aot_site_t), "dispatch times", error,
                       &memory));
  memset(memory, 0, count * sizeof(aot_site_t));
  *out_sharing = (aot_sharing_t){.threads = threads,
                                 .site_count = count,
                                 .sites = memory,
                                 .mode_runs = JUDGED_RUNS,
                                 .rest_runs = FIRST_REST_RUNS};
  return AOT_OK;
}

void aot_sharing_destroy(const aot_allocator_t *allocator, aot_sharing_t *sharing) {
  aot_release(allocator, sharing->sites, sharing->site_count * sizeof(aot_site_t));
  sharing->sites = NULL;
}

static void change_mode(aot_sharing_t *sharing, aot_sharing_mode_t mode, uint32_t runs) {
  sharing->mode = mode;
  sharing->mode_runs = runs;
  sharing->sum_wall_ns = 0;
  sharing->sum_alone_ns = 0;
}

// Sharing that is slower than one undisturbed thread is suspicious: one thread may be disturbed as
// well, or may not be.
static void judge_shared_runs(aot_sharing_t *sharing) {
  if (sharing->sum_wall_ns > sharing->sum_alone_ns) {
    sharing->shared_wall_ns = sharing->sum_wall_ns;
    change_mode(sharing, AOT_SHARING_TRIAL, JUDGED_RUNS);
    return;
  }
  sharing->rest_runs = FIRST_REST_RUNS;
  change_mode(sharing, AOT_SHARING_ON, JUDGED_RUNS);
}

static void judge_trial(aot_sharing_t *sharing) {
  if (sharing->sum_wall_ns >= sharing->shared_wall_ns) {
    change_mode(sharing, AOT_SHARING_ON, JUDGED_RUNS);
    return;
  }
  change_mode(sharing, AOT_SHARING_REST, sharing->rest_runs);
  if (sharing->rest_runs < MOST_REST_RUNS) sharing->rest_runs *= 2;
}

static void judge_last_run(aot_sharing_t *sharing) {
  if (sharing->alone_ns == 0) return;  // nothing could be shared, or nothing was known yet
  sharing->sum_wall_ns += sharing->wall_ns;
  sharing->sum_alone_ns += sharing->alone_ns;
  if (--sharing->mode_runs > 0) return;
  switch (sharing->mode) {
    case AOT_SHARING_ON:
      judge_shared_runs(sharing);
      break;
    case AOT_SHARING_TRIAL:
      judge_trial(sharing);
      break;
    case AOT_SHARING_REST:
    default:
      change_mode(sharing, AOT_SHARING_ON, JUDGED_RUNS);
      break;
  }
}

bool aot_sharing_begin_run(aot_sharing_t *sharing) {
  judge_last_run(sharing);
  const bool had_work = sharing->alone_ns >= LEAST_WAKING_RUN_NS;
  sharing->alone_ns = 0;
  sharing->wall_ns = 0;
  ++sharing->runs;
  return had_work && sharing->mode == AOT_SHARING_ON;
}

static aot_site_t *find_site(aot_sharing_t *sharing, uint32_t word) {
  return &sharing->sites[word / LEAST_WORDS % sharing->site_count];
}

static bool is_large(const aot_site_t *site, uint64_t groups) {
  return site->groups == groups && site->nanoseconds >= LEAST_SHARED_NS;
}

aot_share_t aot_sharing_ask(aot_sharing_t *sharing, uint32_t word, uint64_t groups) {
  const aot_site_t *site = find_site(sharing, word);
  const bool is_known = site->groups == groups;
  aot_share_t share = {.chunk = 0};
  if (groups < 2) return share;
  if (is_known && !is_large(site, groups)) {
    share.is_measured = sharing->runs <= FIRST_RUNS || sharing->runs % LATER_RUNS == 0;
    return share;
  }
  share.is_measured = true;
  if (is_known) sharing->alone_ns += site->nanoseconds;
  if (sharing->mode != AOT_SHARING_ON) return share;
  share.chunk = groups / ((uint64_t)sharing->threads * CHUNKS_A_THREAD);
  if (is_known) {
    const uint64_t least = LEAST_CHUNK_NS * groups / site->nanoseconds;
    if (share.chunk < least) share.chunk = least;
  }
  if (share.chunk == 0) share.chunk = 1;
  share.wakes = !is_known || site->nanoseconds >= LEAST_WAKING_NS;
  return share;
}

void aot_sharing_measure(aot_sharing_t *sharing, uint32_t word, uint64_t groups, uint64_t done,
                         uint64_t own_ns, uint64_t wall_ns) {
  aot_site_t *site = find_site(sharing, word);
  if (is_large(site, groups)) sharing->wall_ns += wall_ns;
  if (done == 0) return;
  uint64_t all = own_ns < MOST_NS ? own_ns : MOST_NS;
  uint64_t whole = groups;
  for (; whole > UINT32_MAX; whole >>= 1)
    done = done > 1 ? done >> 1 : 1;
  all = all * whole / done;
  // The least of the last measurements: other processes only ever make it longer.  What truly takes
  // longer now is believed bit by bit.
  if (site->groups == groups) {
    const uint64_t grown = (uint64_t)site->nanoseconds + site->nanoseconds / 8 + 1;
    if (all > grown) all = grown;
  }
  if (all > MOST_NS) all = MOST_NS;
  site->groups = groups;
  site->nanoseconds = all > 0 ? (uint32_t)all : 1;
}
