#include "pipelines.h"

#include <stdatomic.h>
#include <string.h>

#include "descriptors.h"
#include "module_fbs.h"
#include "os.h"
#include "status.h"
#include "system.h"

#define ENTRY_POINT "main"

#define UNUSED UINT32_MAX  // no pipeline: other entry points', or the host runs it

// Executables that the device runs for an entry point: 0 in `of_executable`; others are UNUSED.
static void find_used(const aot_variant_t *variant, const aot_code_t *code,
                      aot_vk_pipelines_t *pipelines) {
  for (uint32_t i = 0; i < variant->executable_count; ++i)
    pipelines->of_executable[i] = UNUSED;
  for (uint32_t at = 0; at < code->word_count; at += code->words[at] >> 8) {
    if ((code->words[at] & 0xff) != AOT_FBS_OPCODE_DISPATCH) continue;
    const uint32_t executable = code->words[at + 1];
    const bool is_hosts =
        variant->host != NULL && aot_executable_is_code(&variant->executables[executable]);
    if (!is_hosts) pipelines->of_executable[executable] = 0;
  }
}

static aot_status_t create_layout(const aot_vk_gpu_t *gpu, const aot_variant_t *variant,
                                  VkDescriptorSetLayout set_layout, aot_error_t *error,
                                  aot_vk_pipelines_t *pipelines) {
  uint32_t push_bytes = 4;  // where a block in the uniform buffer starts
  for (uint32_t i = 0; i < variant->executable_count; ++i) {
    const aot_executable_t *executable = &variant->executables[i];
    const uint32_t bytes = 4 * executable->param_words;
    if (pipelines->of_executable[i] == UNUSED) continue;
    if (executable->param_buffer_bytes == 0 && bytes > push_bytes) push_bytes = bytes;
  }
  pipelines->push_bytes = push_bytes;
  const VkPushConstantRange range = {.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT, .size = push_bytes};
  const VkPipelineLayoutCreateInfo info = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                           .setLayoutCount = 1,
                                           .pSetLayouts = &set_layout,
                                           .pushConstantRangeCount = 1,
                                           .pPushConstantRanges = &range};
  VkPipelineLayout layout = VK_NULL_HANDLE;
  AOT_VK_TRY(error, &gpu->vk, vkCreatePipelineLayout, gpu->device, &info, NULL, &layout);
  pipelines->layout = layout;
  return AOT_OK;
}

// The device must run what the executables say, whatever limits the variant declares.
static aot_status_t check_executable(const aot_vk_gpu_t *gpu, const aot_executable_t *executable,
                                     aot_error_t *error) {
  const VkPhysicalDeviceLimits *limits = &gpu->properties.limits;
  const uint64_t param_bytes = 4 * (uint64_t)executable->param_words;
  const char *limit = NULL;
  if (executable->param_buffer_bytes == 0 && param_bytes > limits->maxPushConstantsSize) {
    limit = "maxPushConstantsSize";
  }
  if (executable->param_buffer_bytes != 0 &&
      (param_bytes > AOT_VK_PARAM_WINDOW_BYTES ||
       executable->param_buffer_bytes != AOT_VK_PARAM_WINDOW_BYTES)) {
    return aot_fail(error, AOT_ERROR_MALFORMED,
                    "executable \"%s\": a parameter block of %llu bytes in a buffer of %u",
                    executable->name, (unsigned long long)param_bytes,
                    (unsigned)executable->param_buffer_bytes);
  }
  uint64_t lanes = 1;
  for (uint32_t i = 0; i < executable->workgroup_count; ++i) {
    lanes *= executable->workgroup_size[i];
    if (executable->workgroup_size[i] > limits->maxComputeWorkGroupSize[i] ||
        lanes > limits->maxComputeWorkGroupInvocations) {
      limit = "maxComputeWorkGroupSize or maxComputeWorkGroupInvocations";
    }
  }
  if (executable->scratch_bytes > limits->maxComputeSharedMemorySize) {
    limit = "maxComputeSharedMemorySize";
  }
  if (limit == NULL) return AOT_OK;
  return aot_fail(error, AOT_ERROR_UNSUPPORTED, "vulkan: executable \"%s\" is above %s's %s",
                  executable->name, gpu->properties.deviceName, limit);
}

// Executables with the same words share a pipeline: the file holds equal words once.
static void find_unique(const aot_vk_gpu_t *gpu, const aot_module_t *module,
                        const aot_variant_t *variant, aot_vk_pipelines_t *pipelines) {
  for (uint32_t i = 0; i < variant->executable_count; ++i) {
    const aot_segment_t *spirv = aot_vk_shader_of(gpu, module, &variant->executables[i]);
    uint32_t at = 0;
    if (pipelines->of_executable[i] == UNUSED) continue;
    for (; at < pipelines->count; ++at) {
      const uint32_t first = pipelines->pipelines[at].executable;
      const aot_segment_t *other = aot_vk_shader_of(gpu, module, &variant->executables[first]);
      if (other->offset == spirv->offset && other->length == spirv->length) break;
    }
    if (at == pipelines->count) pipelines->pipelines[pipelines->count++].executable = i;
    pipelines->of_executable[i] = at;
  }
}

