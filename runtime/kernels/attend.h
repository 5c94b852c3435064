/* The walk through a chunk of keys, written once for every instruction set. A file includes this after panel.h and

     QUERIES         most queries at a time
     SCORE_VECTORS   vectors of keys at a time
     VALUE_VECTORS   vectors of a value's numbers at a time */
#include "attention.h"

enum { KEYS = SCORE_VECTORS * LANES };
_Static_assert(KEYS % 16 == 0, "keys are turned sixteen at a time");

/* Keys are turned: rows of a key's numbers become rows of a table that hold one number of KEYS keys. Each half of a
   vector is a square of its own: its rows, in vector after vector, are 16 bytes of a key each. To interleave vector i
   with vector i + count / 2 moves each number's place, written in binary as its row and then its column, one bit to the
   left: once that is done for each bit of the row, rows and columns have changed places. */
typedef float FourFloats __attribute__((vector_size(32)));
typedef uint16_t EightHalves __attribute__((vector_size(32)));
#define FLOATS_MIXED(a, b, at) \
    __builtin_shufflevector(a, b, at, at + 8, at + 1, at + 9, at + 4, at + 12, at + 5, at + 13)
#define HALVES_MIXED(a, b, at)                                                                                       \
    __builtin_shufflevector(a, b, at, at + 16, at + 1, at + 17, at + 2, at + 18, at + 3, at + 19, at + 8, at + 24,   \
                            at + 9, at + 25, at + 10, at + 26, at + 11, at + 27)

/* Two keys' next 16 bytes. */
ALWAYS_INLINE void load_two(void *to, const uint8_t *first, const uint8_t *second) {
    memcpy(to, first, 16);
    memcpy((uint8_t *)to + 16, second, 16);
}

/* Four numbers of eight keys, `stride` bytes apart. */
ALWAYS_INLINE void turn_floats(const uint8_t *from, size_t stride, float *table) {
    FourFloats a[4], b[4];
    EACH(at, 4) load_two(&a[at], from + at * stride, from + (at + 4) * stride);
    EACH(at, 2) b[2 * at] = FLOATS_MIXED(a[at], a[at + 2], 0), b[2 * at + 1] = FLOATS_MIXED(a[at], a[at + 2], 2);
    EACH(at, 2) a[2 * at] = FLOATS_MIXED(b[at], b[at + 2], 0), a[2 * at + 1] = FLOATS_MIXED(b[at], b[at + 2], 2);
    EACH(at, 4) memcpy(table + at * KEYS, &a[at], sizeof *a);
}

/* Eight numbers of sixteen keys, which are widened. */
ALWAYS_INLINE void turn_halves(const uint8_t *from, size_t stride, float *table) {
    EightHalves a[8], b[8];
    EACH(at, 8) load_two(&a[at], from + at * stride, from + (at + 8) * stride);
    EACH(at, 4) b[2 * at] = HALVES_MIXED(a[at], a[at + 4], 0), b[2 * at + 1] = HALVES_MIXED(a[at], a[at + 4], 4);
    EACH(at, 4) a[2 * at] = HALVES_MIXED(b[at], b[at + 4], 0), a[2 * at + 1] = HALVES_MIXED(b[at], b[at + 4], 4);
    EACH(at, 4) b[2 * at] = HALVES_MIXED(a[at], a[at + 4], 0), b[2 * at + 1] = HALVES_MIXED(a[at], a[at + 4], 4);
    EACH(at, 8)
        EACH(v, 16 / LANES)
            store_floats(table + at * KEYS + v * LANES, load_halves((const uint8_t *)&b[at] + 2 * v * LANES));
}

/* KEYS keys: in place, or in `room` if they are fewer. */
static const uint8_t *read_keys(const Segment *segment, size_t first, size_t count, size_t stride, uint8_t *room) {
    const uint8_t *from = (const uint8_t *)segment->key + first * stride;
    if (count == KEYS) return from;
    memcpy(room, from, count * stride);
    memset(room + count * stride, 0, (KEYS - count) * stride);
    return room;
}

/* Memory is kept busy while there is something to compute: the values of KEYS keys are fetched while these are scored,
   and the next chunk's keys while the values are weighed. Each step of the queries fetches its share of `all`, a little
   with each round of its loop: a processor that is asked for much at a time drops most of it. */
typedef struct {
    size_t first, count;
} Share;

ALWAYS_INLINE Share share_of(const Segment *segment, size_t query, size_t queries, size_t all) {
    const size_t first = query * all / segment->count;
    return (Share){first, (query + queries) * all / segment->count - first};
}

ALWAYS_INLINE void fetch(const void *from, size_t first, size_t bytes) {
    const uint8_t *at = (const uint8_t *)from + first;
    for (size_t line = 0; line < bytes; line += 64) __builtin_prefetch(at + line, 0, 2);
}

