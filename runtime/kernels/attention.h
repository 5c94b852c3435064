/* Attention over the cached keys and values of one head: arithmetic, and what an instruction set brings.

   Arithmetic, the same on every processor, bit for bit. The keys of a text are cut into chunks of CHUNK at fixed
   positions. For each query (a row of one head, scaled) and each chunk that it sees:
         score[key] = fma over the head's numbers, in order; then the soft cap
         peak       = largest score;  weight[key] = exp(score[key] - peak)
         sum        = 16 sums of the weights of keys 16i + lane, added as a tree
         out        = fma over the keys, in order, of weight[key] * value[key]
   and the chunks are merged in order: scaled to the larger of both peaks and added. So a query's result depends on
   its own keys only: not on other rows of the pass, on how a text is cut into passes, or on threads and vectors. */
#ifndef SPECDEC_ATTENTION_H
#define SPECDEC_ATTENTION_H

#include "matrix.h"

enum { CHUNK = 128, HEAD_UNIT = 16, LARGEST_HEAD = 256 };

/* Queries of one head of the cache, and the chunk of keys that they see. */
struct Segment {
    size_t size;                /* numbers of a head: a multiple of HEAD_UNIT */
    size_t keys;                /* of the chunk, as far as any query sees */
    size_t count;               /* queries */
    const float *queries;       /* [count][size] */
    const uint16_t *first, *end; /* [count]: a query sees the keys [first, end) of the chunk, maybe none */
    const void *key, *value;    /* [keys][size], floats or halves */
    bool halves;
    float softcap;              /* 0: none */
    float *scores;              /* room for [count][CHUNK] */
    float *peaks, *sums, *out;  /* results: [count], [count], [count][size]; a sum of 0 means no keys */
};

/* What a query has seen so far. */
struct Attended {
    float peak, sum;
    float *out; /* [size] */
};

#endif
