// One onnxruntime session in one fresh process. Options and output: worker.h.
#include "ort_abi.h"
#include "worker.h"

#include <unistd.h>

static const struct {
  const char *descr;
  int ort;
} kTypes[] = {
    {"f4", ORT_FLOAT}, {"i4", ORT_INT32}, {"i8", ORT_INT64},
    {"u1", ORT_UINT8}, {"i1", ORT_INT8},  {"b1", ORT_BOOL},
};
enum { kTypeCount = sizeof kTypes / sizeof *kTypes };

static const OrtApi *api;

typedef struct {
  OrtSession *session;
  size_t input_count, output_count;
  const char *input_names[WORKER_MAX_TENSORS];
  char *output_names[WORKER_MAX_TENSORS];
  OrtValue *inputs[WORKER_MAX_TENSORS], *outputs[WORKER_MAX_TENSORS];
} inference_t;

static void check(OrtStatus *status) {
  if (status) fail("onnxruntime", api->GetErrorMessage(status));
}

static void infer(void *context) {
  inference_t *r = context;
  for (size_t i = 0; i < r->output_count; ++i) {
    if (r->outputs[i]) api->ReleaseValue(r->outputs[i]);
    r->outputs[i] = NULL;
  }
  check(api->Run(r->session, NULL, r->input_names, (const OrtValue *const *)r->inputs,
                 r->input_count, (const char *const *)r->output_names, r->output_count,
                 r->outputs));
}

static void bind_inputs(inference_t *r, worker_t *w) {
  OrtMemoryInfo *memory;
  check(api->CreateCpuMemoryInfo(ORT_ARENA_ALLOCATOR, ORT_MEMORY_DEFAULT, &memory));
  r->input_count = (size_t)w->input_count;
  for (size_t i = 0; i < r->input_count; ++i) {
    tensor_t *t = &w->inputs[i];
    int k = 0;
    while (k < kTypeCount && strcmp(kTypes[k].descr, t->descr))
      ++k;
    if (k == kTypeCount) fail("unsupported input type", t->descr);
    r->input_names[i] = t->name;
    check(api->CreateTensorWithDataAsOrtValue(memory, t->data, t->bytes, t->dims, (size_t)t->rank,
                                              kTypes[k].ort, &r->inputs[i]));
  }
}

static void find_outputs(inference_t *r) {
  OrtAllocator *allocator;
  check(api->GetAllocatorWithDefaultOptions(&allocator));
  check(api->SessionGetOutputCount(r->session, &r->output_count));
  if (r->output_count > WORKER_MAX_TENSORS) fail("too many outputs", "");
  for (size_t i = 0; i < r->output_count; ++i)
    check(api->SessionGetOutputName(r->session, i, allocator, &r->output_names[i]));
}

static void write_outputs(const inference_t *r, const char *dir) {
  for (size_t i = 0; i < r->output_count; ++i) {
    tensor_t t = {0};
    OrtTensorInfo *info;
    size_t rank, items = 1;
    int type, k = 0;
    check(api->GetTensorTypeAndShape(r->outputs[i], &info));
    check(api->GetTensorElementType(info, &type));
    check(api->GetDimensionsCount(info, &rank));
    if (rank > WORKER_MAX_RANK) fail("rank too high", r->output_names[i]);
    check(api->GetDimensions(info, t.dims, rank));
    check(api->GetTensorMutableData(r->outputs[i], &t.data));
    while (k < kTypeCount && kTypes[k].ort != type)
      ++k;
    if (k == kTypeCount) fail("unsupported output type", r->output_names[i]);
    memcpy(t.descr, kTypes[k].descr, 3);
    t.rank = (int)rank;
    for (size_t d = 0; d < rank; ++d)
      items *= (size_t)t.dims[d];
    t.bytes = items * (size_t)(t.descr[1] - '0');
    npy_write(dir, (int)i, &t);
  }
}

int main(int argc, char **argv) {
  worker_t w = worker_start(argc, argv);
  api = OrtGetApiBase()->GetApi(ORT_API_VERSION);
  if (!api) fail("onnxruntime", "API version not offered");
  OrtEnv *env;
  check(api->CreateEnv(ORT_LOG_ERROR, "ort_run", &env));
  w.opened_ns = now_ns();

  OrtSessionOptions *options;
  check(api->CreateSessionOptions(&options));
  check(api->SetIntraOpNumThreads(options, w.threads));
  check(api->SetInterOpNumThreads(options, 1));
  check(api->SetSessionGraphOptimizationLevel(options, w.opt_level));
  inference_t r = {0};
  check(api->CreateSession(env, w.model, options, &r.session));
  find_outputs(&r);
  worker_prepared(&w);

  bind_inputs(&r, &w);
  infer(&r);
  w.first_result_ns = now_ns();

  if (w.output) write_outputs(&r, w.output);
  worker_measure(&w, infer, &r);
  fflush(stdout);
  _exit(0);  // tear-down is not measured
}
