/* The walk through a panel and the rounding of rows, written once for every instruction set, so that the order of
   float operations cannot differ. A file includes this after it has defined its vectors:

     LANES, ROWS             columns in a vector, most rows of a tile
     VECTORS(rows)           vectors that are computed at a time for a tile of that many rows
     Ints, Floats            vectors of LANES int32 or floats
     ints_of, floats_of      one value in all lanes
     to_floats               Ints to Floats, exact
     times, times_plus       a * b; a * b + c with one rounding
     load_floats, load_halves, load_bytes, load_signed_bytes, store_floats
     add_products            the integer sums of one block, see below */
#include <math.h>
#include <string.h>

#include "group.h"
#include "matrix.h"

#pragma STDC FP_CONTRACT OFF

static inline int32_t int_bits(float value) {
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of_bits(int32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* [first, first + VECTORS) of the panel's columns, for all rows of the tile. `rows`, `vectors` and `bits` are
   constants wherever this is called, so that the sums live in registers. */
ALWAYS_INLINE void walk(const int rows, const int vectors, const int bits, const Matrix *matrix, size_t panel,
                        const Tile *tile, const int first, float *out) {
    Floats results[ROWS][VECTORS_MOST];
    EACH(row, rows)
        EACH(v, vectors) results[row][v] = floats_of(0);
    const uint8_t *at = matrix->data + panel * matrix->panel_bytes;
    const size_t scale_bytes = matrix->scale_bytes, zero_bytes = matrix->zero_bytes;
    const float part = zero_bytes == 1 ? 1.0f / (float)zero_parts(bits) : 1;
    Floats units[VECTORS_MOST];
    if (scale_bytes == 1)
        EACH(v, vectors) units[v] = load_floats(at + matrix->units_at + 4 * (first + v * LANES));
    const int32_t *levels = tile->levels;
    const size_t slices = matrix->slices, lanes = matrix->block / 4;
    for (size_t block = 0; block < matrix->blocks; block++) {
        const float *scales = tile->scales + block * rows, *totals = tile->totals + block * rows;
        const int32_t *starts = tile->starts + block * rows;
        Ints sums[ROWS][VECTORS_MOST];
        EACH(row, rows)
            EACH(v, vectors) sums[row][v] = ints_of(starts[row]);
        add_products(rows, vectors, bits, slices, at + 4 * first, levels, totals, sums);
        const uint8_t *numbers = at + slices * SLICE_BYTES, *zeros = numbers + PANEL * scale_bytes;
        EACH(v, vectors) {
            const int column = first + v * LANES;
            Floats scale, zero = floats_of(0);
            if (scale_bytes == 1) scale = times(load_signed_bytes(numbers + column), units[v]);
            else scale = scale_bytes == 2 ? load_halves(numbers + 2 * column) : load_floats(numbers + 4 * column);
            if (zero_bytes == 1) zero = load_bytes(zeros + column);
            else if (zero_bytes == 2) zero = load_halves(zeros + 2 * column);
            else if (zero_bytes == 4) zero = load_floats(zeros + 4 * column);
            EACH(row, rows) {
                Floats sum = to_floats(sums[row][v]);
                if (zero_bytes) sum = times_plus(zero, floats_of(-totals[row] * part), sum);
                results[row][v] = times_plus(sum, times(scale, floats_of(scales[row])), results[row][v]);
            }
        }
        at += matrix->block_bytes;
        levels += lanes * rows;
    }
    EACH(row, rows)
        EACH(v, vectors) store_floats(out + row * PANEL + first + v * LANES, results[row][v]);
}

#define WALK(rows, bits)                                                                          \
    static void walk_##rows##_##bits(const Matrix *matrix, size_t panel, const Tile *tile, float *out) { \
        for (int first = 0; first < PANEL; first += VECTORS(rows) * LANES)                               \
            walk(rows, VECTORS(rows), bits, matrix, panel, tile, first, out);                            \
    }

#define WALKS(rows) WALK(rows, 4) WALK(rows, 8)

WALKS(1)
WALKS(2)
WALKS(3)
WALKS(4)
#if ROWS > 4
WALKS(5)
WALKS(6)
#endif
#if ROWS > 6
WALKS(7)
WALKS(8)
#endif

typedef void Walk(const Matrix *matrix, size_t panel, const Tile *tile, float *out);

static void multiply(const Matrix *matrix, size_t panel, const Tile *tile, float *out) {
    static Walk *const walks[ROWS][2] = {
        {walk_1_4, walk_1_8}, {walk_2_4, walk_2_8}, {walk_3_4, walk_3_8}, {walk_4_4, walk_4_8},
#if ROWS > 4
        {walk_5_4, walk_5_8}, {walk_6_4, walk_6_8},
#endif
#if ROWS > 6
        {walk_7_4, walk_7_8}, {walk_8_4, walk_8_8},
#endif
    };
    walks[tile->count - 1][matrix->bits == 8](matrix, panel, tile, out);
}

/* Rounds a block to int8; returns the sum. Adding 1.5 * 2^23 leaves the nearest integer, ties to even, in the low bits
   of the float. */
ALWAYS_INLINE int32_t round_block(const float *from, size_t block, float inverse, int8_t *to) {
    GroupOfInts total = {0};
    for (size_t at = 0; at < block; at += GROUP) {
        const GroupOfFloats shifted = (GroupOfFloats)load_bits(from + at) * inverse + 0x1.8p23f;
        const GroupOfInts level = (GroupOfInts)shifted - 0x4b400000;
        const GroupOfBytes bytes = __builtin_convertvector(level, GroupOfBytes);
        total += level;
        memcpy(to + at, &bytes, sizeof bytes);
    }
    COMBINE(SUM_OF, total);
    return total[0];
}

/* The bits of the largest magnitude; they are ordered like the magnitudes, with infinities and NaN on top. */
ALWAYS_INLINE int32_t peak_bits(const float *from, size_t block) {
    GroupOfInts peak = {0};
    for (size_t at = 0; at < block; at += GROUP) peak = larger(load_bits(from + at) & 0x7fffffff, peak);
    COMBINE(larger, peak);
    return peak[0];
}

/* A block of the row as floats: in place, or in `room` where it must be widened or filled up with zeros. */
static const float *read_block(const Matrix *matrix, const void *row, bool is_half, size_t first, float *room) {
    size_t left = matrix->inner - first, count = left < matrix->block ? left : matrix->block;
    if (!is_half && count == matrix->block) return (const float *)row + first;
    if (is_half)
        for (size_t at = 0; at < count; at++) room[at] = half_to_float(((const uint16_t *)row)[first + at]);
    else memcpy(room, (const float *)row + first, count * sizeof *room);
    memset(room + count, 0, (matrix->block - count) * sizeof *room);
    return room;
}

/* A block without a finite peak makes its row NaN; one whose peak is next to nothing counts as zeros. */
static void round_row(const Matrix *matrix, const void *row, bool is_half, size_t first, size_t end, Tile *tile,
                      size_t row_at) {
    enum { INFINITE = 0x7f800000, NOTHING = 0x0d800000 /* 2^-100 */ };
    const int32_t middle = matrix->zero_bytes ? 0 : 1 << (matrix->bits - 1);
    const size_t lanes = matrix->block / 4;
    float room[LARGEST_BLOCK];
    int8_t levels[LARGEST_BLOCK];
    for (size_t block = first; block < end; block++) {
        const float *from = read_block(matrix, row, is_half, block * matrix->block, room);
        int32_t bits = peak_bits(from, matrix->block), total = 0;
        float peak = float_of_bits(bits), scale = peak / 127;
        if (bits < NOTHING || bits >= INFINITE) {
            scale = bits < NOTHING ? 0 : float_of_bits(0x7fc00000);
            memset(levels, 0, matrix->block);
        } else {
            total = round_block(from, matrix->block, 127 / peak, levels);
        }
        size_t number = block * tile->count + row_at;
        tile->scales[number] = scale;
        tile->totals[number] = (float)total;
        tile->starts[number] = -middle * total;
        int32_t *to = tile->levels + block * lanes * tile->count + row_at;
        for (size_t lane = 0; lane < lanes; lane++) memcpy(to + lane * tile->count, levels + 4 * lane, 4);
    }
}

/* What passes a gate, for PANEL columns: gate / (1 + exp(-gate)) * value, written over `gate`. */
static void pass_gate(float *gate, const float *value) {
    for (size_t at = 0; at < PANEL; at += GROUP) {
        const GroupOfFloats x = load_group(gate + at), one = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
        const GroupOfFloats small = power_of_two((GroupOfFloats)((GroupOfInts)x | (int32_t)0x80000000) * LOG2_E);
        const GroupOfFloats open = choose(x < 0, small, one) / (small + 1.0f);
        const GroupOfFloats passed = x * open * load_group(value + at);
        memcpy(gate + at, &passed, sizeof passed);
    }
}
