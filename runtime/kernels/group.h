/* Sixteen lanes, which the compiler cuts to what the processor has, and functions of them: the same bits everywhere.
   Included where Floats, LANES and times_plus are known, see panel.h. */
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

/* a * b + c with one rounding */
ALWAYS_INLINE GroupOfFloats fused(GroupOfFloats a, GroupOfFloats b, GroupOfFloats c) {
    union {
        GroupOfFloats group;
        Floats parts[GROUP / LANES];
    } x = {a}, y = {b}, z = {c};
    EACH(at, GROUP / LANES) z.parts[at] = times_plus(x.parts[at], y.parts[at], z.parts[at]);
    return z.group;
}

/* 2 to the power of x, for x below 127; 0 where that is less than 2^-126. The polynomial is the best one of its degree
   on [-1/2, 1/2]: its relative error is below 1e-7. NaN stays NaN. */
ALWAYS_INLINE GroupOfFloats power_of_two(GroupOfFloats x) {
    const GroupOfFloats zero = {0}, shifted = x + 0x1.8p23f, rest = x - (shifted - 0x1.8p23f);
    GroupOfFloats sum = zero + 1.3264727e-3f;
    sum = fused(sum, rest, zero + 9.6715130e-3f);
    sum = fused(sum, rest, zero + 5.5507336e-2f);
    sum = fused(sum, rest, zero + 2.4022242e-1f);
    sum = fused(sum, rest, zero + 6.9314700e-1f);
    sum = fused(sum, rest, zero + 1.0f);
    const GroupOfInts power = ((GroupOfInts)shifted + 127) << 23; /* the whole part is in the low bits */
    return choose(x < -126.0f, zero, sum * (GroupOfFloats)power);
}

#endif
