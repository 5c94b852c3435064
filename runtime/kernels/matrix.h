/* A product of float rows with a matrix of 4- or 8-bit weights: layout, arithmetic, and what an instruction set brings.

   Arithmetic, the same on every processor, bit for bit:
     A block is `block` consecutive inputs of one column; it has a scale s and a zero point z: weight = (w - z) * s.
     Each row is rounded by itself, each block of it by its own largest magnitude: a = rint(x * 127 / peak), int8,
     with the scale p = peak / 127. Then for each block, in order, and for each column:
         n = sum of a * w                      exact, in 32 bits
         n = n - z * (sum of a)                exact for whole z; one fused multiply-add where z is a float
         y = fma(float(n), s * p, y)
     With a gate, the first half of the columns are gates of the second: y = silu(y of the gate) * y.
     Nothing depends on other rows, on the number of threads or on the width of a vector.

   Layout of the weights: PANEL columns side by side, and one stream of memory for each such panel:
         block 0: slices, numbers;  block 1: ...
     Numbers are PANEL scales and, if there are any, PANEL zero points, filled up to whole lines of 64 bytes. (Numbers in
     a stream of their own made a pass of one row a sixth slower.)
     With a gate, the panel that gates and the panel that is gated take turns.
     A slice holds one 32-bit lane for each column: four 8-bit weights of consecutive inputs, or eight 4-bit ones:
     byte j of a lane has input 8i+j in its low half and input 8i+4+j in its high half. So a slice needs no shuffle,
     and the activations of four inputs are one 32-bit value that is broadcast.
     Numbers take as few bytes as all of the matrix's survive in: floats four, halves two. A zero point takes one where
     it counts whole levels or, with 4 bits, sixteenths; a scale where it is a multiple, up to 127, of a unit of its
     column. The units are floats of 16 significant bits, so that the product is exact; they follow the numbers.

   Layout of rounded rows: a tile of R rows holds [inputs / 4][R] lanes of four int8, and [blocks][R] numbers. */
#ifndef SPECDEC_MATRIX_H
#define SPECDEC_MATRIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PANEL = 32, SLICE_BYTES = 4 * PANEL, LARGEST_BLOCK = 256, MOST_ROWS = 8 };

typedef enum { NUMBER_NONE, NUMBER_FLOAT, NUMBER_HALF, NUMBER_PACKED } NumberKind;

/* As MatMulNBits stores it: weights [columns][blocks][block * bits / 8], scales and zero points [columns][blocks];
   packed zero points are `bits` wide, each column starting on a byte. */
typedef struct {
    size_t columns, inner, bits, block;
    const uint8_t *weights;
    const void *scales;
    NumberKind scale_kind;
    const void *zeros;
    NumberKind zero_kind;
    bool gated; /* the first half of the columns gates the second */
} Stored;

typedef struct {
    size_t columns, inner, bits, block;
    size_t blocks, panels, slices; /* slices of one block */
    size_t scale_bytes, zero_bytes; /* of one; zero_bytes is 0 where the middle of the range is the zero point */
    size_t block_bytes, units_at, panel_bytes, bytes;
    size_t strips, strip_panels; /* a strip is PANEL columns of the output */
    uint8_t *data;
} Matrix;

/* How many parts of a level a zero point in a byte counts. */
static inline int zero_parts(size_t bits) { return bits == 4 ? 16 : 1; }

/* A tile of rounded rows. */
typedef struct {
    size_t count;
    int32_t *levels; /* [inputs / 4][count], four int8 in each */
    float *scales;   /* [blocks][count] */
    float *totals;   /* [blocks][count]: the sums of a block's levels */
    int32_t *starts; /* [blocks][count]: what the integer sums begin with: the zero point's share if all have one */
} Tile;

typedef struct Segment Segment;   /* see attention.h */
typedef struct Attended Attended;

