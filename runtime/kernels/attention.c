/* The operator GroupQueryAttention for ONNX Runtime's CPU sessions: rotation, the cache, and cutting a call into parts
   that any threads may run. A call may be cut differently for speed; the arithmetic of attention.h does not notice. */
#include "attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "library.h"

#pragma STDC FP_CONTRACT OFF

enum {
    QUERY,
    KEY,
    VALUE,
    PAST_KEY,
    PAST_VALUE,
    LAST_KEYS,
    TOTAL,
    COSINES,
    SINES,
    POSITIONS,
    BIAS,
    SINKS,
    FIRST_UNKNOWN, /* scales of quantized caches, norms of queries and keys, lengths of a batch */
    INPUTS = 17,
};
enum { OUTPUT, PRESENT_KEY, PRESENT_VALUE, OUTPUTS = 4 };

/* Calls of fewer multiplications stay on their thread; wider ones than SPLIT_ROWS have rows enough for all threads. */
enum { SMALL = 1 << 18, SPLIT_ROWS = 16, TILE_ROWS = 8, ROW_NUMBERS = 1 << 15 };

typedef struct {
    const InstructionSet *set;
    OrtAllocator *allocator;
    size_t heads, kv_heads, window; /* window 0: all keys */
    float scale, softcap;
    bool rotates, interleaved, has_sinks, is_smooth;
} Kernel;

/* A type of operator: of its numbers and of its cache. */
typedef struct {
    OrtCustomOp op;
    int numbers, cache;
} TypedOp;

static bool is_known_size(int64_t size) { return size > 0 && size % HEAD_UNIT == 0 && size <= LARGEST_HEAD; }

/* Where the graph leaves the cache's last dimension open, the part of a head that is rotated tells: mostly all of it. */
static int64_t size_of_head(const OrtKernelInfo *info) {
    const int64_t stated = stated_width(info, PAST_KEY);
    return stated ? stated : 2 * stated_width(info, COSINES);
}

static OrtStatus *read_attributes(const OrtKernelInfo *info, Kernel *kernel) {
    const int64_t heads = attribute(info, "num_heads", 0), kv_heads = attribute(info, "kv_num_heads", 0);
    const int64_t window = attribute(info, "local_window_size", -1);
    if (heads < 1 || kv_heads < 1 || heads % kv_heads || heads > 1 << 16) return refuse("attention: numbers of heads");
    if (!attribute(info, "causal", 1) || attribute(info, "qk_output", 0) || attribute(info, "sliding_window_cache", 0))
        return refuse("attention: only causal, with a whole cache and one output");
    for (size_t at = FIRST_UNKNOWN; at < INPUTS; at++)
        if (has_input(info, at)) return refuse("attention: no quantized cache, norms or ragged batches");
    if (has_input(info, BIAS)) return refuse("attention: no bias");
    if (!is_known_size(size_of_head(info))) return refuse("attention: only heads of 16, 32, 48 and so on up to 256");
    kernel->heads = (size_t)heads;
    kernel->kv_heads = (size_t)kv_heads;
    kernel->window = window > 0 ? (size_t)window : 0;
    kernel->scale = float_attribute(info, "scale", 0);
    kernel->softcap = float_attribute(info, "softcap", 0);
    kernel->rotates = attribute(info, "do_rotary", 0);
    kernel->interleaved = attribute(info, "rotary_interleaved", 0);
    kernel->is_smooth = attribute(info, "smooth_softmax", 0) > 0;
    kernel->has_sinks = has_input(info, SINKS);
    if (kernel->rotates && !(has_input(info, COSINES) && has_input(info, SINES)))
        return refuse("attention: rotation without tables");
    return ort.KernelInfoGetAllocator(info, 0, &kernel->allocator);
}

static void destroy_kernel(void *memory) {
    Kernel *kernel = memory;
    if (kernel && kernel->allocator) ort.ReleaseAllocator(kernel->allocator);
    free(kernel);
}

static OrtStatus *create_kernel(const OrtCustomOp *op, const OrtApi *api, const OrtKernelInfo *info, void **out) {
    (void)op;
    (void)api;
    Kernel *kernel = calloc(1, sizeof *kernel);
    if (!kernel) return refuse("not enough memory");
    OrtStatus *failed = read_attributes(info, kernel);
    kernel->set = chosen;
    if (failed) destroy_kernel(kernel);
    else *out = kernel;
    return failed;
}

