/* Cutting element-wise work on [rows, cols] into parts for tpi_cpu_parallel: some whole rows, or a slice of one row. */
#ifndef TPI_CPU_TILES_H
#define TPI_CPU_TILES_H

#include <stdint.h>

#define TPI_TILE_ELEMENTS 8192 /* a few microseconds of work; a multiple of 64 */

typedef struct tpi_tiles {
    int64_t rows, cols, row_step, col_step, col_parts, parts;
} tpi_tiles;

typedef struct tpi_tile {
    int64_t row, row_end, col, col_end;
} tpi_tile;

static inline tpi_tiles tpi_tiles_of(int64_t rows, int64_t cols)
{
    tpi_tiles tiles = {rows, cols, 1, cols, 1, 0};

    if (rows <= 0 || cols <= 0)
        return tiles;
    if (cols > TPI_TILE_ELEMENTS) {
        tiles.col_step = TPI_TILE_ELEMENTS;
        tiles.col_parts = (cols - 1) / TPI_TILE_ELEMENTS + 1;
    } else {
        tiles.row_step = TPI_TILE_ELEMENTS / cols;
    }
    tiles.parts = ((rows - 1) / tiles.row_step + 1) * tiles.col_parts;
    return tiles;
}

static inline tpi_tile tpi_tile_at(const tpi_tiles *tiles, int64_t part)
{
    tpi_tile tile;

    tile.row = part / tiles->col_parts * tiles->row_step;
    tile.row_end = tile.row + tiles->row_step < tiles->rows ? tile.row + tiles->row_step : tiles->rows;
    tile.col = part % tiles->col_parts * tiles->col_step;
    tile.col_end = tile.col + tiles->col_step < tiles->cols ? tile.col + tiles->col_step : tiles->cols;
    return tile;
}

#endif
