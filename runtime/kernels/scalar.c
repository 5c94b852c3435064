/* Plain C: the reference that every instruction set must equal, and the base case for a new one. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define ALWAYS_INLINE static inline
#define LANES 1
#define ROWS 4
#define VECTORS(rows) 32
#define VECTORS_MOST 32

#include "matrix.h"

typedef int32_t Ints;
typedef float Floats;

static Ints ints_of(int32_t value) { return value; }
static Floats floats_of(float value) { return value; }
static Floats to_floats(Ints value) { return (float)value; }
static Floats times(Floats a, Floats b) { return a * b; }
static Floats times_plus(Floats a, Floats b, Floats c) { return fmaf(a, b, c); }
static void store_floats(float *to, Floats value) { *to = value; }

static Floats load_floats(const uint8_t *from) {
    float value;
    memcpy(&value, from, sizeof value);
    return value;
}

static Floats load_halves(const uint8_t *from) {
    uint16_t half;
    memcpy(&half, from, sizeof half);
    return half_to_float(half);
}

static Floats load_bytes(const uint8_t *from) { return *from; }
static Floats load_signed_bytes(const uint8_t *from) { return (int8_t)*from; }

static int32_t dot(const uint8_t *weights, int shift, int mask, int32_t levels) {
    int8_t four[4];
    memcpy(four, &levels, sizeof four);
    int32_t sum = 0;
    for (int at = 0; at < 4; at++) sum += ((weights[at] >> shift) & mask) * four[at];
    return sum;
}

static void add_products(int rows, int vectors, int bits, size_t slices, const uint8_t *weights, const int32_t *levels,
                         const float *totals, Ints sums[][VECTORS_MOST]) {
    (void)totals;
    for (size_t slice = 0; slice < slices; slice++, weights += SLICE_BYTES)
        for (int half = 0; half < 8 / bits; half++, levels += rows)
            for (int row = 0; row < rows; row++)
                for (int v = 0; v < vectors; v++)
                    sums[row][v] += dot(weights + 4 * v, 4 * half, (1 << bits) - 1, levels[row]);
}

#include "panel.h"

#define QUERIES 6
#define SCORE_VECTORS 16
#define VALUE_VECTORS 16
#include "attend.h"

static bool usable(void) { return true; }

const InstructionSet scalar_set = {"scalar", usable, ROWS, round_row, multiply, pass_gate, attend, merge};
