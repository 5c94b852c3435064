/* The walk through a chunk of keys, written once for every instruction set. A file includes this after panel.h and

     QUERIES         most queries at a time
     SCORE_VECTORS   vectors of keys at a time
     VALUE_VECTORS   vectors of a value's numbers at a time */
#include "attention.h"

enum { KEYS = SCORE_VECTORS * LANES };

typedef float Eight __attribute__((vector_size(32)));
#define MIX(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)

/* Eight keys' next eight numbers, `stride` apart, become eight rows of a table whose rows hold one number of KEYS keys. */
ALWAYS_INLINE void transpose_eight(const float *from, size_t stride, float *table) {
    Eight a[8], b[8], c[8];
    EACH(at, 8) memcpy(&a[at], from + at * stride, sizeof *a);
    EACH(at, 4) {
        b[2 * at] = MIX(a[2 * at], a[2 * at + 1], 0, 8, 2, 10, 4, 12, 6, 14);
        b[2 * at + 1] = MIX(a[2 * at], a[2 * at + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    }
    EACH(at, 4) {
        const int one = at / 2 * 4 + at % 2;
        c[one] = MIX(b[one], b[one + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        c[one + 2] = MIX(b[one], b[one + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
    EACH(at, 4) {
        a[at] = MIX(c[at], c[at + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        a[at + 4] = MIX(c[at], c[at + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
    EACH(at, 8) memcpy(table + at * KEYS, &a[at], sizeof *a);
}

/* KEYS keys as floats: in place, or in `room` where they must be widened or are fewer. */
static const float *read_keys(const Segment *segment, size_t first, size_t count, float *room) {
    const size_t size = segment->size;
    if (!segment->halves && count == KEYS) return (const float *)segment->key + first * size;
    if (segment->halves)
        for (size_t at = 0; at < count * size; at += LANES)
            store_floats(room + at, load_halves((const uint8_t *)segment->key + 2 * (first * size + at)));
    else memcpy(room, (const float *)segment->key + first * size, count * size * sizeof *room);
    memset(room + count * size, 0, (KEYS - count) * size * sizeof *room);
    return room;
}

/* Memory is kept busy while there is something to compute: values are fetched while the keys of their chunk are read,
   a part with each of the steps of a transposition, and the next chunk's keys while the values are read. */
ALWAYS_INLINE void fetch_values(const Segment *segment, size_t key, size_t step) {
    const size_t width = segment->halves ? 2 : 4;
    const char *from = (const char *)segment->value + (key * segment->size + step * 64) * width;
    for (size_t line = 0; line < width; line++) __builtin_prefetch(from + 64 * line, 0, 2);
}

ALWAYS_INLINE void fetch_next_keys(const Segment *segment, size_t key, size_t number, const int count) {
    const size_t width = segment->halves ? 2 : 4;
    const char *from = (const char *)segment->key + (CHUNK * (segment->size + number) + key * count) * width;
    for (size_t line = 0; line < count * width; line += 64) __builtin_prefetch(from + line, 0, 2);
}

ALWAYS_INLINE void score(const int queries, const Segment *segment, size_t query, const float *table, size_t key) {
    const size_t size = segment->size;
    const float *from = segment->queries + query * size;
    Floats sums[QUERIES][SCORE_VECTORS];
    EACH(at, queries)
        EACH(v, SCORE_VECTORS) sums[at][v] = floats_of(0);
    for (size_t number = 0; number < size; number++) {
        Floats keys[SCORE_VECTORS];
        EACH(v, SCORE_VECTORS) keys[v] = load_floats((const uint8_t *)(table + number * KEYS + v * LANES));
        EACH(at, queries) {
            const Floats own = floats_of(from[at * size + number]);
            EACH(v, SCORE_VECTORS) sums[at][v] = times_plus(keys[v], own, sums[at][v]);
        }
    }
    EACH(at, queries)
        EACH(v, SCORE_VECTORS) store_floats(segment->scores + (query + at) * CHUNK + key + v * LANES, sums[at][v]);
}

ALWAYS_INLINE void weigh(const int queries, const int vectors, const bool halves, const Segment *segment, size_t query,
                         size_t number) {
    const size_t size = segment->size, end = segment->end[query];
    const float *weights = segment->scores + query * CHUNK;
    Floats sums[QUERIES][VALUE_VECTORS];
    EACH(at, queries)
        EACH(v, vectors) sums[at][v] = floats_of(0);
    for (size_t key = segment->first[query]; key < end; key++) {
        const uint8_t *from = (const uint8_t *)segment->value + (key * size + number) * (halves ? 2 : 4);
        if (query == 0) fetch_next_keys(segment, key, number, vectors * LANES);
        Floats values[VALUE_VECTORS];
        EACH(v, vectors) values[v] = halves ? load_halves(from + 2 * v * LANES) : load_floats(from + 4 * v * LANES);
        EACH(at, queries) {
            const Floats weight = floats_of(weights[at * CHUNK + key]);
            EACH(v, vectors) sums[at][v] = times_plus(values[v], weight, sums[at][v]);
        }
    }
    EACH(at, queries)
        EACH(v, vectors) store_floats(segment->out + (query + at) * size + number + v * LANES, sums[at][v]);
}

/* All numbers of the results; a head of an odd multiple of 16 ends in a narrower step. */
ALWAYS_INLINE void weigh_all(const int queries, const bool halves, const Segment *segment, size_t query) {
    size_t number = 0;
    for (; number + VALUE_VECTORS * LANES <= segment->size; number += VALUE_VECTORS * LANES)
        weigh(queries, VALUE_VECTORS, halves, segment, query, number);
    for (; number < segment->size; number += LANES) weigh(queries, 1, halves, segment, query, number);
}

#define FOR_QUERIES(count)                                                                             \
    static void score_##count(const Segment *segment, size_t query, const float *table, size_t key) {  \
        score(count, segment, query, table, key);                                                      \
    }                                                                                                  \
    static void weigh_##count(const Segment *segment, size_t query) {                                  \
        if (segment->halves) weigh_all(count, true, segment, query);                                   \
        else weigh_all(count, false, segment, query);                                                  \
    }

FOR_QUERIES(1)
FOR_QUERIES(2)
FOR_QUERIES(3)
FOR_QUERIES(4)
FOR_QUERIES(5)
FOR_QUERIES(6)
#if QUERIES > 6
FOR_QUERIES(7)
FOR_QUERIES(8)
#endif

static void (*const scores[QUERIES])(const Segment *, size_t, const float *, size_t) = {
    score_1, score_2, score_3, score_4, score_5, score_6,
#if QUERIES > 6
    score_7, score_8,
#endif
};

static void (*const weighs[QUERIES])(const Segment *, size_t) = {
    weigh_1, weigh_2, weigh_3, weigh_4, weigh_5, weigh_6,
#if QUERIES > 6
    weigh_7, weigh_8,
#endif
};

/* How many of `left` queries come next, so that all steps are about equal. */
static size_t next_step(size_t left) {
    size_t steps = (left + QUERIES - 1) / QUERIES;
    return (left + steps - 1) / steps;
}

/* cap * tanh(x / cap) */
ALWAYS_INLINE GroupOfFloats cap_softly(GroupOfFloats x, float cap) {
    const GroupOfInts sign = (GroupOfInts)x & (int32_t)0x80000000;
    const GroupOfFloats magnitude = (GroupOfFloats)((GroupOfInts)x & 0x7fffffff) / cap;
    const GroupOfFloats small = exponential(magnitude * -2.0f);
    const GroupOfFloats bent = (1.0f - small) / (1.0f + small) * cap;
    return (GroupOfFloats)((GroupOfInts)bent | sign);
}

ALWAYS_INLINE GroupOfFloats largest(GroupOfFloats a, GroupOfFloats b) { return choose(b > a, b, a); }

/* Scores become weights; peak and sum of one query. */
static void soften(const Segment *segment, size_t query) {
    const GroupOfInts lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const int32_t first = segment->first[query], end = segment->end[query];
    const size_t begin = (size_t)first / GROUP * GROUP;
    const GroupOfFloats zero = {0}, lowest = zero - (float)INFINITY;
    float *scores_of = segment->scores + query * CHUNK;
    GroupOfFloats peak = lowest, sum = zero;
    for (size_t at = begin; at < (size_t)end; at += GROUP) {
        GroupOfFloats score = load_group(scores_of + at);
        if (segment->softcap > 0) score = cap_softly(score, segment->softcap);
        const GroupOfInts key = lanes + (int32_t)at;
        score = choose((key >= first) & (key < end), score, lowest);
        peak = largest(peak, score);
        memcpy(scores_of + at, &score, sizeof score);
    }
    COMBINE(largest, peak);
    const float top = peak[0];
    for (size_t at = begin; at < (size_t)end; at += GROUP) {
        const GroupOfInts key = lanes + (int32_t)at;
        const GroupOfFloats weight = exponential(load_group(scores_of + at) - top);
        const GroupOfFloats own = choose((key >= first) & (key < end), weight, zero);
        sum += own;
        memcpy(scores_of + at, &own, sizeof own);
    }
    segment->peaks[query] = top;
    COMBINE(SUM_OF, sum);
    segment->sums[query] = sum[0];
}

static void score_keys(const Segment *segment, size_t key) {
    _Alignas(64) float table[LARGEST_HEAD * KEYS], room[LARGEST_HEAD * KEYS];
    const size_t left = segment->keys - key, count = left < KEYS ? left : KEYS;
    const float *rows = read_keys(segment, key, count, room);
    size_t steps = 0;
    for (size_t number = 0; number < segment->size; number += 8)
        for (size_t at = 0; at < KEYS; at += 8) {
            fetch_values(segment, key, steps++);
            transpose_eight(rows + at * segment->size + number, segment->size, table + number * KEYS + at);
        }
    for (size_t query = 0, step; query < segment->count; query += step) {
        step = next_step(segment->count - query);
        bool is_seen = false;
        for (size_t at = query; at < query + step; at++) is_seen |= segment->end[at] > key;
        if (is_seen) scores[step - 1](segment, query, table, key);
    }
}

/* Queries that see the same keys, a step at a time. */
static void weigh_values(const Segment *segment) {
    for (size_t query = 0, alike; query < segment->count; query += alike) {
        for (alike = 1; query + alike < segment->count; alike++)
            if (segment->first[query + alike] != segment->first[query] ||
                segment->end[query + alike] != segment->end[query])
                break;
        if (segment->first[query] >= segment->end[query]) continue;
        for (size_t at = query, step; at < query + alike; at += step) {
            step = next_step(query + alike - at);
            weighs[step - 1](segment, at);
        }
    }
}

static void attend(const Segment *segment) {
    for (size_t key = 0; key < segment->keys; key += KEYS) score_keys(segment, key);
    for (size_t query = 0; query < segment->count; query++)
        if (segment->first[query] < segment->end[query]) soften(segment, query);
        else segment->sums[query] = 0;
    weigh_values(segment);
}

/* Adds query `at` of a segment to what has been seen before it. */
static void merge(Attended *seen, const Segment *segment, size_t at) {
    if (segment->sums[at] == 0) return;
    const float top = segment->peaks[at] > seen->peak ? segment->peaks[at] : seen->peak;
    const GroupOfFloats difference = {seen->peak - top, segment->peaks[at] - top};
    const GroupOfFloats factors = exponential(difference);
    const float before = factors[0], now = factors[1], *out = segment->out + at * segment->size;
    for (size_t number = 0; number < segment->size; number += GROUP) {
        const GroupOfFloats both = load_group(seen->out + number) * before + load_group(out + number) * now;
        memcpy(seen->out + number, &both, sizeof both);
    }
    seen->sum = seen->sum * before + segment->sums[at] * now;
    seen->peak = top;
}