/* One call. Sources are rows of numbers; the cache is [kv_heads][capacity][size]. */
typedef struct {
    const Kernel *kernel;
    size_t rows, size, group, past, total, capacity;
    bool is_half, halves; /* numbers, cache */
    const void *query, *key, *value;
    size_t query_width, key_width; /* numbers of a row of those sources */
    const void *cosines, *sines, *sinks;
    size_t half_rotation, table_rows;
    const int64_t *positions;
    uint8_t *present_key, *present_value;
    void *output;
    float *queries; /* [kv_heads][rows][group][size] */
    size_t spans;
    float *parts;   /* room for split calls: see `part_numbers` */
    uint8_t *rooms; /* room for tiles of rows */
} Call;

static float number_of(const void *numbers, bool is_half, size_t at) {
    return is_half ? half_to_float(((const uint16_t *)numbers)[at]) : ((const float *)numbers)[at];
}

static void read_numbers(const void *from, bool is_half, size_t first, size_t count, float *to) {
    if (!is_half) memcpy(to, (const float *)from + first, count * sizeof *to);
    else
        for (size_t at = 0; at < count; at++) to[at] = number_of(from, true, first + at);
}

static void write_numbers(const float *from, bool is_half, void *to, size_t first, size_t count) {
    if (!is_half) memcpy((float *)to + first, from, count * sizeof *from);
    else
        for (size_t at = 0; at < count; at++) ((uint16_t *)to)[first + at] = float_to_half(from[at]);
}

static size_t position_of(const Call *call, size_t row) {
    return call->positions ? (size_t)call->positions[row] : call->past + row;
}

/* Rotates pairs of a head's numbers by the angles of the row's position. */
static void rotate(const Call *call, size_t row, float *numbers) {
    if (!call->kernel->rotates) return;
    const size_t half = call->half_rotation, from = position_of(call, row) * half;
    const bool interleaved = call->kernel->interleaved;
    for (size_t at = 0; at < half; at++) {
        float *a = numbers + (interleaved ? 2 * at : at), *b = interleaved ? a + 1 : a + half;
        const float cosine = number_of(call->cosines, call->is_half, from + at);
        const float sine = number_of(call->sines, call->is_half, from + at);
        const float first = *a * cosine - *b * sine, second = *b * cosine + *a * sine;
        *a = first;
        *b = second;
    }
}

/* A row's queries are rotated and scaled; its keys, rotated, and its values are appended to the cache. */
static void place_row(void *memory, size_t row) {
    const Call *call = memory;
    const Kernel *kernel = call->kernel;
    const size_t size = call->size;
    float numbers[LARGEST_HEAD];
    for (size_t head = 0; head < kernel->heads; head++) {
        const size_t kv = head / call->group, inner = head % call->group;
        float *to = call->queries + ((kv * call->rows + row) * call->group + inner) * size;
        read_numbers(call->query, call->is_half, row * call->query_width + head * size, size, to);
        rotate(call, row, to);
        for (size_t at = 0; at < size; at++) to[at] *= kernel->scale;
    }
    for (size_t kv = 0; kv < kernel->kv_heads; kv++) {
        const size_t from = row * call->key_width + kv * size, to = (kv * call->capacity + call->past + row) * size;
        read_numbers(call->key, call->is_half, from, size, numbers);
        rotate(call, row, numbers);
        write_numbers(numbers, call->halves, call->present_key, to, size);
        read_numbers(call->value, call->is_half, from, size, numbers);
        write_numbers(numbers, call->halves, call->present_value, to, size);
    }
}

/* Room for some queries over one span: peaks, sums, results, and for each chunk factors, scores, and the keys that each
   sees. */
static size_t part_numbers(const Call *call, size_t count) { return count * (3 + call->size + CHUNK + 1); }

