/* AVX-512 with VNNI: dot products of four bytes in sixteen lanes. */
#include "x86.h"

#define LANES 16
#define ROWS 8
#define VECTORS(rows) 2
#define VECTORS_MOST 2

typedef __m512i Ints;
typedef __m512 Floats;

ALWAYS_INLINE Ints ints_of(int32_t value) { return _mm512_set1_epi32(value); }
ALWAYS_INLINE Floats floats_of(float value) { return _mm512_set1_ps(value); }
ALWAYS_INLINE Floats to_floats(Ints value) { return _mm512_cvtepi32_ps(value); }
ALWAYS_INLINE Floats times(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
ALWAYS_INLINE Floats times_plus(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
ALWAYS_INLINE Floats load_floats(const uint8_t *from) { return _mm512_loadu_ps(from); }
ALWAYS_INLINE Floats load_halves(const uint8_t *from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
}
ALWAYS_INLINE Floats load_bytes(const uint8_t *from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)from)));
}
ALWAYS_INLINE Floats load_signed_bytes(const uint8_t *from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from)));
}
ALWAYS_INLINE void store_floats(float *to, Floats value) { _mm512_storeu_ps(to, value); }

/* At one and two rows each result has two sums, since a dot product must wait for the one before it. */
ALWAYS_INLINE void add_products(const int rows, const int vectors, const int bits, const size_t slices,
                                const uint8_t *weights, const int32_t *levels, const float *totals,
                                Ints sums[][VECTORS_MOST]) {
    (void)totals;
    const Ints low_half = _mm512_set1_epi8(15);
    const bool doubled = rows <= 2;
    Ints more[ROWS][VECTORS_MOST];
    EACH(row, rows)
        EACH(v, vectors) more[row][v] = _mm512_setzero_si512();
    const size_t step = bits == 4 ? 1 : 2;
    for (size_t slice = 0; slice < slices; slice += step, weights += step * SLICE_BYTES, levels += 2 * rows) {
        Ints first[VECTORS_MOST], second[VECTORS_MOST];
        EACH(v, vectors) {
            first[v] = _mm512_loadu_si512(weights + 64 * v);
            fetch_ahead(weights + 64 * v);
            if (bits == 4) {
                second[v] = _mm512_and_si512(_mm512_srli_epi16(first[v], 4), low_half);
                first[v] = _mm512_and_si512(first[v], low_half);
            } else {
                second[v] = _mm512_loadu_si512(weights + SLICE_BYTES + 64 * v);
                fetch_ahead(weights + SLICE_BYTES + 64 * v);
            }
        }
        EACH(row, rows) {
            const Ints a = _mm512_set1_epi32(levels[row]), b = _mm512_set1_epi32(levels[rows + row]);
            EACH(v, vectors) sums[row][v] = _mm512_dpbusd_epi32(sums[row][v], first[v], a);
            EACH(v, vectors) {
                if (doubled) more[row][v] = _mm512_dpbusd_epi32(more[row][v], second[v], b);
                else sums[row][v] = _mm512_dpbusd_epi32(sums[row][v], second[v], b);
            }
        }
    }
    if (doubled)
        EACH(row, rows)
            EACH(v, vectors) sums[row][v] = _mm512_add_epi32(sums[row][v], more[row][v]);
}

#include "panel.h"

#define QUERIES 8
#define SCORE_VECTORS 2
#define VALUE_VECTORS 2
#include "attend.h"

const InstructionSet avx512vnni_set = {"avx512vnni", has_avx512vnni, ROWS, round_row, multiply, pass_gate, attend, merge};
