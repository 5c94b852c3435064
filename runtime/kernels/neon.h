/* What the NEON instruction sets share: vectors of four lanes. */
#ifndef SPECDEC_NEON_H
#define SPECDEC_NEON_H

#include <arm_neon.h>
#include <string.h>

#include "matrix.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define LANES 4

bool has_neon(void);
bool has_i8mm(void);

typedef int32x4_t Ints;
typedef float32x4_t Floats;

ALWAYS_INLINE Ints ints_of(int32_t value) { return vdupq_n_s32(value); }
ALWAYS_INLINE int8x16_t levels_of(int32_t four) { return vreinterpretq_s8_s32(vdupq_n_s32(four)); }
ALWAYS_INLINE Floats floats_of(float value) { return vdupq_n_f32(value); }
ALWAYS_INLINE Floats to_floats(Ints value) { return vcvtq_f32_s32(value); }
ALWAYS_INLINE Floats times(Floats a, Floats b) { return vmulq_f32(a, b); }
ALWAYS_INLINE Floats times_plus(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
ALWAYS_INLINE Floats load_floats(const uint8_t *from) { return vreinterpretq_f32_u8(vld1q_u8(from)); }
ALWAYS_INLINE Floats load_halves(const uint8_t *from) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from))); }
ALWAYS_INLINE Floats load_bytes(const uint8_t *from) {
    uint32_t four;
    memcpy(&four, from, sizeof four);
    return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four)))));
}
ALWAYS_INLINE Floats load_signed_bytes(const uint8_t *from) {
    uint32_t four;
    memcpy(&four, from, sizeof four);
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(four)))));
}
ALWAYS_INLINE void store_floats(float *to, Floats value) { vst1q_f32(to, value); }

ALWAYS_INLINE void fetch_slice_ahead(const uint8_t *weights, int vectors) {
    for (int v = 0; v < vectors; v += 4) __builtin_prefetch(weights + 16 * v + 4096);
}

/* Two vectors of signed weights, for the lanes of activations 2i and 2i + 1. The dot products are signed on both
   sides: 4-bit weights are signed as they are, 8-bit ones have 128 taken off, which `restore_offset` puts back. */
ALWAYS_INLINE void load_signed(const int bits, const uint8_t *weights, int8x16_t *first, int8x16_t *second) {
    const uint8x16_t stored = vld1q_u8(weights);
    if (bits == 4) {
        *first = vreinterpretq_s8_u8(vandq_u8(stored, vdupq_n_u8(15)));
        *second = vreinterpretq_s8_u8(vshrq_n_u8(stored, 4));
    } else {
        const uint8x16_t top = vdupq_n_u8(128);
        *first = vreinterpretq_s8_u8(veorq_u8(stored, top));
        *second = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(weights + SLICE_BYTES), top));
    }
}

/* What the sums lack since the weights were made signed; a total is a whole number below 2^24. */
ALWAYS_INLINE Ints restore_offset(const int bits, Ints sum, float total) {
    return bits == 4 ? sum : vaddq_s32(sum, vdupq_n_s32(128 * (int32_t)total));
}

#endif