ALWAYS_INLINE void score(const int queries, const Segment *segment, size_t query, const float *table, size_t key) {
    const size_t size = segment->size;
    const float *from = segment->queries + query * size;
    const size_t width = segment->halves ? 2 : 4;
    const Share share = share_of(segment, query, queries, size);
    Floats sums[QUERIES][SCORE_VECTORS];
    EACH(at, queries)
        EACH(v, SCORE_VECTORS) sums[at][v] = floats_of(0);
    for (size_t number = 0; number < size; number++) {
        if (number - share.first < share.count)
            fetch(segment->value, (key * size + number * KEYS) * width, KEYS * width);
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
    const size_t width = halves ? 2 : 4, step = vectors * LANES;
    const Share share = share_of(segment, query, queries, CHUNK);
    float *out = segment->out + query * size + number;
    Floats sums[QUERIES][VALUE_VECTORS];
    EACH(at, queries) {
        const Floats factor = floats_of(segment->factors[query + at]);
        EACH(v, vectors) sums[at][v] = times(load_floats((const uint8_t *)(out + at * size + v * LANES)), factor);
    }
    for (size_t key = segment->first[query]; key < end; key++) {
        const uint8_t *from = (const uint8_t *)segment->value + (key * size + number) * width;
        if (key - share.first < share.count)
            fetch(segment->key, (CHUNK * (size + number) + key * step) * width, step * width);
        Floats values[VALUE_VECTORS];
        EACH(v, vectors) values[v] = halves ? load_halves(from + 2 * v * LANES) : load_floats(from + 4 * v * LANES);
        EACH(at, queries) {
            const Floats weight = floats_of(weights[at * CHUNK + key]);
            EACH(v, vectors) sums[at][v] = times_plus(values[v], weight, sums[at][v]);
        }
    }
    EACH(at, queries)
        EACH(v, vectors) store_floats(out + at * size + v * LANES, sums[at][v]);
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
    const GroupOfFloats small = power_of_two(magnitude * (-2 * LOG2_E));
    const GroupOfFloats bent = (1.0f - small) / (1.0f + small) * cap;
    return (GroupOfFloats)((GroupOfInts)bent | sign);
}

static void cap_scores(const Segment *segment, float *scores_of, size_t begin, size_t end) {
    for (size_t at = begin; at < end; at += GROUP) {
        const GroupOfFloats score = cap_softly(load_group(scores_of + at), segment->softcap);
        memcpy(scores_of + at, &score, sizeof score);
    }
}

ALWAYS_INLINE GroupOfFloats largest(GroupOfFloats a, GroupOfFloats b) { return choose(b > a, b, a); }

/* Scores become weights; what one query has seen before is to be scaled to its new peak. */
static void soften(const Segment *segment, size_t query) {
    const size_t first = segment->first[query], end = segment->end[query];
    const size_t begin = first / GROUP * GROUP, stop = (end + GROUP - 1) / GROUP * GROUP;
    const GroupOfFloats zero = {0};
    float *scores_of = segment->scores + query * CHUNK;
    if (segment->softcap > 0) cap_scores(segment, scores_of, begin, stop);
    for (size_t at = begin; at < first; at++) scores_of[at] = -INFINITY;
    for (size_t at = end; at < stop; at++) scores_of[at] = -INFINITY;
    GroupOfFloats peak = load_group(scores_of + begin), sum = zero;
    for (size_t at = begin + GROUP; at < stop; at += GROUP) peak = largest(peak, load_group(scores_of + at));
    COMBINE(largest, peak);
    const float now = peak[0] * LOG2_E, before = segment->peaks[query], top = now > before ? now : before;
    for (size_t at = begin; at < stop; at += GROUP) {
        const GroupOfFloats score = load_group(scores_of + at);
        const GroupOfFloats weight = power_of_two(fused(score, zero + LOG2_E, zero - top));
        sum += weight;
        memcpy(scores_of + at, &weight, sizeof weight);
    }
    const GroupOfFloats factor = power_of_two(zero + (before - top));
    COMBINE(SUM_OF, sum);
    segment->peaks[query] = top;
    segment->factors[query] = factor[0];
    segment->sums[query] = segment->sums[query] * factor[0] + sum[0];
}

static void turn_keys(const Segment *segment, size_t key, float *table) {
    _Alignas(64) uint8_t room[LARGEST_HEAD * KEYS * sizeof *table];
    const size_t left = segment->keys - key, count = left < KEYS ? left : KEYS;
    const size_t width = segment->halves ? 2 : 4, stride = segment->size * width;
    const uint8_t *rows = read_keys(segment, key, count, stride, room);
    for (size_t number = 0; number < segment->size; number += 16 / width)
        for (size_t at = 0; at < KEYS; at += 32 / width) {
            const uint8_t *from = rows + at * stride + number * width;
            if (segment->halves) turn_halves(from, stride, table + number * KEYS + at);
            else turn_floats(from, stride, table + number * KEYS + at);
        }
}

static void score_keys(const Segment *segment, size_t key) {
    _Alignas(64) float table[LARGEST_HEAD * KEYS];
    turn_keys(segment, key, table);
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
    weigh_values(segment);
}

/* Adds what query `at` of a segment has seen to what was seen before it. */
static void merge(Attended *seen, const Segment *segment, size_t at) {
    if (segment->sums[at] == 0) return;
    const float top = segment->peaks[at] > seen->peak ? segment->peaks[at] : seen->peak;
    const GroupOfFloats difference = {seen->peak - top, segment->peaks[at] - top};
    const GroupOfFloats factors = power_of_two(difference);
    const float before = factors[0], now = factors[1], *out = segment->out + at * segment->size;
    for (size_t number = 0; number < segment->size; number += GROUP) {
        const GroupOfFloats both = load_group(seen->out + number) * before + load_group(out + number) * now;
        memcpy(seen->out + number, &both, sizeof both);
    }
    seen->sum = seen->sum * before + segment->sums[at] * now;
    seen->peak = top;
}