// What the threads that create pipelines share.
typedef struct job_t {
  const aot_vk_gpu_t *gpu;
  aot_vk_pipelines_t *pipelines;
  const VkComputePipelineCreateInfo *infos;
  VkPipelineCache cache;
  atomic_uint next;
  atomic_int result;  // the first failure
} job_t;

static void create_some(void *user, uint32_t worker) {
  (void)worker;
  job_t *job = user;
  for (;;) {
    const uint32_t i = atomic_fetch_add(&job->next, 1);
    if (i >= job->pipelines->count || atomic_load(&job->result) != VK_SUCCESS) return;
    aot_vk_pipeline_t *pipeline = &job->pipelines->pipelines[i];
    const uint64_t start = aot_os_now_ns();
    VkPipeline handle = VK_NULL_HANDLE;
    const VkResult result = job->gpu->vk.vkCreateComputePipelines(job->gpu->device, job->cache, 1,
                                                                  &job->infos[i], NULL, &handle);
    pipeline->create_ns = aot_os_now_ns() - start;
    if (result == VK_SUCCESS) {
      pipeline->handle = handle;
    } else {
      atomic_store(&job->result, (int)result);
    }
  }
}

static VkResult create_batch(const aot_vk_gpu_t *gpu, VkPipelineCache cache,
                             const VkComputePipelineCreateInfo *infos, VkPipeline *handles,
                             aot_vk_pipelines_t *pipelines) {
  if (pipelines->count == 0) return VK_SUCCESS;
  const VkResult result =
      gpu->vk.vkCreateComputePipelines(gpu->device, cache, pipelines->count, infos, NULL, handles);
  // After a failure some may be there all the same; the others are null.
  for (uint32_t i = 0; i < pipelines->count; ++i)
    pipelines->pipelines[i].handle = handles[i];
  return result;
}

static aot_vulkan_creation_t choose_creation(const aot_vulkan_options_t *options) {
  if (options->creation != AOT_VULKAN_CREATION_DEFAULT) return options->creation;
  const char *setting = aot_vk_environment("AOT_VULKAN_PIPELINES");
  if (setting != NULL && strcmp(setting, "serial") == 0) return AOT_VULKAN_CREATION_SERIAL;
  if (setting != NULL && strcmp(setting, "parallel") == 0) return AOT_VULKAN_CREATION_PARALLEL;
  return AOT_VULKAN_CREATION_BATCH;
}

// What creation needs while it lasts.
typedef struct work_t {
  VkShaderModule *modules;
  VkComputePipelineCreateInfo *infos;
  VkPipeline *handles;
} work_t;

// Whether lanes of a subgroup hold matrices together, which Vulkan allows in full subgroups only:
// capabilities are a module's first instructions, behind a header of five words.
static bool holds_matrices(const uint32_t *words, size_t count) {
  enum { HEADER = 5, CAPABILITY = 17, COOPERATIVE_MATRIX = 6022 };
  for (size_t i = HEADER; i + 1 < count && words[i] == (2u << 16 | CAPABILITY); i += 2) {
    if (words[i + 1] == COOPERATIVE_MATRIX) return true;
  }
  return false;
}

static aot_status_t create_modules(const aot_vk_gpu_t *gpu, const aot_module_t *module,
                                   const aot_variant_t *variant, aot_error_t *error,
                                   const aot_vk_pipelines_t *pipelines, work_t *work) {
  for (uint32_t i = 0; i < pipelines->count; ++i) {
    const aot_executable_t *executable = &variant->executables[pipelines->pipelines[i].executable];
    const aot_segment_t *spirv = aot_vk_shader_of(gpu, module, executable);
    AOT_TRY(aot_module_verify_segment(module, spirv, "shader", executable->name, error));
    const uint8_t *words = module->data + spirv->offset;
    if (spirv->length == 0 || spirv->length % 4 != 0 || (uintptr_t)words % 4 != 0) {
      return aot_fail(error, AOT_ERROR_MALFORMED, "executable \"%s\": not whole words of SPIR-V",
                      executable->name);
    }
    const VkShaderModuleCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                           .codeSize = (size_t)spirv->length,
                                           .pCode = (const uint32_t *)(const void *)words};
    AOT_VK_TRY(error, &gpu->vk, vkCreateShaderModule, gpu->device, &info, NULL, &work->modules[i]);
    const bool is_full = holds_matrices(info.pCode, (size_t)spirv->length / 4);
    work->infos[i] = (VkComputePipelineCreateInfo){
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .flags = is_full ? VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT : 0,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .module = work->modules[i],
                  .pName = ENTRY_POINT},
        .layout = pipelines->layout,
        .basePipelineIndex = -1};
  }
  return AOT_OK;
}

