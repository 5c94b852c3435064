/* AVX2, without VNNI: products of bytes are added in pairs, in 16 bits that saturate.

   A pair of 4-bit weights with int8 activations is at most 2 * 15 * 127 = 3,810 in magnitude, so eight such pairs fit
   16 bits: the products of 32 inputs are added there and then widened. An 8-bit weight is two 4-bit ones: the sums over
   the high halves are kept apart and count sixteenfold when they are widened. */
#include "x86_256.h"

#define ROWS 8
#define VECTORS(rows) ((rows) == 1 ? 4 : (rows) <= 4 ? 2 : 1)
#define VECTORS_MOST 4

ALWAYS_INLINE Ints add_pairs(Ints sums, Ints weights, Ints levels) {
    return _mm256_add_epi16(sums, _mm256_maddubs_epi16(weights, levels));
}

ALWAYS_INLINE Ints widen(Ints pairs, int16_t factor) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(factor)); }

/* 32 inputs or, in a block of 16, half as many. */
ALWAYS_INLINE void add_group(const int rows, const int vectors, const int bits, const size_t slices,
                             const uint8_t *weights, const int32_t *levels, Ints sums[][VECTORS_MOST]) {
    Ints low[ROWS][VECTORS_MOST], high[ROWS][VECTORS_MOST];
    EACH(row, rows)
        EACH(v, vectors) low[row][v] = high[row][v] = _mm256_setzero_si256();
    for (size_t slice = 0; slice < slices; slice++, weights += SLICE_BYTES, levels += 8 / bits * rows) {
        fetch_slice_ahead(weights, vectors);
        EACH(v, vectors) {
            const Ints stored = load_weights(weights + 32 * v);
            const Ints first = low_halves(stored), second = high_halves(stored);
            EACH(row, rows) {
                const Ints a = _mm256_set1_epi32(levels[row]);
                low[row][v] = add_pairs(low[row][v], first, a);
                if (bits == 4) low[row][v] = add_pairs(low[row][v], second, _mm256_set1_epi32(levels[rows + row]));
                else high[row][v] = add_pairs(high[row][v], second, a);
            }
        }
    }
    EACH(row, rows)
        EACH(v, vectors) {
            sums[row][v] = _mm256_add_epi32(sums[row][v], widen(low[row][v], 1));
            if (bits == 8) sums[row][v] = _mm256_add_epi32(sums[row][v], widen(high[row][v], 16));
        }
}

ALWAYS_INLINE void add_products(const int rows, const int vectors, const int bits, const size_t slices,
                                const uint8_t *weights, const int32_t *levels, const float *totals,
                                Ints sums[][VECTORS_MOST]) {
    (void)totals;
    const size_t group = bits; /* slices of 32 inputs */
    if (slices < group) {
        add_group(rows, vectors, bits, group / 2, weights, levels, sums);
        return;
    }
    for (size_t slice = 0; slice < slices; slice += group, weights += group * SLICE_BYTES, levels += 8 * rows)
        add_group(rows, vectors, bits, group, weights, levels, sums);
}

#include "panel.h"

#define QUERIES 6
#define SCORE_VECTORS 2
#define VALUE_VECTORS 2
#include "attend.h"

const InstructionSet avx2_set = {"avx2", has_avx2, ROWS, round_row, multiply, pass_gate, attend, merge};
