/* Repacking a stored matrix, and cutting a product into tiles of rows and panels of columns. */
#include "matrix.h"

#include <math.h>
#include <string.h>

#pragma STDC FP_CONTRACT OFF

/* The most units of its column that a scale in a byte counts. */
#define MOST_UNITS 127

static float number_at(const void *numbers, NumberKind kind, size_t at) {
    return kind == NUMBER_HALF ? half_to_float(((const uint16_t *)numbers)[at]) : ((const float *)numbers)[at];
}

static float zero_at(const Stored *stored, size_t blocks, size_t column, size_t block) {
    const uint8_t *packed = stored->zeros;
    if (stored->zero_kind != NUMBER_PACKED) return number_at(stored->zeros, stored->zero_kind, column * blocks + block);
    if (stored->bits == 8) return packed[column * blocks + block];
    return (packed[column * ((blocks + 1) / 2) + block / 2] >> (4 * (block % 2))) & 15;
}

static bool survive_as_halves(const void *numbers, NumberKind kind, size_t count) {
    const float *floats = kind == NUMBER_FLOAT ? numbers : NULL;
    for (size_t at = 0; floats && at < count; at++) {
        float back = half_to_float(float_to_half(floats[at]));
        if (memcmp(&back, &floats[at], sizeof back) != 0) return false;
    }
    return true;
}

static bool zeros_survive_as_bytes(const Stored *stored, size_t count) {
    if (stored->zero_kind == NUMBER_PACKED) return true;
    for (size_t at = 0; at < count; at++) {
        float parts = number_at(stored->zeros, stored->zero_kind, at) * (float)zero_parts(stored->bits);
        if (!(parts >= 0 && parts <= 255 && parts == (float)(uint8_t)parts)) return false;
    }
    return true;
}

static float unit_of(const Stored *stored, size_t blocks, size_t column) {
    float peak = 0;
    for (size_t block = 0; block < blocks; block++)
        peak = fmaxf(peak, fabsf(number_at(stored->scales, stored->scale_kind, column * blocks + block)));
    return peak / MOST_UNITS;
}

static float count_units(float scale, float unit) { return unit == 0 ? 0 : scale / unit; }

static bool column_counts_units(const Stored *stored, size_t blocks, size_t column) {
    const float unit = unit_of(stored, blocks, column);
    uint32_t bits;
    memcpy(&bits, &unit, sizeof bits);
    if (bits & 0xff) return false;
    for (size_t block = 0; block < blocks; block++) {
        const float scale = number_at(stored->scales, stored->scale_kind, column * blocks + block);
        const float units = count_units(scale, unit);
        if (!(fabsf(units) <= MOST_UNITS && units == (float)(int8_t)units && units * unit == scale)) return false;
    }
    return true;
}

static bool scales_count_units(const Stored *stored, size_t blocks) {
    for (size_t column = 0; column < stored->columns; column++)
        if (!column_counts_units(stored, blocks, column)) return false;
    return true;
}

static size_t bytes_of_scale(const Stored *stored, size_t blocks) {
    if (scales_count_units(stored, blocks)) return 1;
    return survive_as_halves(stored->scales, stored->scale_kind, stored->columns * blocks) ? 2 : 4;
}

static size_t bytes_of_zero(const Stored *stored, size_t count) {
    if (stored->zero_kind == NUMBER_NONE) return 0;
    if (zeros_survive_as_bytes(stored, count)) return 1;
    return survive_as_halves(stored->zeros, stored->zero_kind, count) ? 2 : 4;
}

static size_t whole_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

bool describe_matrix(const Stored *stored, Matrix *matrix) {
    bool known_block = stored->block >= 16 && stored->block <= LARGEST_BLOCK && !(stored->block & (stored->block - 1));
    bool known_bits = stored->bits == 4 || stored->bits == 8;
    if (!known_block || !known_bits || stored->columns == 0 || stored->inner == 0) return false;
    if (stored->gated && stored->columns % (2 * PANEL)) return false;
    *matrix = (Matrix){stored->columns, stored->inner, stored->bits, stored->block};
    matrix->blocks = (stored->inner + stored->block - 1) / stored->block;
    matrix->panels = (stored->columns + PANEL - 1) / PANEL;
    matrix->slices = stored->block * stored->bits / 32;
    matrix->scale_bytes = bytes_of_scale(stored, matrix->blocks);
    matrix->zero_bytes = bytes_of_zero(stored, matrix->columns * matrix->blocks);
    matrix->block_bytes = matrix->slices * SLICE_BYTES + whole_lines(PANEL * (matrix->scale_bytes + matrix->zero_bytes));
    matrix->units_at = matrix->blocks * matrix->block_bytes;
    matrix->panel_bytes = matrix->units_at + (matrix->scale_bytes == 1 ? PANEL * sizeof(float) : 0);
    matrix->bytes = matrix->panels * matrix->panel_bytes;
    matrix->strip_panels = stored->gated ? 2 : 1;
    matrix->strips = matrix->panels / matrix->strip_panels;
    return true;
}

