/* Inside the CPU GEMM: packed formats, the plan of the inner sum, and the pieces that are compiled once an instruction
 * set.
 *
 * Both operands are packed into panels of steps. A step is what one kernel instruction consumes of the inner dimension:
 * one f32 value, or a pair of bf16 values for vdpbf16ps, the earlier one in the high half, because that instruction
 * adds the high product first. A panel holds TPI_GEMM_ROWS rows of A or TPI_GEMM_COLS columns of B, step by step, and
 * ends of matrices are filled with zeros, so that edge tiles run the same code as full ones.
 *
 * bf16 arithmetic is the one of vdpbf16ps on every set: a chain of FMAs with subnormal operands and results flushed to
 * zero, in pairs (a block of odd length is padded with a product of -0, which changes no sum). Sets without the
 * instruction widen while packing and run the f32 kernel with the processor's flush modes on. The tree's additions are
 * never flushed. */
#ifndef TPI_GEMM_H
#define TPI_GEMM_H

#include "cpu/cpu.h"
#include "cpu/exact_fma.h"

/* Whether the kernel is gemm_exact.c's, which takes panels widened to double. */
#define TPI_GEMM_WIDENS (TPI_ISA_LEVEL == 0 && TPI_EXACT_FMA)

#if TPI_ISA_LEVEL >= 2
#define TPI_GEMM_ROWS 6
#define TPI_GEMM_COLS 64
#elif TPI_ISA_LEVEL == 1
#define TPI_GEMM_ROWS 6
#define TPI_GEMM_COLS 16
#elif TPI_GEMM_WIDENS
#define TPI_GEMM_ROWS TPI_EXACT_ROWS
#define TPI_GEMM_COLS TPI_EXACT_COLS
#else
#define TPI_GEMM_ROWS 4
#define TPI_GEMM_COLS 16
#endif
#define TPI_GEMM_TILE (TPI_GEMM_ROWS * TPI_GEMM_COLS)
/* Panels of A that are packed at a time: where rows lie side by side, whole lines are read then. */
#define TPI_GEMM_GROUP 16

/* Nodes of the tree that wait for their right neighbour while blocks are summed in order. */
#define TPI_GEMM_LEVELS 3
_Static_assert(TPI_MAX_BLOCKS == 1 << TPI_GEMM_LEVELS, "levels hold the tree of all blocks");

static inline int64_t tpi_divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static inline int64_t tpi_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

typedef enum tpi_gemm_format {
    TPI_GEMM_F32,
    TPI_GEMM_F16,       /* widened to f32 */
    TPI_GEMM_BF16,      /* widened to f32, blocks padded to even length */
    TPI_GEMM_BF16_PAIRS /* two a step */
} tpi_gemm_format;

/* A stretch of the packed inner dimension. Positions count inner elements, padding included. */
typedef struct tpi_gemm_run {
    int64_t position, length;
    int64_t begin; /* first inner index; -1: zeros */
} tpi_gemm_run;

/* How the inner dimension is laid out: every block has at least one step (of zeros, if it is empty). */
typedef struct tpi_gemm_plan {
    tpi_gemm_format format;
    bool flush;   /* chains run with subnormals flushed */
    int per_step; /* positions in a step */
    int64_t steps;
    int blocks;
    int64_t block_steps[TPI_MAX_BLOCKS];
    int runs; /* ascending, without gaps */
    tpi_gemm_run run[TPI_MAX_SEGMENTS + TPI_MAX_BLOCKS];
} tpi_gemm_plan;

void CPU(gemm_plan_make)(tpi_gemm_plan *plan, tp_dtype dtype, int64_t inner, const tpi_inner *order);

/* Steps that one visit of a tile adds up: the rest of the block begun before (perhaps nothing), then further blocks. */
typedef struct tpi_gemm_chunk {
    int64_t first_step, steps;
    int first_block, pieces;
    int64_t piece_steps[TPI_MAX_BLOCKS];
    bool first, last;
} tpi_gemm_chunk;