typedef struct {
    const char *name;
    bool (*usable)(void);
    size_t most_rows; /* of a tile */
    /* Rounds blocks [first, end) of a row of `matrix->inner` floats or halves into row `at` of a tile. */
    void (*round_row)(const Matrix *matrix, const void *row, bool is_half, size_t first, size_t end, Tile *tile,
                      size_t at);
    /* The products of a tile with one panel: [count][PANEL]. */
    void (*multiply)(const Matrix *matrix, size_t panel, const Tile *tile, float *out);
    /* PANEL products that gate as many others: silu(gate) * value, written over `gate`. */
    void (*pass_gate)(float *gate, const float *value);
    /* Attention of some queries over the next chunk of a span of keys; adding a span's result to those before it. */
    void (*attend)(const Segment *segment);
    void (*merge)(Attended *seen, const Segment *segment, size_t query);
} InstructionSet;

/* Sizes of the matrix, without its data; false when they make no sense. */
bool describe_matrix(const Stored *stored, Matrix *matrix);
/* Fills `matrix->data`, which has room for `matrix->bytes` and is aligned to 64 bytes. */
void pack_matrix(const Stored *stored, Matrix *matrix);

/* Columns of the output: half of the matrix's with a gate. */
static inline size_t output_columns(const Matrix *matrix) { return matrix->columns / matrix->strip_panels; }

/* How `rows` are cut into tiles: equal ones, up to one row. */
size_t count_tiles(const InstructionSet *set, size_t rows);
size_t tile_start(const InstructionSet *set, size_t rows, size_t tile);
size_t scratch_bytes(const Matrix *matrix, size_t rows);
/* The place of a tile in the scratch memory of all rows. */
Tile place_tile(const Matrix *matrix, const InstructionSet *set, size_t rows, size_t tile, void *scratch);

/* Round blocks [first, end) of one tile of `input` [rows][inner]; multiply one strip with all tiles into `output`
   [rows][output_columns]. */
void round_tile(const Matrix *matrix, const InstructionSet *set, size_t rows, size_t tile, size_t first, size_t end,
                const void *input, bool is_half, void *scratch);
void multiply_strip(const Matrix *matrix, const InstructionSet *set, size_t rows, size_t strip, void *scratch,
                    const void *bias, void *output, bool is_half);

/* The instruction sets this library was built with, best first, NULL at the end; the portable one is the last. */
extern const InstructionSet *const instruction_sets[];
const InstructionSet *find_instruction_set(const char *name);
/* The best one that this processor has; NULL where only the portable one would be left. */
const InstructionSet *best_instruction_set(void);

/* Memory for weights: large, aligned, in huge pages where the system gives them. */
void *take_memory(size_t bytes);
void release_memory(void *memory);
/* Lets go of resident pages that can be read from their file again, such as weights that have been repacked. */
void forget_file_pages(const void *memory, size_t bytes);

/* A loop over rows or vectors, whose count is a constant: unrolled, or what it indexes could not live in registers. */
#if defined(__clang__)
#define EACH(at, count) _Pragma("clang loop unroll(full)") for (int at = 0; at < (count); at++)
#else
#define EACH(at, count) _Pragma("GCC unroll 16") for (int at = 0; at < (count); at++)
#endif

/* exp(x) is 2 to the power of LOG2_E * x. */
#define LOG2_E 0x1.715476p0f

static inline float half_to_float(uint16_t half) {
    union {
        uint32_t bits;
        float value;
    } all = {(uint32_t)(half & 0x7fff) << 13};
    all.value *= 0x1p112f; /* exponents of halves start elsewhere; small ones become normal here */
    if ((half & 0x7c00) == 0x7c00) all.bits |= 0x7f800000;
    all.bits |= (uint32_t)(half & 0x8000) << 16;
    return all.value;
}

/* To nearest, ties to even. */
static inline uint16_t float_to_half(float value) {
    union {
        float value;
        uint32_t bits;
    } all = {value};
    uint32_t sign = (all.bits >> 16) & 0x8000, bits = all.bits & 0x7fffffff;
    if (bits > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (bits >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    if (bits < 0x38800000) { /* small ones: let the addition round at the last bit of a small half */
        all.bits = bits;
        all.value += 0.5f;
        return (uint16_t)(sign | (all.bits - 0x3f000000));
    }
    return (uint16_t)(sign | ((bits - 0x38000000 + 0xfff + ((bits >> 13) & 1)) >> 13));
}

#endif
