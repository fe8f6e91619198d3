#include "descriptors.h"

#include <string.h>

#include "status.h"

// A class's storage buffer is at the class's number, and its texels are as far behind TEXELS, kind
// by kind.
#define PARAMS ((uint32_t)AOT_FBS_BUFFER_CLASS_COUNT)
#define TEXELS (PARAMS + 1)
#define MOST_BINDINGS (TEXELS + AOT_VK_TEXEL_KINDS * AOT_FBS_BUFFER_CLASS_COUNT)
// Behind them, whether there are texels or not: windows of operands.
#define WINDOWS MOST_BINDINGS

static uint32_t binding_count(const aot_vk_gpu_t *gpu) {
  return gpu->reads_texels ? MOST_BINDINGS : TEXELS;
}

static VkDescriptorType type_of(uint32_t binding) {
  return binding < PARAMS || binding >= WINDOWS ? VK_DESCRIPTOR_TYPE_STORAGE_BUFFER
         : binding == PARAMS                    ? VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER_DYNAMIC
                                                : VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER;
}

static aot_status_t create_layout(const aot_vk_gpu_t *gpu, aot_error_t *error,
                                  aot_vk_descriptors_t *descriptors) {
  VkDescriptorSetLayoutBinding bindings[MOST_BINDINGS + AOT_VK_MOST_WINDOWS];
  const uint32_t plain = binding_count(gpu);
  const uint32_t count = plain + descriptors->windows.most;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t binding = i < plain ? i : WINDOWS + i - plain;
    bindings[i] = (VkDescriptorSetLayoutBinding){.binding = binding,
                                                 .descriptorType = type_of(binding),
                                                 .descriptorCount = 1,
                                                 .stageFlags = VK_SHADER_STAGE_COMPUTE_BIT};
  }
  const VkDescriptorSetLayoutCreateInfo info = {
      .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
      .bindingCount = count,
      .pBindings = bindings};
  VkDescriptorSetLayout layout = VK_NULL_HANDLE;
  AOT_VK_TRY(error, &gpu->vk, vkCreateDescriptorSetLayout, gpu->device, &info, NULL, &layout);
  descriptors->layout = layout;
  return AOT_OK;
}

aot_status_t aot_vk_descriptors_pool(const aot_vk_gpu_t *gpu,
                                     const aot_vk_descriptors_t *descriptors, uint32_t set_count,
                                     aot_error_t *error, VkDescriptorPool *out_pool) {
  const uint32_t buffers = set_count * AOT_FBS_BUFFER_CLASS_COUNT;
  const VkDescriptorPoolSize sizes[] = {
      {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, buffers + set_count * descriptors->windows.most},
      {VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER_DYNAMIC, set_count},
      {VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER, AOT_VK_TEXEL_KINDS * buffers}};
  const VkDescriptorPoolCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO,
                                           .maxSets = set_count,
                                           .poolSizeCount = gpu->reads_texels ? 3 : 2,
                                           .pPoolSizes = sizes};
  VkDescriptorPool pool = VK_NULL_HANDLE;
  *out_pool = VK_NULL_HANDLE;
  AOT_VK_TRY(error, &gpu->vk, vkCreateDescriptorPool, gpu->device, &info, NULL, &pool);
  *out_pool = pool;
  return AOT_OK;
}

aot_status_t aot_vk_descriptors_open(const aot_vk_gpu_t *gpu, const aot_variant_t *variant,
                                     uint32_t set_count, aot_error_t *error,
                                     aot_vk_descriptors_t *descriptors) {
  memset(descriptors, 0, sizeof *descriptors);
  AOT_TRY(aot_vk_windows_find(variant, error, &descriptors->windows));
  AOT_TRY(create_layout(gpu, error, descriptors));
  return aot_vk_descriptors_pool(gpu, descriptors, set_count, error, &descriptors->pool);
}

void aot_vk_descriptors_close(const aot_vk_gpu_t *gpu, aot_vk_descriptors_t *descriptors) {
  gpu->vk.vkDestroyDescriptorPool(gpu->device, descriptors->pool, NULL);
  gpu->vk.vkDestroyDescriptorSetLayout(gpu->device, descriptors->layout, NULL);
  memset(descriptors, 0, sizeof *descriptors);
}

