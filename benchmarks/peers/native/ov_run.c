// One OpenVINO compiled model in one fresh process. Options and output: worker.h.
#include "worker.h"

#include <openvino/c/openvino.h>
#include <unistd.h>

static const struct {
  const char *descr;
  ov_element_type_e ov;
} kTypes[] = {
    {"f4", F32}, {"i4", I32}, {"i8", I64}, {"u1", U8}, {"i1", I8}, {"b1", BOOLEAN},
};
enum { kTypeCount = sizeof kTypes / sizeof *kTypes };

static void check(ov_status_e status) {
  if (status) fail(ov_get_error_info(status), ov_get_last_err_msg());
}

static void infer(void *request) {
  check(ov_infer_request_infer(request));
}

static void bind_inputs(ov_infer_request_t *request, worker_t *w) {
  for (int i = 0; i < w->input_count; ++i) {
    tensor_t *t = &w->inputs[i];
    int k = 0;
    while (k < kTypeCount && strcmp(kTypes[k].descr, t->descr))
      ++k;
    if (k == kTypeCount) fail("unsupported input type", t->descr);
    ov_shape_t shape;
    ov_tensor_t *tensor;
    check(ov_shape_create(t->rank, t->dims, &shape));
    check(ov_tensor_create_from_host_ptr(kTypes[k].ov, shape, t->data, &tensor));
    check(ov_infer_request_set_tensor(request, t->name, tensor));
  }
}

static void write_outputs(ov_infer_request_t *request, size_t count, const char *dir) {
  for (size_t i = 0; i < count; ++i) {
    ov_tensor_t *tensor;
    ov_shape_t shape;
    ov_element_type_e type;
    tensor_t t = {0};
    int k = 0;
    check(ov_infer_request_get_output_tensor_by_index(request, i, &tensor));
    check(ov_tensor_get_shape(tensor, &shape));
    check(ov_tensor_get_element_type(tensor, &type));
    check(ov_tensor_get_byte_size(tensor, &t.bytes));
    check(ov_tensor_data(tensor, &t.data));
    while (k < kTypeCount && kTypes[k].ov != type)
      ++k;
    if (k == kTypeCount || shape.rank > WORKER_MAX_RANK) fail("unsupported output", "");
    memcpy(t.descr, kTypes[k].descr, 3);
    t.rank = (int)shape.rank;
    memcpy(t.dims, shape.dims, sizeof *t.dims * (size_t)shape.rank);
    npy_write(dir, (int)i, &t);
  }
}

int main(int argc, char **argv) {
  worker_t w = worker_start(argc, argv);
  ov_core_t *core;
  check(ov_core_create(&core));
  w.opened_ns = now_ns();

  if (w.cache_dir) check(ov_core_set_property(core, "CPU", "CACHE_DIR", w.cache_dir));
  char threads[16];
  snprintf(threads, sizeof threads, "%d", w.threads);
  ov_model_t *model;
  ov_compiled_model_t *compiled;
  ov_infer_request_t *request;
  size_t output_count;
  check(ov_core_read_model(core, w.model, NULL, &model));
  check(ov_core_compile_model(core, model, "CPU", 8, &compiled, "INFERENCE_NUM_THREADS", threads,
                              "INFERENCE_PRECISION_HINT", "f32", "PERFORMANCE_HINT", "LATENCY",
                              "NUM_STREAMS", "1"));
  check(ov_compiled_model_create_infer_request(compiled, &request));
  check(ov_compiled_model_outputs_size(compiled, &output_count));
  worker_prepared(&w);

  bind_inputs(request, &w);
  infer(request);
  w.first_result_ns = now_ns();

  if (w.output) write_outputs(request, output_count, w.output);
  worker_measure(&w, infer, request);
  fflush(stdout);
  _exit(0);  // tear-down is not measured
}
