/* What the operators share: ONNX Runtime's functions, tensors, attributes, and how a node is refused. */
#ifndef SPECDEC_LIBRARY_H
#define SPECDEC_LIBRARY_H

#include "matrix.h"
#include "ort_abi.h"

enum { MOST_DIMENSIONS = 8 };

#define FUNCTION(slot, name, result, arguments) result(*name) arguments;
typedef struct {
    ORT_FUNCTIONS(FUNCTION)
} OrtFunctions;
#undef FUNCTION
extern OrtFunctions ort;

/* The instruction set of sessions that are opened now. */
extern const InstructionSet *chosen;

#define TRY(call)                         \
    do {                                  \
        OrtStatus *failed = (call);       \
        if (failed) return failed;        \
    } while (0)

/* What is not taken is refused when the session is created, so that the caller can open the model without us. */
OrtStatus *refuse(const char *why);

/* A tensor's element type, dimensions and data. */
typedef struct {
    int type;
    size_t rank;
    int64_t dimensions[MOST_DIMENSIONS];
    void *data;
} Tensor;

OrtStatus *read_tensor(const OrtValue *value, Tensor *tensor);
size_t count_elements(const Tensor *tensor);

int64_t attribute(const OrtKernelInfo *info, const char *name, int64_t otherwise);
float float_attribute(const OrtKernelInfo *info, const char *name, float otherwise);
/* Whether the node has input `at`: an optional one that is left out has no name. */
bool has_input(const OrtKernelInfo *info, size_t at);

/* The last dimension of input `at` as the graph states it; 0 where it leaves it open. */
int64_t stated_width(const OrtKernelInfo *info, size_t at);

/* What every operator of ours answers alike. */
const char *get_execution_provider(const OrtCustomOp *op);
int required(const OrtCustomOp *op, size_t at);
int in_common_memory(const OrtCustomOp *op, size_t at);
int one(const OrtCustomOp *op);
#define COMMON_ANSWERS                                                                                          \
    .version = ORT_OP_VERSION, .get_execution_provider = get_execution_provider,                               \
    .get_input_memory_type = in_common_memory, .get_variadic_input_least = one,                                \
    .get_variadic_input_homogeneity = one, .get_variadic_output_least = one,                                   \
    .get_variadic_output_homogeneity = one, .get_start_version = one

/* The operators of each kind, one for each combination of types. */
size_t count_product_ops(void);
const OrtCustomOp *product_op(bool gated, size_t at);
size_t count_attention_ops(void);
const OrtCustomOp *attention_op(size_t at);

#endif
