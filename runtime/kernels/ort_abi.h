/* The part of ONNX Runtime's C interface that is used here. Its table of functions only ever grows at the end, so each
   function is known by its place in it; the places are those of API version 24 and later ones. */
#ifndef SPECDEC_ORT_ABI_H
#define SPECDEC_ORT_ABI_H

#include <stddef.h>
#include <stdint.h>

enum { ORT_API_USED = 24, ORT_OP_VERSION = 17 };

typedef struct OrtStatus OrtStatus;
typedef struct OrtValue OrtValue;
typedef struct OrtAllocator OrtAllocator;
typedef struct OrtKernelInfo OrtKernelInfo;
typedef struct OrtKernelContext OrtKernelContext;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtCustomOpDomain OrtCustomOpDomain;
typedef struct OrtTypeInfo OrtTypeInfo;
typedef struct OrtTensorTypeAndShapeInfo OrtTensorTypeAndShapeInfo;

/* The table: functions, one after the other. */
typedef void (*OrtApi)(void);

typedef struct {
    const OrtApi *(*get_api)(uint32_t version);
    const char *(*get_version_string)(void);
} OrtApiBase;

typedef enum { ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2, ORT_NOT_IMPLEMENTED = 9 } OrtErrorCode;
typedef enum { ORT_FLOAT = 1, ORT_UINT8 = 2, ORT_INT32 = 6, ORT_INT64 = 7, ORT_HALF = 10 } OrtElementType;
enum { ORT_REQUIRED = 0, ORT_OPTIONAL = 1 };

/* As version 17 has it; the two functions `without_status` belong to older versions. */
typedef struct OrtCustomOp {
    uint32_t version;
    void *(*create_kernel_without_status)(const struct OrtCustomOp *, const OrtApi *, const OrtKernelInfo *);
    const char *(*get_name)(const struct OrtCustomOp *);
    const char *(*get_execution_provider)(const struct OrtCustomOp *);
    int (*get_input_type)(const struct OrtCustomOp *, size_t);
    size_t (*get_input_count)(const struct OrtCustomOp *);
    int (*get_output_type)(const struct OrtCustomOp *, size_t);
    size_t (*get_output_count)(const struct OrtCustomOp *);
    void (*compute_without_status)(void *, OrtKernelContext *);
    void (*destroy_kernel)(void *);
    int (*get_input_characteristic)(const struct OrtCustomOp *, size_t);
    int (*get_output_characteristic)(const struct OrtCustomOp *, size_t);
    int (*get_input_memory_type)(const struct OrtCustomOp *, size_t);
    int (*get_variadic_input_least)(const struct OrtCustomOp *);
    int (*get_variadic_input_homogeneity)(const struct OrtCustomOp *);
    int (*get_variadic_output_least)(const struct OrtCustomOp *);
    int (*get_variadic_output_homogeneity)(const struct OrtCustomOp *);
    OrtStatus *(*create_kernel)(const struct OrtCustomOp *, const OrtApi *, const OrtKernelInfo *, void **);
    OrtStatus *(*compute)(void *, OrtKernelContext *);
    OrtStatus *(*infer_shape)(const struct OrtCustomOp *, void *);
    int (*get_start_version)(const struct OrtCustomOp *);
    int (*get_end_version)(const struct OrtCustomOp *);
} OrtCustomOp;

/* FUNCTION(slot, name in the C interface, result, arguments) */
#define ORT_FUNCTIONS(FUNCTION)                                                                                        \
    FUNCTION(0, CreateStatus, OrtStatus *, (OrtErrorCode, const char *))                                               \
    FUNCTION(1, GetErrorCode, OrtErrorCode, (const OrtStatus *))                                                       \
    FUNCTION(2, GetErrorMessage, const char *, (const OrtStatus *))                                                    \
    FUNCTION(26, CreateCustomOpDomain, OrtStatus *, (const char *, OrtCustomOpDomain **))                              \
    FUNCTION(27, CustomOpDomain_Add, OrtStatus *, (OrtCustomOpDomain *, const OrtCustomOp *))                          \
    FUNCTION(28, AddCustomOpDomain, OrtStatus *, (OrtSessionOptions *, OrtCustomOpDomain *))                           \
    FUNCTION(51, GetTensorMutableData, OrtStatus *, (OrtValue *, void **))                                             \
    FUNCTION(55, CastTypeInfoToTensorInfo, OrtStatus *, (const OrtTypeInfo *, const OrtTensorTypeAndShapeInfo **))     \
    FUNCTION(60, GetTensorElementType, OrtStatus *, (const OrtTensorTypeAndShapeInfo *, int *))                        \
    FUNCTION(61, GetDimensionsCount, OrtStatus *, (const OrtTensorTypeAndShapeInfo *, size_t *))                       \
    FUNCTION(62, GetDimensions, OrtStatus *, (const OrtTensorTypeAndShapeInfo *, int64_t *, size_t))                   \
    FUNCTION(65, GetTensorTypeAndShape, OrtStatus *, (const OrtValue *, OrtTensorTypeAndShapeInfo **))                 \
    FUNCTION(75, AllocatorAlloc, OrtStatus *, (OrtAllocator *, size_t, void **))                                       \
    FUNCTION(76, AllocatorFree, OrtStatus *, (OrtAllocator *, void *))                                                 \
    FUNCTION(85, KernelInfoGetAttribute_float, OrtStatus *, (const OrtKernelInfo *, const char *, float *))            \
    FUNCTION(86, KernelInfoGetAttribute_int64, OrtStatus *, (const OrtKernelInfo *, const char *, int64_t *))          \
    FUNCTION(90, KernelContext_GetInput, OrtStatus *, (const OrtKernelContext *, size_t, const OrtValue **))           \
    FUNCTION(91, KernelContext_GetOutput, OrtStatus *,                                                                 \
             (OrtKernelContext *, size_t, const int64_t *, size_t, OrtValue **))                                       \
    FUNCTION(93, ReleaseStatus, void, (OrtStatus *))                                                                   \
    FUNCTION(98, ReleaseTypeInfo, void, (OrtTypeInfo *))                                                               \
    FUNCTION(99, ReleaseTensorTypeAndShapeInfo, void, (OrtTensorTypeAndShapeInfo *))                                   \
    FUNCTION(132, ReleaseAllocator, void, (OrtAllocator *))                                                            \
    FUNCTION(230, KernelInfo_GetInputCount, OrtStatus *, (const OrtKernelInfo *, size_t *))                            \
    FUNCTION(232, KernelInfo_GetInputName, OrtStatus *, (const OrtKernelInfo *, size_t, char *, size_t *))             \
    FUNCTION(234, KernelInfo_GetInputTypeInfo, OrtStatus *, (const OrtKernelInfo *, size_t, OrtTypeInfo **))           \
    FUNCTION(249, KernelInfoGetConstantInput_tensor, OrtStatus *,                                                      \
             (const OrtKernelInfo *, size_t, int *, const OrtValue **))                                                \
    FUNCTION(274, KernelContext_ParallelFor, OrtStatus *,                                                              \
             (const OrtKernelContext *, void (*)(void *, size_t), size_t, size_t, void *))                             \
    FUNCTION(278, KernelInfoGetAllocator, OrtStatus *, (const OrtKernelInfo *, int, OrtAllocator **))

#endif
