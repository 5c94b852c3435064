/* The operators MatMulNBits and, with a gate in the output, GatedMatMulNBits for ONNX Runtime's CPU sessions: checks, creation, and one call's work on its threads.

   Whatever is not taken is refused when the session is created, so that the caller can open the model without this
   library; a wrong input at run time is an error of that run. */
#include <stdlib.h>
#include <string.h>

#include "library.h"

enum { INPUT, WEIGHTS, SCALES, ZERO_POINTS, GROUP_INDEX, BIAS, INPUTS };
enum { CHUNK_BYTES = 64 << 10, MOST_CHUNKS = 128, PART_LEVELS = 8 << 10, MOST_SIZE = 1 << 30 };

typedef struct {
    Matrix matrix;
    const InstructionSet *set;
    OrtAllocator *allocator;
    bool is_half;
} Kernel;

static OrtStatus *read_constant(const OrtKernelInfo *info, size_t at, Tensor *tensor) {
    int is_constant = 0;
    const OrtValue *value = NULL;
    TRY(ort.KernelInfoGetConstantInput_tensor(info, at, &is_constant, &value));
    if (!is_constant || !value) return refuse("weights, scales and zero points must be constant");
    return read_tensor(value, tensor);
}

static NumberKind number_kind(int type) {
    return type == ORT_FLOAT ? NUMBER_FLOAT : type == ORT_HALF ? NUMBER_HALF : NUMBER_PACKED;
}

static OrtStatus *read_sizes(const OrtKernelInfo *info, Stored *stored) {
    int64_t columns = attribute(info, "N", 0), inner = attribute(info, "K", 0);
    int64_t bits = attribute(info, "bits", 4), block = attribute(info, "block_size", 0);
    if (columns <= 0 || inner <= 0 || columns > MOST_SIZE || inner > MOST_SIZE) return refuse("K or N is out of range");
    if (bits != 4 && bits != 8) return refuse("only 4 and 8 bits");
    if (block < 16 || block > LARGEST_BLOCK || (block & (block - 1)))
        return refuse("only blocks of 16, 32, 64, 128 and 256");
    *stored = (Stored){(size_t)columns, (size_t)inner, (size_t)bits, (size_t)block};
    return NULL;
}

static OrtStatus *read_weights(const OrtKernelInfo *info, Stored *stored) {
    const size_t blocks = (stored->inner + stored->block - 1) / stored->block;
    const int64_t expected[] = {(int64_t)stored->columns, (int64_t)blocks, (int64_t)(stored->block * stored->bits / 8)};
    Tensor weights, scales;
    TRY(read_constant(info, WEIGHTS, &weights));
    if (weights.type != ORT_UINT8 || weights.rank != 3 || memcmp(weights.dimensions, expected, sizeof expected) != 0)
        return refuse("the packed weights have another shape");
    TRY(read_constant(info, SCALES, &scales));
    if (count_elements(&scales) != stored->columns * blocks) return refuse("the scales have another shape");
    stored->weights = weights.data;
    stored->scales = scales.data;
    stored->scale_kind = number_kind(scales.type);
    if (!has_input(info, ZERO_POINTS)) return NULL;
    Tensor zeros;
    TRY(read_constant(info, ZERO_POINTS, &zeros));
    stored->zeros = zeros.data;
    stored->zero_kind = number_kind(zeros.type);
    size_t of_column = stored->zero_kind == NUMBER_PACKED ? (blocks * stored->bits + 7) / 8 : blocks;
    if (count_elements(&zeros) != stored->columns * of_column) return refuse("the zero points have another shape");
    return NULL;
}

static OrtStatus *describe(const OrtKernelInfo *info, Stored *stored) {
    TRY(read_sizes(info, stored));
    if (has_input(info, GROUP_INDEX)) return refuse("no group index");
    if (attribute(info, "weight_prepacked", 0) != 0) return refuse("the weights are packed for another device");
    const int64_t accuracy = attribute(info, "accuracy_level", 0); /* 0: the file leaves it open; 4: int8 */
    if (accuracy != 0 && accuracy != 4) return refuse("the file asks for activations that are not rounded to int8");
    return read_weights(info, stored);
}