/* Rows [first, first + rows) of one head of the cache over one chunk, in `room`. */
static Segment open_segment(const Call *call, size_t kv, size_t first, size_t rows, size_t chunk, float *room) {
    const size_t size = call->size, count = rows * call->group, start = chunk * CHUNK, width = call->halves ? 2 : 4;
    const size_t at = (kv * call->capacity + start) * size * width;
    float *out = room + 2 * count, *factors = out + count * size, *scores = factors + count;
    uint16_t *firsts = (uint16_t *)(scores + count * CHUNK), *ends = firsts + count;
    size_t keys = 0;
    for (size_t query = 0; query < count; query++) {
        const size_t seen = call->past + first + query / call->group + 1, window = call->kernel->window;
        const size_t hidden = window && seen > window ? seen - window : 0;
        const size_t end = seen <= start ? 0 : seen - start < CHUNK ? seen - start : CHUNK;
        const size_t begin = hidden <= start ? 0 : hidden - start < CHUNK ? hidden - start : CHUNK;
        firsts[query] = (uint16_t)begin;
        ends[query] = (uint16_t)end;
        if (begin < end && end > keys) keys = end;
    }
    const float *queries = call->queries + (kv * call->rows + first) * call->group * size;
    return (Segment){.size = size, .keys = keys, .count = count, .queries = queries, .first = firsts, .end = ends,
                     .key = call->present_key + at, .value = call->present_value + at, .halves = call->halves,
                     .softcap = call->kernel->softcap, .scores = scores, .factors = factors, .peaks = room,
                     .sums = room + count, .out = out};
}

/* The same rows over one span, a chunk after the other. */
static void attend_span(const Call *call, size_t kv, size_t first, size_t rows, size_t span, float *room) {
    const size_t count = rows * call->group, last = (span + 1) * CHUNKS_OF_SPAN;
    for (size_t query = 0; query < count; query++) room[query] = -INFINITY;
    memset(room + count, 0, count * (1 + call->size) * sizeof *room);
    for (size_t chunk = span * CHUNKS_OF_SPAN; chunk < last && chunk * CHUNK < call->past + first + rows; chunk++) {
        const Segment segment = open_segment(call, kv, first, rows, chunk, room);
        if (segment.keys) call->kernel->set->attend(&segment);
    }
}

/* The state before the first key: nothing, or the sink, which has a weight but no value. */
static Attended begin_query(const Call *call, size_t head, float *out) {
    const Kernel *kernel = call->kernel;
    memset(out, 0, call->size * sizeof *out);
    if (kernel->has_sinks) return (Attended){number_of(call->sinks, call->is_half, head) * LOG2_E, 1, out};
    if (kernel->is_smooth) return (Attended){0, 1, out};
    return (Attended){-INFINITY, 0, out};
}

static void end_query(const Call *call, size_t row, size_t head, const Attended *seen) {
    for (size_t at = 0; at < call->size; at++) seen->out[at] /= seen->sum;
    const size_t to = (row * call->kernel->heads + head) * call->size;
    write_numbers(seen->out, call->is_half, call->output, to, call->size);
}

/* Few rows: each head and span is a part of its own. */
static void attend_part(void *memory, size_t at) {
    const Call *call = memory;
    float *room = call->parts + at * part_numbers(call, call->rows * call->group);
    attend_span(call, at / call->spans, 0, call->rows, at % call->spans, room);
}

static void merge_row(void *memory, size_t at) {
    const Call *call = memory;
    const size_t kv = at / call->rows, row = at % call->rows, count = call->rows * call->group;
    float out[LARGEST_HEAD];
    for (size_t inner = 0; inner < call->group; inner++) {
        const size_t head = kv * call->group + inner;
        Attended seen = begin_query(call, head, out);
        for (size_t span = 0; span < call->spans; span++) {
            float *room = call->parts + (kv * call->spans + span) * part_numbers(call, count);
            const Segment segment = {.size = call->size, .peaks = room, .sums = room + count, .out = room + 2 * count};
            call->kernel->set->merge(&seen, &segment, row * call->group + inner);
        }
        end_query(call, row, head, &seen);
    }
}

/* Many rows: a tile of them over all spans, merged on the way. */
static size_t count_row_tiles(const Call *call) { return (call->rows + TILE_ROWS - 1) / TILE_ROWS; }

static size_t tile_numbers(const Call *call) {
    const size_t count = TILE_ROWS * call->group;
    return part_numbers(call, count) + count * call->size;
}

