/* The library's entrances: what Python asks and chooses, and what ONNX Runtime calls to get our operators. */
#include "library.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

/* The builder gives a digest of all sources: what was measured with others is measured again. */
#if !defined(SPECDEC_KERNELS_VERSION)
#define SPECDEC_KERNELS_VERSION unknown
#endif
#define TEXT_OF(word) #word
#define TEXT(word) TEXT_OF(word)

OrtFunctions ort;
const InstructionSet *chosen;
static bool with_attention = true;

/* What Python calls: the version, the set in use or "", whether a set is known (1) and usable (2), and the choice. */
EXPORT const char *specdec_kernels_version(void) { return TEXT(SPECDEC_KERNELS_VERSION); }

EXPORT const char *specdec_kernels_best(void) {
    const InstructionSet *best = best_instruction_set();
    return best ? best->name : "";
}

EXPORT const char *specdec_kernels_name(size_t at) {
    for (size_t seen = 0; instruction_sets[seen]; seen++)
        if (seen == at) return instruction_sets[seen]->name;
    return NULL;
}

EXPORT int specdec_kernels_usable(const char *name) {
    const InstructionSet *set = find_instruction_set(name);
    return set && set->usable();
}

/* Sessions whose options are registered from now on use the set, and our attention too or only the products. */
EXPORT int specdec_kernels_choose(const char *name, int attention) {
    if (!specdec_kernels_usable(name)) return 0;
    chosen = find_instruction_set(name);
    with_attention = attention;
    return 1;
}

OrtStatus *refuse(const char *why) {
    char text[200];
    snprintf(text, sizeof text, "specdec kernels: %s", why);
    return ort.CreateStatus(ORT_NOT_IMPLEMENTED, text);
}

static OrtStatus *read_shape(const OrtTensorTypeAndShapeInfo *info, Tensor *tensor) {
    TRY(ort.GetTensorElementType(info, &tensor->type));
    TRY(ort.GetDimensionsCount(info, &tensor->rank));
    if (tensor->rank > MOST_DIMENSIONS) return refuse("a tensor has too many dimensions");
    return ort.GetDimensions(info, tensor->dimensions, tensor->rank);
}

OrtStatus *read_tensor(const OrtValue *value, Tensor *tensor) {
    OrtTensorTypeAndShapeInfo *info;
    TRY(ort.GetTensorTypeAndShape(value, &info));
    OrtStatus *failed = read_shape(info, tensor);
    ort.ReleaseTensorTypeAndShapeInfo(info);
    if (failed) return failed;
    return ort.GetTensorMutableData((OrtValue *)value, &tensor->data);
}

size_t count_elements(const Tensor *tensor) {
    size_t count = 1;
    for (size_t at = 0; at < tensor->rank; at++) count *= (size_t)tensor->dimensions[at];
    return count;
}

int64_t attribute(const OrtKernelInfo *info, const char *name, int64_t otherwise) {
    int64_t value = otherwise;
    OrtStatus *failed = ort.KernelInfoGetAttribute_int64(info, name, &value);
    if (failed) ort.ReleaseStatus(failed);
    return failed ? otherwise : value;
}

float float_attribute(const OrtKernelInfo *info, const char *name, float otherwise) {
    float value = otherwise;
    OrtStatus *failed = ort.KernelInfoGetAttribute_float(info, name, &value);
    if (failed) ort.ReleaseStatus(failed);
    return failed ? otherwise : value;
}

bool has_input(const OrtKernelInfo *info, size_t at) {
    size_t count = 0, size = 0;
    OrtStatus *failed = ort.KernelInfo_GetInputCount(info, &count);
    if (!failed && at < count) failed = ort.KernelInfo_GetInputName(info, at, NULL, &size);
    if (failed) ort.ReleaseStatus(failed);
    return !failed && at < count && size > 1;
}