static aot_status_t create_pipelines(const aot_vk_gpu_t *gpu, aot_vulkan_creation_t creation,
                                     VkPipelineCache cache, aot_error_t *error,
                                     aot_vk_pipelines_t *pipelines, const work_t *work) {
  VkResult result = VK_SUCCESS;
  if (creation == AOT_VULKAN_CREATION_BATCH) {
    result = create_batch(gpu, cache, work->infos, work->handles, pipelines);
  } else {
    job_t job = {.gpu = gpu, .pipelines = pipelines, .infos = work->infos, .cache = cache};
    atomic_init(&job.next, 0);
    atomic_init(&job.result, VK_SUCCESS);
    const bool is_parallel = creation == AOT_VULKAN_CREATION_PARALLEL;
    aot_vk_run_parallel(is_parallel ? aot_vk_core_count() : 1, create_some, &job);
    result = (VkResult)atomic_load(&job.result);
  }
  return result == VK_SUCCESS ? AOT_OK : aot_vk_fail(result, "vkCreateComputePipelines", error);
}

static aot_status_t create_all(const aot_vk_gpu_t *gpu, const aot_module_t *module,
                               const aot_variant_t *variant, const aot_vulkan_options_t *options,
                               VkPipelineCache cache, const aot_allocator_t *allocator,
                               aot_error_t *error, aot_vk_pipelines_t *pipelines) {
  const size_t each =
      sizeof(VkShaderModule) + sizeof(VkComputePipelineCreateInfo) + sizeof(VkPipeline);
  const size_t bytes = pipelines->count * each;
  void *memory = NULL;
  AOT_TRY(aot_allocate(allocator, bytes, "shader modules", error, &memory));
  memset(memory, 0, bytes);
  work_t work = {.infos = memory};
  work.modules = (VkShaderModule *)(void *)(work.infos + pipelines->count);
  work.handles = (VkPipeline *)(void *)(work.modules + pipelines->count);
  const uint64_t start = aot_os_now_ns();
  aot_status_t status = create_modules(gpu, module, variant, error, pipelines, &work);
  if (status == AOT_OK) {
    status = create_pipelines(gpu, choose_creation(options), cache, error, pipelines, &work);
  }
  pipelines->total_ns = aot_os_now_ns() - start;
  for (uint32_t i = 0; i < pipelines->count; ++i) {
    gpu->vk.vkDestroyShaderModule(gpu->device, work.modules[i], NULL);
  }
  aot_release(allocator, memory, bytes);
  return status;
}

static size_t table_bytes(const aot_vk_pipelines_t *pipelines) {
  return pipelines->executable_count * (sizeof(aot_vk_pipeline_t) + sizeof(uint32_t));
}

aot_status_t aot_vk_pipelines_open(const aot_vk_gpu_t *gpu, const aot_module_t *module,
                                   const aot_variant_t *variant, const aot_entry_t *entry,
                                   const aot_vulkan_options_t *options,
                                   VkDescriptorSetLayout set_layout, VkPipelineCache cache,
                                   const aot_allocator_t *allocator, aot_error_t *error,
                                   aot_vk_pipelines_t *pipelines) {
  memset(pipelines, 0, sizeof *pipelines);
  pipelines->executable_count = variant->executable_count;
  void *memory = NULL;
  AOT_TRY(aot_allocate(allocator, table_bytes(pipelines), "pipelines", error, &memory));
  memset(memory, 0, table_bytes(pipelines));
  pipelines->pipelines = memory;
  pipelines->of_executable =
      (uint32_t *)(void *)(pipelines->pipelines + pipelines->executable_count);
  find_used(variant, &entry->code, pipelines);
  for (uint32_t i = 0; i < variant->executable_count; ++i) {
    if (pipelines->of_executable[i] == UNUSED) continue;
    AOT_TRY(check_executable(gpu, &variant->executables[i], error));
  }
  find_unique(gpu, module, variant, pipelines);
  AOT_TRY(create_layout(gpu, variant, set_layout, error, pipelines));
  return create_all(gpu, module, variant, options, cache, allocator, error, pipelines);
}

void aot_vk_pipelines_close(const aot_vk_gpu_t *gpu, const aot_allocator_t *allocator,
                            aot_vk_pipelines_t *pipelines) {
  if (pipelines->pipelines == NULL) return;
  for (uint32_t i = 0; i < pipelines->count; ++i) {
    gpu->vk.vkDestroyPipeline(gpu->device, pipelines->pipelines[i].handle, NULL);
  }
  gpu->vk.vkDestroyPipelineLayout(gpu->device, pipelines->layout, NULL);
  aot_release(allocator, pipelines->pipelines, table_bytes(pipelines));
  memset(pipelines, 0, sizeof *pipelines);
}