/* The chunk that starts at first_step and is at most max_steps long. */
void CPU(gemm_chunk_make)(const tpi_gemm_plan *plan, int64_t first_step, int64_t max_steps, tpi_gemm_chunk *chunk);

/* Outer indices [first, first + count) of an operand, over one chunk's steps. */
typedef struct tpi_gemm_pack_job {
    const tpi_gemm_plan *plan;
    const tpi_operand *operand;
    int64_t first, count;
    int width; /* TPI_GEMM_ROWS or TPI_GEMM_COLS */
    int64_t first_step, steps;
    float *out;
    int64_t panel_stride; /* in floats; TPI_GEMM_ROWS: room for 2 more than steps * width */
    bool streaming;       /* TPI_GEMM_COLS: the panels are not read soon, and go past the caches */
} tpi_gemm_pack_job;

void CPU(gemm_pack_panels)(const tpi_gemm_pack_job *job);

/* Steps of a panel that are looked at together for what their values allow. */
#define TPI_GEMM_STRETCH 64

/* Floats that a widened panel takes. */
static inline int64_t tpi_gemm_widened(int width, int64_t steps)
{
    const int64_t floats = 2 * (width == TPI_GEMM_ROWS ? 2 : 1) * width * steps + steps / TPI_GEMM_STRETCH / 4 + 1;
    return TPI_GEMM_WIDENS ? (floats + 15) / 16 * 16 : 0;
}

/* A packed panel of `steps` as the kernel takes it; 16-byte aligned. */
void CPU(gemm_widen)(const tpi_gemm_plan *plan, const float *panel, int width, int64_t steps, float *out);

/* sums[r] += A[r, k] for the chunk's k in order, read from packed A panels. */
void CPU(gemm_row_sums)(const tpi_gemm_pack_job *job, int64_t inner, float *sums);

/* Memory that the kernel asks for while it multiplies: two neighbouring lines a step. Narrow vectors leave no room for
 * that between the multiplications: their kernel asks for the first lines of all pairs before it begins. */
#define TPI_GEMM_FETCH_IN_STEPS (TPI_ISA_LEVEL >= 2)
typedef struct tpi_gemm_fetch {
    const char *lines;
    int64_t next[2]; /* bytes to the next two lines, in turns */
    int64_t pairs;
    bool writing; /* soon, and into L1 */
} tpi_gemm_fetch;

/* One tile of C over one chunk. */
typedef struct tpi_gemm_tile {
    const tpi_gemm_chunk *chunk;
    int blocks;
    bool dot;           /* steps are bf16 pairs */
    bool streaming;     /* the root goes past the caches: `out` is whole lines */
    bool narrow;        /* factors have 12 bits at most */
    const float *a, *b; /* panels at the chunk's first step, or widened ones of the chunk */
    const float *in;    /* the unfinished chain; NULL: +0 */
    int64_t in_stride;
    float *levels; /* [TPI_GEMM_LEVELS][TPI_GEMM_TILE] */
    float *out;    /* the unfinished chain or, after the last chunk, the root */
    int64_t out_stride;
    const tpi_gemm_fetch *fetch; /* one after the other; the last has INT64_MAX pairs, of one place */
} tpi_gemm_tile;

/* Computes the first `rows` rows, perhaps more: out has room for TPI_GEMM_ROWS, except that exactly TPI_GEMM_ROWS are
 * written when asked for. */
void CPU(gemm_kernel)(const tpi_gemm_tile *tile, int rows);

/* The same with subnormals flushed in the chains. */
void CPU(gemm_kernel_flushed)(const tpi_gemm_tile *tile, int rows);

/* Finishes and stores `rows` x `cols` of C at (row, col) from the root in `tile`, whose rows are TPI_GEMM_COLS
 * apart. */
void CPU(gemm_epilogue)(const tpi_gemm_args *args, const float *tile, int64_t row, int64_t col, int rows, int cols);

/* Whether storing the root is all there is to do. */
bool CPU(gemm_epilogue_empty)(const tpi_gemm_args *args);

#endif
