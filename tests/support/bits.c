/* Prints, for every case and every instruction set of this processor, a checksum of the bits of products and of
   attention, and complains about a row that alone is not what it is in company. The inputs are made here, the same on
   every machine, and every buffer is exactly as large as promised, for the sanitizers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention.h"

static uint64_t state = 1;

static uint32_t draw(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

static float draw_float(void) { return ((float)draw() / 0x1p30f - 1) * (draw() % 16 == 0 ? 8 : 1); }

static void *draw_bytes(size_t size) {
    uint8_t *bytes = malloc(size);
    for (size_t at = 0; at < size; at++) bytes[at] = (uint8_t)draw();
    return bytes;
}

static void *draw_numbers(size_t count, NumberKind kind, float factor) {
    if (kind == NUMBER_NONE) return NULL;
    void *numbers = malloc(count * (kind == NUMBER_HALF ? 2 : 4));
    for (size_t at = 0; at < count; at++) {
        float value = draw_float() * factor;
        if (kind == NUMBER_HALF) ((uint16_t *)numbers)[at] = float_to_half(value);
        else ((float *)numbers)[at] = value;
    }
    return numbers;
}

static Stored draw_stored(size_t columns, size_t inner, size_t bits, size_t block, NumberKind scale, NumberKind zero) {
    size_t blocks = (inner + block - 1) / block;
    Stored stored = {.columns = columns, .inner = inner, .bits = bits, .block = block};
    stored.weights = draw_bytes(columns * blocks * block * bits / 8);
    stored.scales = draw_numbers(columns * blocks, scale, 0.01f);
    stored.scale_kind = scale;
    stored.zeros = zero == NUMBER_PACKED ? draw_bytes(columns * ((blocks * bits + 7) / 8))
                                         : draw_numbers(columns * blocks, zero, (float)(1 << (bits - 1)));
    stored.zero_kind = zero;
    return stored;
}

static void product(const Matrix *matrix, const InstructionSet *set, size_t rows, const void *input, const void *bias,
                    void *output, bool is_half) {
    void *scratch = malloc(scratch_bytes(matrix, rows));
    for (size_t tile = 0; tile < count_tiles(set, rows); tile++)
        for (size_t part = 0; part < 2; part++)
            round_tile(matrix, set, rows, tile, matrix->blocks * part / 2, matrix->blocks * (part + 1) / 2, input,
                       is_half, scratch);
    for (size_t strip = 0; strip < matrix->strips; strip++)
        multiply_strip(matrix, set, rows, strip, scratch, bias, output, is_half);
    free(scratch);
}

static uint64_t checksum(const uint8_t *bytes, size_t size) {
    uint64_t sum = 14695981039346656037u;
    for (size_t at = 0; at < size; at++) sum = (sum ^ bytes[at]) * 1099511628211u;
    return sum;
}

static int run_case(const char *label, const Stored *stored, size_t rows, bool is_half) {
    Matrix matrix;
    if (!describe_matrix(stored, &matrix)) return 1;
    size_t width = is_half ? 2 : 4, row_size = output_columns(&matrix) * width;
    NumberKind kind = is_half ? NUMBER_HALF : NUMBER_FLOAT;
    uint8_t *input = draw_numbers(rows * stored->inner, kind, 1), *bias = draw_numbers(stored->columns, kind, 1);
    uint8_t *together = malloc(rows * row_size), *alone = malloc(row_size);
    matrix.data = malloc(matrix.bytes);
    pack_matrix(stored, &matrix);
    int wrong = 0;
    for (const InstructionSet *const *set = instruction_sets; *set; set++) {
        if (!(*set)->usable()) continue;
        product(&matrix, *set, rows, input, bias, together, is_half);
        for (size_t row = 0; row < rows; row++) {
            product(&matrix, *set, 1, input + row * stored->inner * width, bias, alone, is_half);
            if (memcmp(alone, together + row * row_size, row_size) == 0) continue;
            printf("%s: row %zu of %zu differs alone with %s\n", label, row, rows, (*set)->name);
            wrong = 1;
        }
        printf("%s|%s|%016llx\n", label, (*set)->name, (unsigned long long)checksum(together, rows * row_size));
    }
    free(matrix.data), free(input), free(bias), free(together), free(alone);
    return wrong;
}

static int run_shape(size_t columns, size_t inner, size_t bits, size_t block, size_t rows, bool gated) {
    static const NumberKind kinds[][2] = {{NUMBER_FLOAT, NUMBER_NONE}, {NUMBER_FLOAT, NUMBER_PACKED},
                                          {NUMBER_FLOAT, NUMBER_FLOAT}, {NUMBER_HALF, NUMBER_NONE},
                                          {NUMBER_HALF, NUMBER_PACKED}, {NUMBER_HALF, NUMBER_HALF}};
    int wrong = 0;
    for (size_t at = 0; at < sizeof kinds / sizeof *kinds; at++) {
        char label[100];
        snprintf(label, sizeof label, "%zux%zu int%zu-%zu rows %zu numbers %d %d%s", columns, inner, bits, block, rows,
                 kinds[at][0], kinds[at][1], gated ? " gated" : "");
        Stored stored = draw_stored(columns, inner, bits, block, kinds[at][0], kinds[at][1]);
        stored.gated = gated;
        wrong |= run_case(label, &stored, rows, kinds[at][0] == NUMBER_HALF);
        free((void *)stored.weights), free((void *)stored.scales), free((void *)stored.zeros);
    }
    return wrong;
}

/* Queries over a chunk of keys, of which each sees its own part, and then over another: keys and values change places.
   Results are [count][size + 2]. */