static void attend_tile(void *memory, size_t at) {
    const Call *call = memory;
    const size_t tiles = count_row_tiles(call), kv = at / tiles, first = at % tiles * TILE_ROWS;
    const size_t rows = call->rows - first < TILE_ROWS ? call->rows - first : TILE_ROWS, count = rows * call->group;
    float *room = call->parts + at * tile_numbers(call), *out = room + part_numbers(call, count);
    Attended *seen = (Attended *)call->rooms + at * TILE_ROWS * call->group;
    for (size_t query = 0; query < count; query++)
        seen[query] = begin_query(call, kv * call->group + query % call->group, out + query * call->size);
    for (size_t span = 0; span * SPAN < call->past + first + rows; span++) {
        attend_span(call, kv, first, rows, span, room);
        const Segment segment = {.size = call->size, .peaks = room, .sums = room + count, .out = room + 2 * count};
        for (size_t query = 0; query < count; query++) call->kernel->set->merge(&seen[query], &segment, query);
    }
    for (size_t query = 0; query < count; query++)
        end_query(call, first + query / call->group, kv * call->group + query % call->group, &seen[query]);
}

typedef void Part(void *call, size_t at);

static OrtStatus *run_parts(Call *call, OrtKernelContext *context, Part *part, size_t count, bool is_small) {
    if (!is_small && count > 1) return ort.KernelContext_ParallelFor(context, part, count, 0, call);
    for (size_t at = 0; at < count; at++) part(call, at);
    return NULL;
}

static OrtStatus *run_call(Call *call, OrtKernelContext *context) {
    const Kernel *kernel = call->kernel;
    const size_t numbers = call->rows * kernel->heads * call->size;
    const bool is_small = numbers * call->total < SMALL;
    TRY(run_parts(call, context, place_row, call->rows, numbers < ROW_NUMBERS));
    if (call->rows > SPLIT_ROWS)
        return run_parts(call, context, attend_tile, kernel->kv_heads * count_row_tiles(call), is_small);
    TRY(run_parts(call, context, attend_part, kernel->kv_heads * call->spans, is_small));
    return run_parts(call, context, merge_row, kernel->kv_heads * call->rows, numbers * call->spans < ROW_NUMBERS);
}

static size_t padded(size_t bytes) { return (bytes + 63) / 64 * 64; }

/* Memory for the queries, and for the parts of the call. */
static OrtStatus *run_in_scratch(Call *call, OrtKernelContext *context) {
    const Kernel *kernel = call->kernel;
    const bool split = call->rows <= SPLIT_ROWS;
    const size_t tiles = kernel->kv_heads * count_row_tiles(call);
    const size_t queries = padded(call->rows * kernel->heads * call->size * sizeof(float));
    const size_t numbers = split ? kernel->kv_heads * call->spans * part_numbers(call, call->rows * call->group)
                                 : tiles * tile_numbers(call);
    const size_t states = split ? 0 : tiles * TILE_ROWS * call->group * sizeof(Attended);
    void *scratch;
    TRY(ort.AllocatorAlloc(kernel->allocator, queries + padded(numbers * sizeof(float)) + states, &scratch));
    call->queries = scratch;
    call->parts = (float *)((uint8_t *)scratch + queries);
    call->rooms = (uint8_t *)call->parts + padded(numbers * sizeof(float));
    OrtStatus *failed = run_call(call, context), *not_freed = ort.AllocatorFree(kernel->allocator, scratch);
    if (failed && not_freed) ort.ReleaseStatus(not_freed);
    return failed ? failed : not_freed;
}

static OrtStatus *wrong(const char *what) { return ort.CreateStatus(ORT_INVALID_ARGUMENT, what); }

/* An input's tensor; without it, `tensor->data` is NULL. */
static OrtStatus *read_input(OrtKernelContext *context, size_t at, Tensor *tensor) {
    const OrtValue *value = NULL;
    *tensor = (Tensor){0};
    TRY(ort.KernelContext_GetInput(context, at, &value));
    return value ? read_tensor(value, tensor) : NULL;
}