static OrtStatus *read_width(const OrtTypeInfo *type, int64_t *width) {
    const OrtTensorTypeAndShapeInfo *info = NULL; /* belongs to `type` */
    Tensor tensor;
    TRY(ort.CastTypeInfoToTensorInfo(type, &info));
    if (!info) return NULL;
    TRY(read_shape(info, &tensor));
    if (tensor.rank && tensor.dimensions[tensor.rank - 1] > 0) *width = tensor.dimensions[tensor.rank - 1];
    return NULL;
}

int64_t stated_width(const OrtKernelInfo *info, size_t at) {
    OrtTypeInfo *type = NULL;
    int64_t width = 0;
    OrtStatus *failed = has_input(info, at) ? ort.KernelInfo_GetInputTypeInfo(info, at, &type) : NULL;
    if (!failed && type) failed = read_width(type, &width);
    if (failed) ort.ReleaseStatus(failed);
    if (type) ort.ReleaseTypeInfo(type);
    return width;
}

const char *get_execution_provider(const OrtCustomOp *op) { return (void)op, "CPUExecutionProvider"; }
int required(const OrtCustomOp *op, size_t at) { return (void)op, (void)at, ORT_REQUIRED; }
int in_common_memory(const OrtCustomOp *op, size_t at) { return (void)op, (void)at, 0; }
int one(const OrtCustomOp *op) { return (void)op, 1; }

/* Takes the functions from their places; false if the table does not behave as it should. */
static bool bind_functions(const OrtApiBase *base) {
    const OrtApi *api = base->get_api(ORT_API_USED);
    if (!api) return false;
#define FUNCTION(slot, name, result, arguments) ort.name = (result(*) arguments)api[slot];
    ORT_FUNCTIONS(FUNCTION)
#undef FUNCTION
    OrtStatus *status = ort.CreateStatus(ORT_NOT_IMPLEMENTED, "places");
    bool right = ort.GetErrorCode(status) == ORT_NOT_IMPLEMENTED && strcmp(ort.GetErrorMessage(status), "places") == 0;
    ort.ReleaseStatus(status);
    return right;
}

/* Operators that take the place of ONNX Runtime's, and those that only we have. */
typedef struct {
    OrtCustomOpDomain *theirs, *own;
} Domains;

static OrtStatus *make_domains(bool attention, Domains *domains) {
    TRY(ort.CreateCustomOpDomain("com.microsoft", &domains->theirs));
    TRY(ort.CreateCustomOpDomain("specdec", &domains->own));
    for (size_t at = 0; at < count_product_ops(); at++) {
        TRY(ort.CustomOpDomain_Add(domains->theirs, product_op(false, at)));
        TRY(ort.CustomOpDomain_Add(domains->own, product_op(true, at)));
    }
    for (size_t at = 0; attention && at < count_attention_ops(); at++)
        TRY(ort.CustomOpDomain_Add(domains->theirs, attention_op(at)));
    return NULL;
}

static OrtStatus *prepare(const OrtApiBase *base, bool attention, Domains *domains) {
    if (domains->own) return NULL;
    if (!bind_functions(base)) return ort.CreateStatus ? refuse("unknown ONNX Runtime") : NULL;
    if (!chosen) chosen = best_instruction_set();
    if (!chosen) return refuse("no instruction set for this processor");
    return make_domains(attention, domains);
}

/* What ONNX Runtime calls, once for each session's options. The domains, without and with attention, are made once and
   serve all of them. An ONNX Runtime that is too old to tell even an error runs its own kernels. */
EXPORT OrtStatus *RegisterCustomOps(OrtSessionOptions *options, const OrtApiBase *base) {
    static Domains of_sessions[2];
    static atomic_flag busy = ATOMIC_FLAG_INIT;
    while (atomic_flag_test_and_set(&busy)) {}
    Domains *domains = &of_sessions[with_attention];
    OrtStatus *failed = prepare(base, with_attention, domains);
    if (!failed && domains->theirs) failed = ort.AddCustomOpDomain(options, domains->theirs);
    if (!failed && domains->own) failed = ort.AddCustomOpDomain(options, domains->own);
    atomic_flag_clear(&busy);
    return failed;
}
