/* NEON with 8-bit matrix products (ARMv8.6): two rows by two columns over eight inputs in one instruction.

   The lanes of activations 2i and 2i + 1 lie in different vectors of weights; zipped, they are eight consecutive inputs
   of two columns each. A row without a partner takes the plain dot product. */
#include "neon.h"

#define ROWS 8
#define VECTORS(rows) ((rows) <= 2 ? 4 : 2)
#define VECTORS_MOST 4

/* Eight inputs of rows `row` and `row + 1`. */
ALWAYS_INLINE int8x16_t two_rows(const int rows, const int32_t *levels, int row) {
    const int32x2_t even = vld1_s32(levels + row), odd = vld1_s32(levels + rows + row);
    return vreinterpretq_s8_s32(vcombine_s32(vzip1_s32(even, odd), vzip2_s32(even, odd)));
}

/* Squares of two rows by two columns become four columns of each row, added to what the sums began with. */
ALWAYS_INLINE void add_squares(Ints left, Ints right, Ints *upper, Ints *lower) {
    *upper = vaddq_s32(*upper, vcombine_s32(vget_low_s32(left), vget_low_s32(right)));
    *lower = vaddq_s32(*lower, vcombine_s32(vget_high_s32(left), vget_high_s32(right)));
}

ALWAYS_INLINE void add_products(const int rows, const int vectors, const int bits, const size_t slices,
                                const uint8_t *weights, const int32_t *levels, const float *totals,
                                Ints sums[][VECTORS_MOST]) {
    const size_t step = bits == 4 ? 1 : 2;
    const int pairs = rows / 2, last = rows - 1;
    Ints left[ROWS / 2][VECTORS_MOST], right[ROWS / 2][VECTORS_MOST];
    EACH(pair, pairs)
        EACH(v, vectors) left[pair][v] = right[pair][v] = vdupq_n_s32(0);
    for (size_t slice = 0; slice < slices; slice += step, weights += step * SLICE_BYTES, levels += 2 * rows) {
        fetch_slice_ahead(weights, vectors);
        EACH(v, vectors) {
            int8x16_t first, second;
            load_signed(bits, weights + 16 * v, &first, &second);
            const int32x4_t even = vreinterpretq_s32_s8(first), odd = vreinterpretq_s32_s8(second);
            const int8x16_t columns_0_1 = vreinterpretq_s8_s32(vzip1q_s32(even, odd));
            const int8x16_t columns_2_3 = vreinterpretq_s8_s32(vzip2q_s32(even, odd));
            EACH(pair, pairs) {
                const int8x16_t two = two_rows(rows, levels, 2 * pair);
                left[pair][v] = vmmlaq_s32(left[pair][v], two, columns_0_1);
                right[pair][v] = vmmlaq_s32(right[pair][v], two, columns_2_3);
            }
            if (rows % 2 == 1) {
                sums[last][v] = vdotq_s32(sums[last][v], first, levels_of(levels[last]));
                sums[last][v] = vdotq_s32(sums[last][v], second, levels_of(levels[rows + last]));
            }
        }
    }
    EACH(v, vectors) {
        EACH(pair, pairs)
            add_squares(left[pair][v], right[pair][v], &sums[2 * pair][v], &sums[2 * pair + 1][v]);
        EACH(row, rows) sums[row][v] = restore_offset(bits, sums[row][v], totals[row]);
    }
}

#include "panel.h"

#define QUERIES 6
#define SCORE_VECTORS 4
#define VALUE_VECTORS 4
#include "attend.h"

const InstructionSet neon_i8mm_set = {"neon-i8mm", has_i8mm, ROWS, round_row, multiply, pass_gate, attend, merge};