/* Packed queries, keys and values, or each by itself. */
static OrtStatus *read_rows(OrtKernelContext *context, Call *call) {
    const Kernel *kernel = call->kernel;
    Tensor query, key, value;
    TRY(read_input(context, QUERY, &query));
    TRY(read_input(context, KEY, &key));
    TRY(read_input(context, VALUE, &value));
    if (query.rank != 3 || query.dimensions[0] != 1) return wrong("GroupQueryAttention: one text at a time");
    const size_t width = (size_t)query.dimensions[2];
    const size_t heads = kernel->heads + (key.data ? 0 : 2 * kernel->kv_heads);
    call->rows = (size_t)query.dimensions[1];
    call->size = width / heads;
    call->group = kernel->heads / kernel->kv_heads;
    if (width % heads || !is_known_size((int64_t)call->size))
        return wrong("GroupQueryAttention: the rows have another width than the heads");
    const size_t own = call->rows * kernel->kv_heads * call->size, item = call->is_half ? 2 : 4;
    if (key.data && (count_elements(&key) != own || !value.data || count_elements(&value) != own))
        return wrong("GroupQueryAttention: keys or values have another shape");
    call->query = query.data;
    call->query_width = width;
    call->key_width = key.data ? kernel->kv_heads * call->size : width;
    call->key = key.data ? key.data : (uint8_t *)query.data + kernel->heads * call->size * item;
    call->value = key.data ? value.data : (uint8_t *)call->key + kernel->kv_heads * call->size * item;
    return NULL;
}

static OrtStatus *read_rotation(OrtKernelContext *context, Call *call) {
    Tensor cosines, sines, positions, sinks;
    TRY(read_input(context, SINKS, &sinks));
    if (call->kernel->has_sinks && count_elements(&sinks) != call->kernel->heads)
        return wrong("GroupQueryAttention: there must be a sink for each head");
    call->sinks = sinks.data;
    if (!call->kernel->rotates) return NULL;
    TRY(read_input(context, COSINES, &cosines));
    TRY(read_input(context, SINES, &sines));
    TRY(read_input(context, POSITIONS, &positions));
    if (cosines.rank != 2 || count_elements(&sines) != count_elements(&cosines) ||
        2 * (size_t)cosines.dimensions[1] > call->size)
        return wrong("GroupQueryAttention: the tables of the rotation have another shape");
    if (positions.data && count_elements(&positions) != call->rows)
        return wrong("GroupQueryAttention: there must be a position for each row");
    call->cosines = cosines.data;
    call->sines = sines.data;
    call->half_rotation = (size_t)cosines.dimensions[1];
    call->positions = positions.data;
    for (size_t row = 0; row < call->rows; row++)
        if (position_of(call, row) >= (size_t)cosines.dimensions[0])
            return wrong("GroupQueryAttention: the text is longer than the tables of the rotation");
    return NULL;
}

/* Brings an earlier pass's rows into a cache of this one's, unless both are the same memory. */
static void carry_over(const Call *call, const Tensor *past, uint8_t *present) {
    if (!past->data || past->data == present) return;
    const size_t row = call->size * (call->halves ? 2 : 4), rows = (size_t)past->dimensions[2];
    for (size_t kv = 0; kv < call->kernel->kv_heads; kv++)
        memcpy(present + kv * call->capacity * row, (const uint8_t *)past->data + kv * rows * row, call->past * row);
}

static OrtStatus *open_cache(OrtKernelContext *context, Call *call) {
    Tensor past[2], last, total;
    uint8_t **present[2] = {&call->present_key, &call->present_value};
    for (size_t at = 0; at < 2; at++) TRY(read_input(context, PAST_KEY + at, &past[at]));
    TRY(read_input(context, LAST_KEYS, &last));
    TRY(read_input(context, TOTAL, &total));
    if (!last.data || count_elements(&last) != 1 || !total.data || count_elements(&total) != 1)
        return wrong("GroupQueryAttention: the length must be one number");
    const int64_t length = *(const int32_t *)last.data + 1ll, stated = *(const int32_t *)total.data;
    const size_t room = past[0].data ? (size_t)past[0].dimensions[2] : 0;
    call->capacity = stated > (int64_t)room ? (size_t)stated : room;
    if (length < (int64_t)call->rows || length > (int64_t)call->capacity)
        return wrong("GroupQueryAttention: the length does not fit the cache or the rows");
    call->total = (size_t)length;
    call->past = call->total - call->rows;
    call->spans = (call->total + SPAN - 1) / SPAN;
    const int64_t shape[] = {1, (int64_t)call->kernel->kv_heads, (int64_t)call->capacity, (int64_t)call->size};
    for (size_t at = 0; at < 2; at++) {
        if (past[at].data && (past[at].rank != 4 || past[at].dimensions[0] != 1 || past[at].dimensions[1] != shape[1] ||
                              past[at].dimensions[2] != (int64_t)room || past[at].dimensions[3] != shape[3]))
            return wrong("GroupQueryAttention: the cache has another shape");
        if (call->past && (!past[at].data || call->past > room))
            return wrong("GroupQueryAttention: the cache lacks earlier rows");
        OrtValue *value = NULL;
        void *data;
        TRY(ort.KernelContext_GetOutput(context, PRESENT_KEY + at, shape, 4, &value));
        TRY(ort.GetTensorMutableData(value, &data));
        *present[at] = data;
    }
    for (size_t at = 0; at < 2; at++) carry_over(call, &past[at], *present[at]);
    return NULL;
}