static void attend(const InstructionSet *set, Segment segment, float *results) {
    const size_t count = segment.count, size = segment.size;
    segment.scores = malloc(count * CHUNK * sizeof(float));
    segment.factors = malloc(count * sizeof(float)), segment.peaks = malloc(count * sizeof(float));
    segment.sums = calloc(count, sizeof(float)), segment.out = calloc(count * size, sizeof(float));
    for (size_t at = 0; at < count; at++) segment.peaks[at] = -INFINITY;
    set->attend(&segment);
    const void *key = segment.key;
    segment.key = segment.value, segment.value = key;
    set->attend(&segment);
    for (size_t at = 0; at < count; at++) {
        float *to = results + at * (size + 2);
        Attended seen = {0.5f, 1, to + 2};
        memset(to + 2, 0, size * sizeof *to);
        set->merge(&seen, &segment, at);
        to[0] = seen.peak, to[1] = seen.sum;
    }
    free(segment.scores), free(segment.factors), free(segment.peaks), free(segment.sums), free(segment.out);
}

static int run_attention(size_t size, size_t keys, size_t count, NumberKind kind, float softcap) {
    float *queries = draw_numbers(count * size, NUMBER_FLOAT, 1);
    void *key = draw_numbers(keys * size, kind, 1), *value = draw_numbers(keys * size, kind, 1);
    uint16_t *first = malloc(count * sizeof *first), *end = malloc(count * sizeof *end);
    for (size_t at = 0; at < count; at++) {
        end[at] = (uint16_t)(keys - (at % 3 ? 0 : draw() % (keys + 1)));
        first[at] = (uint16_t)(at % 5 ? 0 : draw() % (keys + 1));
    }
    const size_t row = (size + 2) * sizeof(float);
    uint8_t *together = malloc(count * row), *alone = malloc(row);
    Segment segment = {.size = size, .keys = keys, .count = count, .queries = queries, .first = first, .end = end,
                       .key = key, .value = value, .halves = kind == NUMBER_HALF, .softcap = softcap};
    int wrong = 0;
    for (const InstructionSet *const *set = instruction_sets; *set; set++) {
        if (!(*set)->usable()) continue;
        attend(*set, segment, (float *)together);
        for (size_t at = 0; at < count; at++) {
            Segment one = segment;
            one.count = 1, one.queries += at * size, one.first += at, one.end += at, one.keys = end[at];
            attend(*set, one, (float *)alone);
            if (memcmp(alone, together + at * row, row) == 0) continue;
            printf("attention: query %zu of %zu differs alone with %s\n", at, count, (*set)->name);
            wrong = 1;
        }
        printf("attention %zu over %zu, %zu queries, numbers %d, cap %g|%s|%016llx\n", size, keys, count, kind, softcap,
               (*set)->name, (unsigned long long)checksum(together, count * row));
    }
    free(queries), free(key), free(value), free(first), free(end), free(together), free(alone);
    return wrong;
}

static int run_attentions(void) {
    static const size_t sizes[] = {16, 48, 64, 128, 256}, lengths[] = {1, 9, 32, 77, CHUNK}, counts[] = {1, 2, 7, 20};
    int wrong = 0;
    for (size_t size = 0; size < 5; size++)
        for (size_t keys = 0; keys < 5; keys++)
            for (size_t count = 0; count < 4; count++)
                for (int kind = NUMBER_FLOAT; kind <= NUMBER_HALF; kind++)
                    wrong |= run_attention(sizes[size], lengths[keys], counts[count], kind, keys % 2 ? 2.5f : 0);
    return wrong;
}

int main(void) {
    static const size_t shapes[][2] = {{64, 64}, {128, 48}, {33, 100}, {7, 257}, {1, 1}};
    int wrong = run_attentions();
    for (size_t shape = 0; shape < sizeof shapes / sizeof *shapes; shape++)
        for (size_t bits = 4; bits <= 8; bits += 4)
            for (size_t block = 16; block <= 256; block *= 2)
                for (size_t rows = 1; rows <= 9; rows += rows < 4 ? 1 : 3 - rows % 2)
                    for (int gated = 0; gated <= (shapes[shape][0] % (2 * PANEL) == 0); gated++)
                        wrong |= run_shape(shapes[shape][0], shapes[shape][1], bits, block, rows, gated);
    return wrong;
}