static void destroy_kernel(void *memory) {
    Kernel *kernel = memory;
    if (!kernel) return;
    release_memory(kernel->matrix.data);
    if (kernel->allocator) ort.ReleaseAllocator(kernel->allocator);
    free(kernel);
}

static OrtStatus *build_kernel(const OrtKernelInfo *info, bool gated, Kernel *kernel) {
    Stored stored;
    TRY(describe(info, &stored));
    stored.gated = gated;
    if (!describe_matrix(&stored, &kernel->matrix)) return refuse("sizes that make no sense");
    TRY(ort.KernelInfoGetAllocator(info, 0, &kernel->allocator));
    kernel->matrix.data = take_memory(kernel->matrix.bytes);
    if (!kernel->matrix.data) return refuse("not enough memory for the repacked weights");
    pack_matrix(&stored, &kernel->matrix);
    forget_file_pages(stored.weights, stored.columns * kernel->matrix.blocks * stored.block * stored.bits / 8);
    kernel->is_half = stored.scale_kind == NUMBER_HALF;
    kernel->set = chosen;
    return NULL;
}

/* One operator for each pair of types: of the numbers that go in and out, and of the zero points. */
typedef struct {
    OrtCustomOp op;
    bool gated;
    int numbers, zeros;
} TypedOp;

static OrtStatus *create_kernel(const OrtCustomOp *op, const OrtApi *api, const OrtKernelInfo *info, void **out) {
    (void)api;
    Kernel *kernel = calloc(1, sizeof *kernel);
    if (!kernel) return refuse("not enough memory");
    OrtStatus *failed = build_kernel(info, ((const TypedOp *)op)->gated, kernel);
    if (failed) destroy_kernel(kernel);
    else *out = kernel;
    return failed;
}

/* One call: rows that are rounded, tile by tile in parts, then multiplied with the matrix chunk by chunk, on any
   threads. A part is some blocks of all rows of a tile: different rows of a tile share lines of memory. */
typedef struct {
    const Kernel *kernel;
    size_t rows, parts, chunks;
    const void *input, *bias;
    void *output, *scratch;
} Call;

static void round_part(void *memory, size_t at) {
    const Call *call = memory;
    const Matrix *matrix = &call->kernel->matrix;
    size_t tile = at / call->parts, part = at % call->parts;
    size_t first = matrix->blocks * part / call->parts, end = matrix->blocks * (part + 1) / call->parts;
    round_tile(matrix, call->kernel->set, call->rows, tile, first, end, call->input, call->kernel->is_half,
               call->scratch);
}

static void multiply_part(void *memory, size_t chunk) {
    const Call *call = memory;
    const Matrix *matrix = &call->kernel->matrix;
    size_t first = matrix->strips * chunk / call->chunks, end = matrix->strips * (chunk + 1) / call->chunks;
    for (size_t strip = first; strip < end; strip++)
        multiply_strip(matrix, call->kernel->set, call->rows, strip, call->scratch, call->bias, call->output,
                       call->kernel->is_half);
}

/* Chunks large enough to be worth fetching, and enough of them for threads of unequal speed. */
static size_t count_chunks(const Matrix *matrix) {
    size_t chunks = matrix->bytes / CHUNK_BYTES;
    if (chunks < 1) chunks = 1;
    if (chunks > MOST_CHUNKS) chunks = MOST_CHUNKS;
    return chunks < matrix->strips ? chunks : matrix->strips;
}

static OrtStatus *round_rows(Call *call, OrtKernelContext *context) {
    const Matrix *matrix = &call->kernel->matrix;
    size_t levels = call->rows * matrix->inner, tiles = count_tiles(call->kernel->set, call->rows);
    call->parts = levels / tiles / PART_LEVELS;
    if (call->parts < 1) call->parts = 1;
    if (call->parts > matrix->blocks) call->parts = matrix->blocks;
    const size_t units = tiles * call->parts;
    if (levels > 2 * PART_LEVELS) return ort.KernelContext_ParallelFor(context, round_part, units, 0, call);
    for (size_t at = 0; at < units; at++) round_part(call, at);
    return NULL;
}

static OrtStatus *run_call(Call *call, OrtKernelContext *context) {
    TRY(round_rows(call, context));
    call->chunks = count_chunks(&call->kernel->matrix);
    return ort.KernelContext_ParallelFor(context, multiply_part, call->chunks, 0, call);
}