static OrtStatus *compute_as(const Kernel *shared, OrtKernelContext *context, bool is_half, bool halves) {
    Kernel kernel = *shared;
    Call call = {.kernel = &kernel, .is_half = is_half, .halves = halves};
    TRY(read_rows(context, &call));
    if (kernel.scale == 0) kernel.scale = 1 / sqrtf((float)call.size);
    OrtValue *output = NULL;
    const int64_t shape[] = {1, (int64_t)call.rows, (int64_t)(kernel.heads * call.size)};
    TRY(ort.KernelContext_GetOutput(context, OUTPUT, shape, 3, &output));
    TRY(ort.GetTensorMutableData(output, &call.output));
    TRY(open_cache(context, &call));
    TRY(read_rotation(context, &call));
    return call.rows ? run_in_scratch(&call, context) : NULL;
}

static OrtStatus *compute_floats(void *memory, OrtKernelContext *context) {
    return compute_as(memory, context, false, false);
}
static OrtStatus *compute_halves(void *memory, OrtKernelContext *context) {
    return compute_as(memory, context, true, true);
}
static OrtStatus *compute_floats_with_halves(void *memory, OrtKernelContext *context) {
    return compute_as(memory, context, false, true);
}

static const char *get_name(const OrtCustomOp *op) { return (void)op, "GroupQueryAttention"; }
static size_t get_input_count(const OrtCustomOp *op) { return (void)op, INPUTS; }
static size_t get_output_count(const OrtCustomOp *op) { return (void)op, OUTPUTS; }

static int get_input_type(const OrtCustomOp *op, size_t at) {
    const TypedOp *typed = (const TypedOp *)op;
    const int own = typed->numbers, cache = typed->cache;
    const int types[INPUTS] = {own, own, own, cache, cache, ORT_INT32, ORT_INT32, own, own, ORT_INT64, own, own,
                               ORT_FLOAT, ORT_FLOAT, own, own, ORT_INT32};
    return types[at];
}

static int get_output_type(const OrtCustomOp *op, size_t at) {
    const TypedOp *typed = (const TypedOp *)op;
    return at == PRESENT_KEY || at == PRESENT_VALUE ? typed->cache : typed->numbers;
}

static int get_input_characteristic(const OrtCustomOp *op, size_t at) {
    return (void)op, at == QUERY || at == LAST_KEYS || at == TOTAL ? ORT_REQUIRED : ORT_OPTIONAL;
}

static int get_output_characteristic(const OrtCustomOp *op, size_t at) {
    return (void)op, at == OUTPUT ? ORT_REQUIRED : ORT_OPTIONAL;
}

#define TYPED_OP(number_type, cache_type, compute_them)                                                              \
    {{COMMON_ANSWERS, .get_name = get_name, .get_input_type = get_input_type, .get_input_count = get_input_count,    \
      .get_output_type = get_output_type, .get_output_count = get_output_count, .destroy_kernel = destroy_kernel,    \
      .get_input_characteristic = get_input_characteristic, .get_output_characteristic = get_output_characteristic,  \
      .create_kernel = create_kernel, .compute = compute_them},                                                      \
     number_type, cache_type}

static const TypedOp ops[] = {
    TYPED_OP(ORT_FLOAT, ORT_FLOAT, compute_floats),
    TYPED_OP(ORT_HALF, ORT_HALF, compute_halves),
    TYPED_OP(ORT_FLOAT, ORT_HALF, compute_floats_with_halves),
};

size_t count_attention_ops(void) { return sizeof ops / sizeof *ops; }
const OrtCustomOp *attention_op(size_t at) { return &ops[at].op; }
