// The part of onnxruntime's C API that ort_run calls, declared here because the Python package
// ships the library without its headers. OrtApi is a table of functions that only ever grows at its
// end, so a slot's number is part of the ABI; the numbers below are those of API version 12 and
// later.
#ifndef ORT_ABI_H_
#define ORT_ABI_H_

#include <stddef.h>
#include <stdint.h>

enum { ORT_API_VERSION = 12 };
enum { ORT_LOG_ERROR = 3, ORT_ARENA_ALLOCATOR = 1, ORT_MEMORY_DEFAULT = 0 };
enum { ORT_FLOAT = 1, ORT_UINT8 = 2, ORT_INT8 = 3, ORT_INT32 = 6, ORT_INT64 = 7, ORT_BOOL = 9 };

typedef struct OrtStatus OrtStatus;  // NULL is success
typedef struct OrtEnv OrtEnv;
typedef struct OrtSession OrtSession;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtRunOptions OrtRunOptions;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtAllocator OrtAllocator;
typedef struct OrtValue OrtValue;
typedef struct OrtTensorInfo OrtTensorInfo;

typedef struct {
  void *slots_0[2];
  const char *(*GetErrorMessage)(const OrtStatus *);
  OrtStatus *(*CreateEnv)(int log_level, const char *id, OrtEnv **out);
  void *slots_4[3];
  OrtStatus *(*CreateSession)(const OrtEnv *, const char *path, const OrtSessionOptions *,
                              OrtSession **out);
  void *slots_8[1];
  OrtStatus *(*Run)(OrtSession *, const OrtRunOptions *, const char *const *input_names,
                    const OrtValue *const *inputs, size_t input_count,
                    const char *const *output_names, size_t output_count, OrtValue **outputs);
  OrtStatus *(*CreateSessionOptions)(OrtSessionOptions **out);
  void *slots_11[12];
  OrtStatus *(*SetSessionGraphOptimizationLevel)(OrtSessionOptions *, int level);
  OrtStatus *(*SetIntraOpNumThreads)(OrtSessionOptions *, int count);
  OrtStatus *(*SetInterOpNumThreads)(OrtSessionOptions *, int count);
  void *slots_26[5];
  OrtStatus *(*SessionGetOutputCount)(const OrtSession *, size_t *out);
  void *slots_32[5];
  OrtStatus *(*SessionGetOutputName)(const OrtSession *, size_t index, OrtAllocator *, char **out);
  void *slots_38[11];
  OrtStatus *(*CreateTensorWithDataAsOrtValue)(const OrtMemoryInfo *, void *data, size_t bytes,
                                               const int64_t *dims, size_t rank, int element_type,
                                               OrtValue **out);
  void *slots_50[1];
  OrtStatus *(*GetTensorMutableData)(OrtValue *, void **out);
  void *slots_52[8];
  OrtStatus *(*GetTensorElementType)(const OrtTensorInfo *, int *out);
  OrtStatus *(*GetDimensionsCount)(const OrtTensorInfo *, size_t *out);
  OrtStatus *(*GetDimensions)(const OrtTensorInfo *, int64_t *dims, size_t rank);
  void *slots_63[2];
  OrtStatus *(*GetTensorTypeAndShape)(const OrtValue *, OrtTensorInfo **out);
  void *slots_66[3];
  OrtStatus *(*CreateCpuMemoryInfo)(int allocator, int memory, OrtMemoryInfo **out);
  void *slots_70[8];
  OrtStatus *(*GetAllocatorWithDefaultOptions)(OrtAllocator **out);
  void *slots_79[17];
  void (*ReleaseValue)(OrtValue *);
} OrtApi;

#define ORT_SLOT(name, number) \
  _Static_assert(offsetof(OrtApi, name) == (number) * sizeof(void *), #name)
ORT_SLOT(GetErrorMessage, 2);
ORT_SLOT(CreateEnv, 3);
ORT_SLOT(CreateSession, 7);
ORT_SLOT(Run, 9);
ORT_SLOT(CreateSessionOptions, 10);
ORT_SLOT(SetSessionGraphOptimizationLevel, 23);
ORT_SLOT(SetIntraOpNumThreads, 24);
ORT_SLOT(SetInterOpNumThreads, 25);
ORT_SLOT(SessionGetOutputCount, 31);
ORT_SLOT(SessionGetOutputName, 37);
ORT_SLOT(CreateTensorWithDataAsOrtValue, 49);
ORT_SLOT(GetTensorMutableData, 51);
ORT_SLOT(GetTensorElementType, 60);
ORT_SLOT(GetDimensionsCount, 61);
ORT_SLOT(GetDimensions, 62);
ORT_SLOT(GetTensorTypeAndShape, 65);
ORT_SLOT(CreateCpuMemoryInfo, 69);
ORT_SLOT(GetAllocatorWithDefaultOptions, 78);
ORT_SLOT(ReleaseValue, 96);
#undef ORT_SLOT

typedef struct {
  const OrtApi *(*GetApi)(uint32_t version);
  const char *(*GetVersionString)(void);
} OrtApiBase;

const OrtApiBase *OrtGetApiBase(void);

#endif  // ORT_ABI_H_
