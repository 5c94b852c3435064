/* Sixteen lanes, which the compiler cuts to what the processor has, and functions of them: the same bits everywhere. */
#ifndef SPECDEC_GROUP_H
#define SPECDEC_GROUP_H

#include <string.h>

#pragma STDC FP_CONTRACT OFF

enum { GROUP = 16 };
typedef int32_t GroupOfInts __attribute__((vector_size(4 * GROUP)));
typedef float GroupOfFloats __attribute__((vector_size(4 * GROUP)));
typedef int8_t GroupOfBytes __attribute__((vector_size(GROUP)));

ALWAYS_INLINE GroupOfInts load_bits(const float *from) {
    GroupOfInts bits;
    memcpy(&bits, from, sizeof bits);
    return bits;
}

ALWAYS_INLINE GroupOfInts larger(GroupOfInts a, GroupOfInts b) {
    const GroupOfInts first = a > b;
    return (a & first) | (b & ~first);
}

/* The lanes that are `distance` away, so that four steps combine all sixteen. */
#define SHIFTED(group, distance)                                                                                  \
    __builtin_shufflevector(group, group, (0 + distance) % 16, (1 + distance) % 16, (2 + distance) % 16,             \
                            (3 + distance) % 16, (4 + distance) % 16, (5 + distance) % 16, (6 + distance) % 16,      \
                            (7 + distance) % 16, (8 + distance) % 16, (9 + distance) % 16, (10 + distance) % 16,     \
                            (11 + distance) % 16, (12 + distance) % 16, (13 + distance) % 16, (14 + distance) % 16,  \
                            (15 + distance) % 16)

/* Combines all lanes of `group` into each of them: sixteen with eight, four, two and one lanes away. */
#define COMBINE(combine, group)                      \
    do {                                             \
        (group) = combine(group, SHIFTED(group, 8)); \
        (group) = combine(group, SHIFTED(group, 4)); \
        (group) = combine(group, SHIFTED(group, 2)); \
        (group) = combine(group, SHIFTED(group, 1)); \
    } while (0)
#define SUM_OF(a, b) ((a) + (b))

ALWAYS_INLINE GroupOfFloats load_group(const float *from) {
    GroupOfFloats group;
    memcpy(&group, from, sizeof group);
    return group;
}

ALWAYS_INLINE GroupOfFloats choose(GroupOfInts which, GroupOfFloats yes, GroupOfFloats no) {
    return (GroupOfFloats)((which & (GroupOfInts)yes) | (~which & (GroupOfInts)no));
}

/* exp(x) for x <= 0, never below exp(-87); the polynomial is that of the Cephes library. NaN stays NaN. */
ALWAYS_INLINE GroupOfFloats exponential(GroupOfFloats x) {
    const GroupOfFloats zero = {0}, least = zero - 87.0f;
    const GroupOfFloats bounded = choose(x > least, x, least);
    const GroupOfFloats shifted = bounded * 0x1.715476p0f + 0x1.8p23f, whole = shifted - 0x1.8p23f;
    const GroupOfFloats rest = (bounded - whole * 0.693359375f) - whole * -2.12194440e-4f;
    GroupOfFloats sum = zero + 1.9875691500e-4f;
    sum = sum * rest + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * rest * rest + rest + 1.0f;
    const GroupOfInts power = (((GroupOfInts)shifted - 0x4b400000) + 127) << 23;
    return choose(x == x, sum * (GroupOfFloats)power, x);
}

#endif
