/* NEON with dot products (ARMv8.2): four bytes in four lanes. */
#include "neon.h"

#define ROWS 6
#define VECTORS(rows) ((rows) <= 2 ? 4 : 2)
#define VECTORS_MOST 4

ALWAYS_INLINE void add_products(const int rows, const int vectors, const int bits, const size_t slices,
                                const uint8_t *weights, const int32_t *levels, const float *totals,
                                Ints sums[][VECTORS_MOST]) {
    const size_t step = bits == 4 ? 1 : 2;
    for (size_t slice = 0; slice < slices; slice += step, weights += step * SLICE_BYTES, levels += 2 * rows) {
        fetch_slice_ahead(weights, vectors);
        EACH(v, vectors) {
            int8x16_t first, second;
            load_signed(bits, weights + 16 * v, &first, &second);
            EACH(row, rows) {
                sums[row][v] = vdotq_s32(sums[row][v], first, levels_of(levels[row]));
                sums[row][v] = vdotq_s32(sums[row][v], second, levels_of(levels[rows + row]));
            }
        }
    }
    EACH(row, rows)
        EACH(v, vectors) sums[row][v] = restore_offset(bits, sums[row][v], totals[row]);
}

#include "panel.h"

#define QUERIES 6
#define SCORE_VECTORS 4
#define VALUE_VECTORS 4
#include "attend.h"

const InstructionSet neon_set = {"neon", has_neon, ROWS, round_row, multiply, pass_gate, attend, merge};