/* Eight 4-bit weights in the order of their inputs become a lane: see the layout. */
static uint32_t lane_of_nibbles(uint32_t inputs) {
    uint32_t low = inputs & 0xffff, high = inputs >> 16;
    low = (low | low << 8) & 0x00ff00ff;
    high = (high | high << 8) & 0x00ff00ff;
    low = (low | low << 4) & 0x0f0f0f0f;
    high = (high | high << 4) & 0x0f0f0f0f;
    return low | high << 4;
}

/* One slice: the same four bytes of PANEL columns that lie `stride` apart. */
static void pack_slice(const uint8_t *from, size_t stride, size_t filled, size_t bits, uint8_t *to) {
    uint32_t lanes[PANEL] = {0};
    for (size_t column = 0; column < filled; column++) memcpy(&lanes[column], from + column * stride, 4);
    if (bits == 4)
        for (size_t column = 0; column < PANEL; column++) lanes[column] = lane_of_nibbles(lanes[column]);
    memcpy(to, lanes, sizeof lanes);
}

static void pack_slices(const Stored *stored, const Matrix *matrix, size_t first, size_t block, uint8_t *to) {
    size_t column_bytes = matrix->slices * 4, stride = matrix->blocks * column_bytes;
    size_t filled = matrix->columns - first < PANEL ? matrix->columns - first : PANEL;
    const uint8_t *from = stored->weights + first * stride + block * column_bytes;
    for (size_t slice = 0; slice < matrix->slices; slice++)
        pack_slice(from + 4 * slice, stride, filled, stored->bits, to + slice * SLICE_BYTES);
}

static void put_number(size_t bytes, uint8_t *numbers, size_t at, float value) {
    uint16_t half = float_to_half(value);
    if (bytes == 1) numbers[at] = (uint8_t)(int)value;
    else if (bytes == 2) memcpy(numbers + 2 * at, &half, 2);
    else memcpy(numbers + 4 * at, &value, 4);
}

/* The scales of one column, and its unit. */
static void pack_scales(const Stored *stored, const Matrix *matrix, size_t column, uint8_t *numbers, uint8_t *units) {
    const size_t bytes = matrix->scale_bytes, at = column % PANEL;
    const float unit = bytes == 1 ? unit_of(stored, matrix->blocks, column) : 1;
    if (bytes == 1) put_number(sizeof unit, units, at, unit);
    for (size_t block = 0; block < matrix->blocks; block++, numbers += matrix->block_bytes) {
        const float scale = number_at(stored->scales, stored->scale_kind, column * matrix->blocks + block);
        put_number(bytes, numbers, at, bytes == 1 ? count_units(scale, unit) : scale);
    }
}

static void pack_zeros(const Stored *stored, const Matrix *matrix, size_t column, uint8_t *numbers) {
    const float parts = matrix->zero_bytes == 1 ? (float)zero_parts(matrix->bits) : 1;
    uint8_t *to = numbers + PANEL * matrix->scale_bytes;
    for (size_t block = 0; matrix->zero_bytes && block < matrix->blocks; block++, to += matrix->block_bytes)
        put_number(matrix->zero_bytes, to, column % PANEL, parts * zero_at(stored, matrix->blocks, column, block));
}

/* The first of a panel's columns. */
static size_t first_column(const Matrix *matrix, size_t panel) {
    const size_t half = panel % matrix->strip_panels, strip = panel / matrix->strip_panels;
    return half * output_columns(matrix) + strip * PANEL;
}

