/* Vectors of 256 bits, for both AVX2 and AVX-VNNI. */
#include "x86.h"

#define LANES 8

typedef __m256i Ints;
typedef __m256 Floats;

ALWAYS_INLINE Ints ints_of(int32_t value) { return _mm256_set1_epi32(value); }
ALWAYS_INLINE Floats floats_of(float value) { return _mm256_set1_ps(value); }
ALWAYS_INLINE Floats to_floats(Ints value) { return _mm256_cvtepi32_ps(value); }
ALWAYS_INLINE Floats times(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
ALWAYS_INLINE Floats times_plus(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
ALWAYS_INLINE Floats load_floats(const uint8_t *from) { return _mm256_loadu_ps((const float *)from); }
ALWAYS_INLINE Floats load_halves(const uint8_t *from) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
}
ALWAYS_INLINE Floats load_bytes(const uint8_t *from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)from)));
}
ALWAYS_INLINE Floats load_signed_bytes(const uint8_t *from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from)));
}
ALWAYS_INLINE void store_floats(float *to, Floats value) { _mm256_storeu_ps(to, value); }
ALWAYS_INLINE Ints load_weights(const uint8_t *from) { return _mm256_loadu_si256((const __m256i *)from); }
ALWAYS_INLINE Ints low_halves(Ints bytes) { return _mm256_and_si256(bytes, _mm256_set1_epi8(15)); }
ALWAYS_INLINE Ints high_halves(Ints bytes) { return low_halves(_mm256_srli_epi16(bytes, 4)); }

/* Fetches each line of 64 bytes once, though two vectors share it. */
ALWAYS_INLINE void fetch_slice_ahead(const uint8_t *weights, int vectors) {
    for (int v = 0; v < vectors; v += 2) fetch_ahead(weights + 32 * v);
}