static OrtStatus *read_bias(const Kernel *kernel, OrtKernelContext *context, const void **data) {
    const OrtValue *value = NULL;
    Tensor bias;
    *data = NULL;
    TRY(ort.KernelContext_GetInput(context, BIAS, &value));
    if (!value) return NULL;
    TRY(read_tensor(value, &bias));
    if (count_elements(&bias) != kernel->matrix.columns)
        return ort.CreateStatus(ORT_INVALID_ARGUMENT, "MatMulNBits: the bias has another length than N");
    *data = bias.data;
    return NULL;
}

static OrtStatus *compute(void *memory, OrtKernelContext *context) {
    const Kernel *kernel = memory;
    const OrtValue *value = NULL;
    Tensor input;
    TRY(ort.KernelContext_GetInput(context, INPUT, &value));
    TRY(read_tensor(value, &input));
    if (input.rank == 0 || (size_t)input.dimensions[input.rank - 1] != kernel->matrix.inner)
        return ort.CreateStatus(ORT_INVALID_ARGUMENT, "MatMulNBits: the last dimension of the input is not K");
    Call call = {.kernel = kernel, .rows = count_elements(&input) / kernel->matrix.inner, .input = input.data};
    TRY(read_bias(kernel, context, &call.bias));
    OrtValue *result = NULL;
    input.dimensions[input.rank - 1] = (int64_t)output_columns(&kernel->matrix);
    TRY(ort.KernelContext_GetOutput(context, 0, input.dimensions, input.rank, &result));
    if (call.rows == 0) return NULL;
    TRY(ort.GetTensorMutableData(result, &call.output));
    TRY(ort.AllocatorAlloc(kernel->allocator, scratch_bytes(&kernel->matrix, call.rows), &call.scratch));
    OrtStatus *failed = run_call(&call, context), *not_freed = ort.AllocatorFree(kernel->allocator, call.scratch);
    if (failed && not_freed) ort.ReleaseStatus(not_freed);
    return failed ? failed : not_freed;
}

static const char *get_name(const OrtCustomOp *op) {
    return ((const TypedOp *)op)->gated ? "GatedMatMulNBits" : "MatMulNBits";
}
static size_t get_input_count(const OrtCustomOp *op) { return (void)op, INPUTS; }
static size_t get_output_count(const OrtCustomOp *op) { return (void)op, 1; }
static int get_input_characteristic(const OrtCustomOp *op, size_t at) {
    return (void)op, at < ZERO_POINTS ? ORT_REQUIRED : ORT_OPTIONAL;
}

static int get_input_type(const OrtCustomOp *op, size_t at) {
    const TypedOp *typed = (const TypedOp *)op;
    const int types[INPUTS] = {typed->numbers, ORT_UINT8, typed->numbers, typed->zeros, ORT_INT32, typed->numbers};
    return types[at];
}

static int get_output_type(const OrtCustomOp *op, size_t at) { return (void)at, ((const TypedOp *)op)->numbers; }

#define TYPED_OP(gated, number_type, zero_type)                                                                      \
    {{COMMON_ANSWERS, .get_name = get_name, .get_input_type = get_input_type, .get_input_count = get_input_count,    \
      .get_output_type = get_output_type, .get_output_count = get_output_count, .destroy_kernel = destroy_kernel,    \
      .get_input_characteristic = get_input_characteristic, .get_output_characteristic = required,                   \
      .create_kernel = create_kernel, .compute = compute},                                                           \
     gated, number_type, zero_type}
#define TYPED_OPS(gated)                                                                                             \
    {TYPED_OP(gated, ORT_FLOAT, ORT_UINT8), TYPED_OP(gated, ORT_FLOAT, ORT_FLOAT),                                   \
     TYPED_OP(gated, ORT_HALF, ORT_UINT8), TYPED_OP(gated, ORT_HALF, ORT_HALF)}

enum { TYPES = 4 };
static const TypedOp ops[2][TYPES] = {TYPED_OPS(false), TYPED_OPS(true)};

size_t count_product_ops(void) { return TYPES; }
const OrtCustomOp *product_op(bool gated, size_t at) { return &ops[gated][at].op; }