static void pack_panel(const Stored *stored, const Matrix *matrix, size_t panel) {
    const size_t first = first_column(matrix, panel), left = matrix->columns - first, filled = left < PANEL ? left : PANEL;
    const size_t slices = matrix->slices * SLICE_BYTES;
    uint8_t *to = matrix->data + panel * matrix->panel_bytes, *numbers = to + slices;
    for (size_t block = 0; block < matrix->blocks; block++) {
        pack_slices(stored, matrix, first, block, to + block * matrix->block_bytes);
        memset(numbers + block * matrix->block_bytes, 0, matrix->block_bytes - slices);
    }
    memset(to + matrix->units_at, 0, matrix->panel_bytes - matrix->units_at);
    for (size_t column = first; column < first + filled; column++) {
        pack_scales(stored, matrix, column, numbers, to + matrix->units_at);
        pack_zeros(stored, matrix, column, numbers);
    }
}

void pack_matrix(const Stored *stored, Matrix *matrix) {
    for (size_t panel = 0; panel < matrix->panels; panel++) pack_panel(stored, matrix, panel);
}

size_t count_tiles(const InstructionSet *set, size_t rows) { return (rows + set->most_rows - 1) / set->most_rows; }

size_t tile_start(const InstructionSet *set, size_t rows, size_t tile) {
    size_t tiles = count_tiles(set, rows), longer = rows % tiles;
    return tile * (rows / tiles) + (tile < longer ? tile : longer);
}

static size_t row_bytes(const Matrix *matrix) { return matrix->blocks * (matrix->block + 3 * sizeof(float)); }

size_t scratch_bytes(const Matrix *matrix, size_t rows) { return rows * row_bytes(matrix); }

Tile place_tile(const Matrix *matrix, const InstructionSet *set, size_t rows, size_t tile, void *scratch) {
    size_t first = tile_start(set, rows, tile), count = tile_start(set, rows, tile + 1) - first;
    size_t numbers = matrix->blocks * count;
    uint8_t *at = (uint8_t *)scratch + first * row_bytes(matrix);
    float *scales = (float *)(at + numbers * matrix->block);
    return (Tile){count, (int32_t *)at, scales, scales + numbers, (int32_t *)(scales + 2 * numbers)};
}

void round_tile(const Matrix *matrix, const InstructionSet *set, size_t rows, size_t tile, size_t first, size_t end,
                const void *input, bool is_half, void *scratch) {
    Tile place = place_tile(matrix, set, rows, tile, scratch);
    size_t top = tile_start(set, rows, tile), width = matrix->inner * (is_half ? 2 : 4);
    for (size_t row = 0; row < place.count; row++)
        set->round_row(matrix, (const uint8_t *)input + (top + row) * width, is_half, first, end, &place, row);
}

static void add_bias(float *products, const void *bias, size_t first, size_t count, bool is_half) {
    for (size_t at = 0; bias && at < count; at++)
        products[at] += number_at(bias, is_half ? NUMBER_HALF : NUMBER_FLOAT, first + at);
}

static void write_row(const float *values, void *output, size_t first, size_t count, bool is_half) {
    if (!is_half) memcpy((float *)output + first, values, count * sizeof *values);
    for (size_t at = 0; is_half && at < count; at++) ((uint16_t *)output)[first + at] = float_to_half(values[at]);
}

void multiply_strip(const Matrix *matrix, const InstructionSet *set, size_t rows, size_t strip, void *scratch,
                    const void *bias, void *output, bool is_half) {
    _Alignas(64) float products[2][MOST_ROWS * PANEL];
    const size_t first = strip * PANEL, columns = output_columns(matrix), left = columns - first;
    const size_t count = left < PANEL ? left : PANEL, panels = matrix->strip_panels;
    for (size_t tile = 0, tiles = count_tiles(set, rows); tile < tiles; tile++) {
        Tile place = place_tile(matrix, set, rows, tile, scratch);
        for (size_t panel = 0; panel < panels; panel++)
            set->multiply(matrix, strip * panels + panel, &place, products[panel]);
        const size_t row = tile_start(set, rows, tile);
        for (size_t at = 0; at < place.count; at++) {
            float *values = products[0] + at * PANEL, *gated = products[1] + at * PANEL;
            add_bias(values, bias, first, count, is_half);
            if (panels == 2) {
                add_bias(gated, bias, columns + first, count, is_half);
                set->pass_gate(values, gated);
            }
            write_row(values, output, (row + at) * columns + first, count, is_half);
        }
    }
}
