/* AVX-VNNI: dot products of four bytes in eight lanes. */
#include "x86_256.h"

#define ROWS 4
#define VECTORS(rows) ((rows) == 1 ? 4 : 2)
#define VECTORS_MOST 4

/* At one and two rows each result has two sums, since a dot product must wait for the one before it. */
ALWAYS_INLINE void add_products(const int rows, const int vectors, const int bits, const size_t slices,
                                const uint8_t *weights, const int32_t *levels, const float *totals,
                                Ints sums[][VECTORS_MOST]) {
    (void)totals;
    const bool doubled = rows <= 2;
    Ints more[ROWS][VECTORS_MOST];
    EACH(row, rows)
        EACH(v, vectors) more[row][v] = _mm256_setzero_si256();
    const size_t step = bits == 4 ? 1 : 2;
    for (size_t slice = 0; slice < slices; slice += step, weights += step * SLICE_BYTES, levels += 2 * rows) {
        fetch_slice_ahead(weights, vectors);
        if (bits == 8) fetch_slice_ahead(weights + SLICE_BYTES, vectors);
        EACH(v, vectors) {
            const Ints stored = load_weights(weights + 32 * v);
            const Ints first = bits == 4 ? low_halves(stored) : stored;
            const Ints second = bits == 4 ? high_halves(stored) : load_weights(weights + SLICE_BYTES + 32 * v);
            EACH(row, rows) {
                const Ints a = _mm256_set1_epi32(levels[row]), b = _mm256_set1_epi32(levels[rows + row]);
                sums[row][v] = _mm256_dpbusd_avx_epi32(sums[row][v], first, a);
                if (doubled) more[row][v] = _mm256_dpbusd_avx_epi32(more[row][v], second, b);
                else sums[row][v] = _mm256_dpbusd_avx_epi32(sums[row][v], second, b);
            }
        }
    }
    if (doubled)
        EACH(row, rows)
            EACH(v, vectors) sums[row][v] = _mm256_add_epi32(sums[row][v], more[row][v]);
}

#include "panel.h"

#define QUERIES 6
#define SCORE_VECTORS 2
#define VALUE_VECTORS 2
#include "attend.h"

const InstructionSet avxvnni_set = {"avxvnni", has_avxvnni, ROWS, round_row, multiply, pass_gate, attend, merge};
