// logits LIBRARIES MODEL OUT CONTEXT KIND TOKEN...: writes the logits of every token, f32, one
// thread, keys and values in f32, or as llama.cpp has them where KIND is "default" and not
// "logits"; where it is "embedding" the text's embedding, or those of all tokens where the model
// has no pooling.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ggml-backend.h"
#include "llama.h"

static void errors_only(enum ggml_log_level level, const char *text, void *context) {
  (void)context;
  if (level >= GGML_LOG_LEVEL_ERROR) {
    fputs(text, stderr);
  }
}

int main(int count, char **arguments) {
  if (count < 7) {
    return 1;
  }
  bool embeds = strcmp(arguments[5], "embedding") == 0;
  llama_log_set(errors_only, NULL);
  ggml_backend_load_all_from_path(arguments[1]);
  llama_backend_init();
  struct llama_model_params of_model = llama_model_default_params();
  struct llama_model *model = llama_model_load_from_file(arguments[2], of_model);
  if (model == NULL) {
    return 2;
  }
  int tokens = count - 6;
  struct llama_context_params params = llama_context_default_params();
  params.n_ctx = (uint32_t)atoi(arguments[4]);
  params.n_batch = params.n_ubatch = (uint32_t)tokens;
  params.n_threads = params.n_threads_batch = 1;
  params.embeddings = embeds;
  if (strcmp(arguments[5], "default") != 0) {
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  }
  struct llama_context *context = llama_init_from_model(model, params);
  if (context == NULL) {
    return 3;
  }
  struct llama_batch batch = llama_batch_init(tokens, 0, 1);
  batch.n_tokens = tokens;
  for (int i = 0; i < tokens; i++) {
    batch.token[i] = atoi(arguments[6 + i]);
    batch.pos[i] = i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = 1;
  }
  FILE *out = fopen(arguments[3], "wb");
  bool encodes = llama_model_has_encoder(model) && !llama_model_has_decoder(model);
  if (out == NULL || (encodes ? llama_encode : llama_decode)(context, batch) != 0) {
    return 4;
  }
  int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
  int width = embeds ? llama_model_n_embd(model) : vocabulary;
  bool is_pooled = embeds && llama_pooling_type(context) != LLAMA_POOLING_TYPE_NONE;
  for (int i = 0; i < (is_pooled ? 1 : tokens); i++) {
    const float *row = is_pooled ? llama_get_embeddings_seq(context, 0)
                       : embeds  ? llama_get_embeddings_ith(context, i)
                                 : llama_get_logits_ith(context, i);
    fwrite(row, sizeof(float), (size_t)width, out);
  }
  int status = fclose(out);
  fflush(stdout);
  _Exit(status == 0 ? 0 : 5);
}