aot_status_t aot_vk_descriptors_allocate(const aot_vk_gpu_t *gpu,
                                         const aot_vk_descriptors_t *descriptors,
                                         VkDescriptorPool pool, aot_error_t *error,
                                         VkDescriptorSet *out_set) {
  *out_set = VK_NULL_HANDLE;
  const VkDescriptorSetAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
                                            .descriptorPool = pool,
                                            .descriptorSetCount = 1,
                                            .pSetLayouts = &descriptors->layout};
  VkDescriptorSet set = VK_NULL_HANDLE;
  AOT_VK_TRY(error, &gpu->vk, vkAllocateDescriptorSets, gpu->device, &info, &set);
  *out_set = set;
  return AOT_OK;
}

// What is bound of a buffer from an offset on.
static uint64_t range_of(const aot_vk_gpu_t *gpu, const aot_vk_buffer_t *buffer, uint64_t offset) {
  const uint64_t most = gpu->properties.limits.maxStorageBufferRange;
  return buffer->bytes - offset < most ? buffer->bytes - offset : most;
}

void aot_vk_descriptors_write(const aot_vk_gpu_t *gpu, VkDescriptorSet set,
                              const aot_vk_buffer_t *buffers, const aot_vk_buffer_t *params) {
  VkDescriptorBufferInfo infos[TEXELS];
  VkWriteDescriptorSet writes[MOST_BINDINGS];
  uint32_t count = 0;
  for (uint32_t i = 0; i < binding_count(gpu); ++i) {
    if (i == PARAMS && params == NULL) continue;
    VkWriteDescriptorSet *write = &writes[count++];
    *write = (VkWriteDescriptorSet){.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
                                    .dstSet = set,
                                    .dstBinding = i,
                                    .descriptorCount = 1,
                                    .descriptorType = type_of(i)};
    if (i >= TEXELS) {
      const uint32_t kind = (i - TEXELS) / AOT_FBS_BUFFER_CLASS_COUNT;
      write->pTexelBufferView = &buffers[(i - TEXELS) % AOT_FBS_BUFFER_CLASS_COUNT].texels[kind];
      continue;
    }
    const aot_vk_buffer_t *buffer = i == PARAMS ? params : &buffers[i];
    infos[i] = (VkDescriptorBufferInfo){
        .buffer = buffer->handle,
        .range = i == PARAMS ? AOT_VK_PARAM_WINDOW_BYTES : range_of(gpu, buffer, 0)};
    write->pBufferInfo = &infos[i];
  }
  gpu->vk.vkUpdateDescriptorSets(gpu->device, count, writes, 0, NULL);
}

void aot_vk_descriptors_write_windows(const aot_vk_gpu_t *gpu, VkDescriptorSet set,
                                      const aot_vk_buffer_t *buffers,
                                      const aot_executable_t *executable, uint32_t *block) {
  VkDescriptorBufferInfo infos[AOT_VK_MOST_WINDOWS];
  VkWriteDescriptorSet writes[AOT_VK_MOST_WINDOWS];
  for (uint32_t i = 0; i < executable->window_count; ++i) {
    const aot_vk_buffer_t *buffer = &buffers[aot_vk_window_class(executable, i)];
    uint32_t *offset = &block[aot_vk_window_word(executable, i)];
    // What is empty may lie behind the end.
    const uint32_t start = *offset < buffer->bytes ? aot_vk_window_start(*offset) : 0;
    *offset -= start;
    infos[i] = (VkDescriptorBufferInfo){
        .buffer = buffer->handle, .offset = start, .range = range_of(gpu, buffer, start)};
    writes[i] = (VkWriteDescriptorSet){.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
                                       .dstSet = set,
                                       .dstBinding = WINDOWS + i,
                                       .descriptorCount = 1,
                                       .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                       .pBufferInfo = &infos[i]};
  }
  gpu->vk.vkUpdateDescriptorSets(gpu->device, executable->window_count, writes, 0, NULL);
}
