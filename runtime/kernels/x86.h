/* What the x86 instruction sets share. */
#ifndef SPECDEC_X86_H
#define SPECDEC_X86_H

#include <immintrin.h>

#include "matrix.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Whether this processor, and the system for its registers, has what a set needs. */
bool has_avx2(void);
bool has_avxvnni(void);
bool has_avx512vnni(void);

/* Weights are read once, in order: ask for those 4 KiB ahead. */
ALWAYS_INLINE void fetch_ahead(const uint8_t *weights) { _mm_prefetch((const char *)weights + 4096, _MM_HINT_T0); }

#endif
