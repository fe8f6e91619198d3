// Shader modules and pipelines: one for each unique shader of an entry point.
#ifndef AOT_DRIVERS_VULKAN_PIPELINES_H_
#define AOT_DRIVERS_VULKAN_PIPELINES_H_

#include "gpu.h"

typedef struct aot_vk_pipeline_t {
  VkPipeline handle;
  uint32_t executable;  // the first that it is for
  uint64_t create_ns;   // 0: created with others
} aot_vk_pipeline_t;

typedef struct aot_vk_pipelines_t {
  VkPipelineLayout layout;
  uint32_t count;
  uint32_t executable_count;
  aot_vk_pipeline_t *pipelines;
  uint32_t *of_executable;  // index of its pipeline, of those that the entry point uses
  uint64_t total_ns;
  uint32_t push_bytes;  // of the layout's range
} aot_vk_pipelines_t;

// Verifies the checksums of the shaders that the entry point uses and creates everything.  Close it
// in any case.
aot_status_t aot_vk_pipelines_open(const aot_vk_gpu_t *gpu, const aot_module_t *module,
                                   const aot_variant_t *variant, const aot_entry_t *entry,
                                   const aot_vulkan_options_t *options,
                                   VkDescriptorSetLayout set_layout, VkPipelineCache cache,
                                   const aot_allocator_t *allocator, aot_error_t *error,
                                   aot_vk_pipelines_t *pipelines);
void aot_vk_pipelines_close(const aot_vk_gpu_t *gpu, const aot_allocator_t *allocator,
                            aot_vk_pipelines_t *pipelines);

#endif  // AOT_DRIVERS_VULKAN_PIPELINES_H_
