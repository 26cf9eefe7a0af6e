/* GEMM on the CPU: blocking, threads and the walk over tiles.
 *
 * A part is a range of rows and columns that one worker does alone. It takes a block of its rows of A and walks the
 * tiles, columns outermost, so that one panel of B stays in L2 while the panels of A pass by. Along the first column A
 * is packed, a group of panels just before they are used, while the kernel asks for the rows of the next group. A panel
 * of B that was not packed beforehand is packed just before it is used first; if B is the smaller operand its panels
 * are kept for further blocks of rows, else there is one large block. A tile runs the whole inner dimension at once;
 * only very long ones are cut into chunks, between which the unfinished chain and tree of a tile wait in memory. No cut
 * changes a bit. */
#include "cpu/gemm_fetch.h"
#include "cpu/simd.h"

#include <string.h>

/* Packed rows of A: a block when B is packed or kept, and the whole part when panels of B are packed once, used and
 * forgotten. */
#define BLOCK_BYTES ((int64_t)1 << 20)
#define BLOCK_LEAST_PANELS (144 / TPI_GEMM_ROWS)
#define PART_BYTES ((int64_t)12 << 20)
/* Most of B that is kept packed. */
#define KEPT_BYTES ((int64_t)12 << 20)
/* Longest chunk of the inner dimension: a panel of B must leave room in L2. */
#define CHUNK_STEPS 4096
/* Of a C from here on, results that are not read soon go past the caches. */
#define STREAMED_BYTES ((size_t)1 << 20)
/* Columns whose unfinished tiles wait between chunks. */
#define WINDOW_PANELS (1024 / TPI_GEMM_COLS)

typedef struct gemm_job {
    tp_ctx *ctx;
    const tpi_gemm_args *args;
    tpi_gemm_plan plan;
    int64_t chunk_steps;
    bool chunked;
    bool direct;  /* whole tiles go straight to C */
    bool streaming; /* and past the caches, in which there is nothing of C then */
    bool packing; /* B is packed here */
    bool keeping; /* and all of a part's panels are kept */
    int64_t row_panels, row_parts, block_panels;
    int64_t col_panels, col_parts;
    int64_t panel_stride;   /* of packed A, and of its widened copies behind, if the kernel wants them */
    int64_t a_wide_at;      /* in a panel */
    int64_t packed_first, packed_steps; /* of panels of B packed beforehand: where this product's begin, how many there
                                         * are */
    int64_t b_at, b_wide_at, state_at; /* where a worker's memory holds panels of B, a widened one, and unfinished
                                        * tiles, in floats */
    int state_tiles;        /* tiles of memory that one unfinished tile takes */
} gemm_job;

/* A block of rows of one part, over one window of columns and one chunk; in panels. */
typedef struct gemm_block {
    const gemm_job *job;
    bool first; /* of its part */
    int64_t row_begin, row_end;
    int64_t col_begin, col_end;
    tpi_gemm_chunk chunk;
    float *a, *b, *b_wide, *state; /* this worker's memory */
} gemm_block;

/* Where the chunk's steps of one panel of B are, or will be packed to. */
static float *panel_address(const gemm_block *block, int64_t panel)
{
    const gemm_job *job = block->job;
    if (!job->packing)
        return (float *)job->args->b_packed->data +
               (panel * job->packed_steps + job->packed_first + block->chunk.first_step) * TPI_GEMM_COLS;
    return block->b + (job->keeping ? (panel - block->col_begin) * job->chunk_steps * TPI_GEMM_COLS : 0);
}

static bool packs_panel(const gemm_block *block)
{
    return block->job->packing && (block->first || !block->job->keeping);
}

/* ---- tiles ---- */

/* The tile of C that the chain starts from, zeros where C ends. */
static void load_tile(const tpi_gemm_args *args, int64_t row, int64_t col, int rows, int cols, float *tile)
{
    const float *c = (const float *)args->c + row * args->c_stride + col;
    memset(tile, 0, TPI_GEMM_TILE * sizeof *tile);
    for (int r = 0; r < rows; r++)
        memcpy(tile + r * TPI_GEMM_COLS, c + r * args->c_stride, (size_t)cols * sizeof *tile);
}

/* Tiles of a column that ask for the next column's panel of B. */
#define FETCH_TILES 32

/* A share of the next column's B: of the packed panel, or of the rows that it will be packed from. */
static void fetch_next_panel(tpi_gemm_fetch_list *list, const gemm_block *block, int64_t row_panel, int64_t panel)
{
    const gemm_job *job = block->job;
    const tpi_operand *b = &job->args->b;
    const int64_t tiles = tpi_least(block->row_end - block->row_begin, FETCH_TILES),
                  share = tiles - (block->row_end - row_panel);
    if (panel >= block->col_end || share < 0)
        return;
    if (!packs_panel(block)) {
        const int64_t rows = block->chunk.steps * TPI_GEMM_COLS * (int64_t)sizeof(float) / TPI_GEMM_PAIR_BYTES;
        const int64_t begin = rows * share / tiles, end = rows * (share + 1) / tiles;
        tpi_gemm_fetch_rows(list, (const char *)panel_address(block, panel) + begin * TPI_GEMM_PAIR_BYTES,
                            TPI_GEMM_PAIR_BYTES, TPI_GEMM_PAIR_BYTES, end - begin, false);
    } else if (b->outer_stride == 1) {
        const int64_t size = (int64_t)tp_dtype_size(b->dtype), first = block->chunk.first_step * job->plan.per_step;
        const int64_t rows = tpi_least(block->chunk.steps * job->plan.per_step, job->args->inner - first);
        const int64_t begin = rows * share / tiles, end = rows * (share + 1) / tiles;
        const char *data = tpi_element(b->data, b->dtype, (first + begin) * b->inner_stride + panel * TPI_GEMM_COLS);
        tpi_gemm_fetch_rows(list, data, b->inner_stride * size, TPI_GEMM_COLS * size, end - begin, false);
    }
}

/* A share of the rows that are packed a group later. */
static void fetch_next_rows(tpi_gemm_fetch_list *list, const gemm_block *block, int64_t row_panel)
{
    const gemm_job *job = block->job;
    const tpi_operand *a = &job->args->a;
    const int64_t size = (int64_t)tp_dtype_size(a->dtype), first = block->chunk.first_step * job->plan.per_step;
    const int64_t inner = tpi_least(block->chunk.steps * job->plan.per_step, job->args->inner - first);
    const int64_t share = (row_panel - block->row_begin) % TPI_GEMM_GROUP;
    if (a->inner_stride == 1) {
        const int64_t row = (row_panel + TPI_GEMM_GROUP) * TPI_GEMM_ROWS,
                      end = tpi_least(block->row_end * TPI_GEMM_ROWS, job->args->rows);
        for (int64_t r = row; r < row + TPI_GEMM_ROWS && r < end; r++)
            tpi_gemm_fetch_rows(list, tpi_element(a->data, a->dtype, r * a->outer_stride + first), TPI_GEMM_PAIR_BYTES,
                                TPI_GEMM_PAIR_BYTES, (inner * size + TPI_GEMM_PAIR_BYTES - 1) / TPI_GEMM_PAIR_BYTES,
                                false);
    } else if (row_panel - share + TPI_GEMM_GROUP < block->row_end) {
        const int64_t row = (row_panel - share + TPI_GEMM_GROUP) * TPI_GEMM_ROWS,
                      bytes = TPI_GEMM_GROUP * TPI_GEMM_ROWS * size;
        const int64_t begin = inner * share / TPI_GEMM_GROUP, end = inner * (share + 1) / TPI_GEMM_GROUP;
        const char *data = tpi_element(a->data, a->dtype, row + (first + begin) * a->inner_stride);
        for (int64_t at = 0; at < bytes; at += 2 * TPI_GEMM_PAIR_BYTES)
            tpi_gemm_fetch_rows(list, data + at, a->inner_stride * size, bytes - at, end - begin, false);
    }
}

/* C of the next tile is read when its kernel begins, written when it ends. */
static void choose_fetches(tpi_gemm_fetch_list *list, const gemm_block *block, int64_t row_panel, int64_t col_panel,
                           bool whole)
{
    const tpi_gemm_args *args = block->job->args;
    const int64_t row = row_panel * TPI_GEMM_ROWS, col = col_panel * TPI_GEMM_COLS;
    list->count = 0;
    if (whole && !block->job->streaming && row_panel + 1 < block->row_end)
        tpi_gemm_fetch_tile(list, args->c, TP_DTYPE_F32, args->c_stride, (const int64_t[2]){row + TPI_GEMM_ROWS, col});
    if (!whole && block->chunk.last)
        tpi_gemm_fetch_epilogue(list, args, (const int64_t[2]){row, col});
    if (TPI_GEMM_FETCH_IN_STEPS && col_panel == block->col_begin)
        fetch_next_rows(list, block, row_panel);
    if (TPI_GEMM_FETCH_IN_STEPS)
        fetch_next_panel(list, block, row_panel, col_panel + 1);
    tpi_gemm_fetch_end(list);
}

static void multiply_tile(const gemm_block *block, int64_t row_panel, int64_t col_panel, const float *b)
{
    const gemm_job *job = block->job;
    const tpi_gemm_args *args = job->args;
    const int64_t row = row_panel * TPI_GEMM_ROWS, col = col_panel * TPI_GEMM_COLS;
    const int rows = (int)tpi_least(args->rows - row, TPI_GEMM_ROWS),
              cols = (int)tpi_least(args->cols - col, TPI_GEMM_COLS);
    const bool whole = job->direct && rows == TPI_GEMM_ROWS && cols == TPI_GEMM_COLS;
    float levels[TPI_GEMM_LEVELS * TPI_GEMM_TILE] __attribute__((aligned(64)));
    float root[TPI_GEMM_TILE] __attribute__((aligned(64)));
    float *c = whole ? (float *)args->c + row * args->c_stride + col : root;
    const int64_t c_stride = whole ? args->c_stride : TPI_GEMM_COLS;
    float *state = NULL;
    if (job->chunked) {
        int64_t index =
            (col_panel - block->col_begin) * (block->row_end - block->row_begin) + row_panel - block->row_begin;
        state = block->state + index * job->state_tiles * TPI_GEMM_TILE;
    }

    tpi_gemm_tile tile = {.chunk = &block->chunk,
                          .blocks = job->plan.blocks,
                          .dot = job->plan.format == TPI_GEMM_BF16_PAIRS,
                          .narrow = job->plan.format != TPI_GEMM_F32,
                          .streaming = whole && job->streaming && block->chunk.last,
                          .a = block->a + (row_panel - block->row_begin) * job->panel_stride + job->a_wide_at,
                          .b = b,
                          .levels = job->chunked ? state + TPI_GEMM_TILE : levels,
                          .out = block->chunk.last ? c : state,
                          .out_stride = block->chunk.last ? c_stride : TPI_GEMM_COLS};
    if (!block->chunk.first) {
        tile.in = state;
        tile.in_stride = TPI_GEMM_COLS;
    } else if (args->accumulate) {
        tile.in = c;
        tile.in_stride = c_stride;
        if (!whole)
            load_tile(args, row, col, rows, cols, root);
    }
    tpi_gemm_fetch_list list;
    if (!TPI_GEMM_WIDENS) { /* that kernel asks for nothing */
        choose_fetches(&list, block, row_panel, col_panel, whole);
        tile.fetch = list.fetch;
    }

    if (job->plan.flush)
        CPU(gemm_kernel_flushed)(&tile, rows);
    else
        CPU(gemm_kernel)(&tile, rows);
    if (block->chunk.last && !whole)
        CPU(gemm_epilogue)(args, root, row, col, rows, cols);
}

/* ---- parts ---- */

/* Packs a group of panels of A. */
static void pack_rows(const gemm_block *block, int64_t row_panel)
{
    const gemm_job *job = block->job;
    const tpi_gemm_args *args = job->args;
    const int64_t first = row_panel * TPI_GEMM_ROWS,
                  end = tpi_least(row_panel + TPI_GEMM_GROUP, block->row_end) * TPI_GEMM_ROWS;
    const tpi_gemm_pack_job pack = {.plan = &job->plan,
                                    .operand = &args->a,
                                    .first = first,
                                    .count = tpi_least(end, args->rows) - first,
                                    .width = TPI_GEMM_ROWS,
                                    .first_step = block->chunk.first_step,
                                    .steps = block->chunk.steps,
                                    .out = block->a + (row_panel - block->row_begin) * job->panel_stride,
                                    .panel_stride = job->panel_stride};
    CPU(gemm_pack_panels)(&pack);
    if (TPI_GEMM_WIDENS) {
        for (float *panel = pack.out; panel < pack.out + (end - first) / TPI_GEMM_ROWS * job->panel_stride;
             panel += job->panel_stride)
            CPU(gemm_widen)(&job->plan, panel, TPI_GEMM_ROWS, block->chunk.steps, panel + job->a_wide_at);
    }
    if (args->row_sums != NULL && block->col_begin == 0)
        CPU(gemm_row_sums)(&pack, args->inner, args->row_sums + first);
}

/* The chunk's steps of one panel of B. */
static const float *b_panel(const gemm_block *block, int64_t panel)
{
    const gemm_job *job = block->job;
    const tpi_gemm_args *args = job->args;
    const int64_t first = panel * TPI_GEMM_COLS;
    float *out = panel_address(block, panel);
    if (!packs_panel(block))
        return out;
    const tpi_gemm_pack_job pack = {.plan = &job->plan,
                                    .operand = &args->b,
                                    .first = first,
                                    .count = tpi_least(args->cols - first, TPI_GEMM_COLS),
                                    .width = TPI_GEMM_COLS,
                                    .first_step = block->chunk.first_step,
                                    .steps = block->chunk.steps,
                                    .out = out};
    CPU(gemm_pack_panels)(&pack);
    return out;
}

static void multiply_block(const gemm_block *block)
{
    for (int64_t c = block->col_begin; c < block->col_end; c++) {
        const float *b = b_panel(block, c);
        if (TPI_GEMM_WIDENS) {
            CPU(gemm_widen)(&block->job->plan, b, TPI_GEMM_COLS, block->chunk.steps, block->b_wide);
            b = block->b_wide;
        }
        for (int64_t r = block->row_begin; r < block->row_end; r++) {
            if (c == block->col_begin && (r - block->row_begin) % TPI_GEMM_GROUP == 0)
                pack_rows(block, r);
            multiply_tile(block, r, c, b);
        }
    }
}

/* The part's columns in windows, whose unfinished tiles fit in memory. */
static void multiply_in_chunks(gemm_block *block)
{
    const gemm_job *job = block->job;
    const int64_t col_end = block->col_end;
    for (; block->col_begin < col_end; block->col_begin = block->col_end) {
        block->col_end = tpi_least(block->col_begin + WINDOW_PANELS, col_end);
        for (int64_t step = 0; step < job->plan.steps; step += job->chunk_steps) {
            CPU(gemm_chunk_make)(&job->plan, step, job->chunk_steps, &block->chunk);
            multiply_block(block);
        }
    }
}

static void multiply_in_blocks(gemm_block *block)
{
    const gemm_job *job = block->job;
    const int64_t begin = block->row_begin, panels = block->row_end - begin;
    const int64_t blocks = tpi_divide_up(panels, job->block_panels);
    CPU(gemm_chunk_make)(&job->plan, 0, job->chunk_steps, &block->chunk);
    for (int64_t i = 0; i < blocks; i++) {
        block->first = i == 0;
        block->row_begin = begin + panels * i / blocks;
        block->row_end = begin + panels * (i + 1) / blocks;
        multiply_block(block);
    }
}

static void multiply_part(void *arg, int64_t part, int worker)
{
    const gemm_job *job = arg;
    const int64_t row_part = part / job->col_parts, col_part = part % job->col_parts;
    float *memory = tpi_cpu_workspace(job->ctx, worker);
    gemm_block block = {.job = job,
                        .row_begin = job->row_panels * row_part / job->row_parts,
                        .row_end = job->row_panels * (row_part + 1) / job->row_parts,
                        .col_begin = job->col_panels * col_part / job->col_parts,
                        .col_end = job->col_panels * (col_part + 1) / job->col_parts,
                        .a = memory,
                        .b = memory + job->b_at,
                        .b_wide = memory + job->b_wide_at,
                        .state = memory + job->state_at};
    if (job->chunked)
        multiply_in_chunks(&block);
    else
        multiply_in_blocks(&block);
#if TPI_ISA_LEVEL >= 1
    if (job->streaming)
        _mm_sfence();
#endif
}

/* ---- the call ---- */

/* Cuts rows and columns into parts such that the workers finish together. Costs in eighths of a tile: packing a panel
 * of A takes about one, packing one of B 24, and fetching a packed one 4. */
static void choose_parts(gemm_job *job, int64_t fewest)
{
    const int workers = tpi_cpu_workers(job->ctx);
    const int64_t b_cost = job->packing ? 24 : 4;
    int64_t best = INT64_MAX;
    for (int64_t row_parts = fewest; row_parts < fewest + workers && row_parts <= job->row_panels; row_parts++) {
        for (int64_t col_parts = 1; col_parts <= workers && col_parts <= job->col_panels; col_parts++) {
            int64_t rows = tpi_divide_up(job->row_panels, row_parts), cols = tpi_divide_up(job->col_panels, col_parts);
            int64_t cost = tpi_divide_up(row_parts * col_parts, workers) * (8 * rows * cols + rows + b_cost * cols);
            if (cost >= best)
                continue;
            best = cost;
            job->row_parts = row_parts;
            job->col_parts = col_parts;
        }
    }
}

/* Panels that were packed for a longer inner dimension have more steps. */
static void find_packed(gemm_job *job)
{
    const tpi_packed *packed = job->args->b_packed;
    job->packed_steps = job->plan.steps;
    if (packed == NULL || packed->inner == 0)
        return;
    tpi_gemm_plan whole;
    CPU(gemm_plan_make)(&whole, job->args->a.dtype, packed->inner, NULL);
    job->packed_steps = whole.steps;
    job->packed_first = packed->first / whole.per_step;
}

/* Decides what is packed when, and the sizes of parts and blocks. */
static void choose_blocks(gemm_job *job)
{
    const int64_t chunks = tpi_divide_up(job->plan.steps, CHUNK_STEPS);
    job->chunk_steps = tpi_divide_up(job->plan.steps, chunks);
    job->chunked = chunks > 1;
    /* Panels start on different lines of L1 whatever their length. */
    job->panel_stride = tpi_divide_up(job->chunk_steps * TPI_GEMM_ROWS, 16) * 16 + 16;
    job->a_wide_at = TPI_GEMM_WIDENS ? job->panel_stride : 0;
    job->panel_stride += tpi_gemm_widened(TPI_GEMM_ROWS, job->chunk_steps);
    const int64_t panel_bytes = job->panel_stride * (int64_t)sizeof(float), a_bytes = job->row_panels * panel_bytes;
    const int64_t b_bytes = job->col_panels * job->chunk_steps * TPI_GEMM_COLS * (int64_t)sizeof(float);
    job->packing = job->args->b_packed == NULL;
    job->keeping = job->packing && !job->chunked && b_bytes < a_bytes && b_bytes <= KEPT_BYTES;
    if (job->chunked || (job->packing && !job->keeping)) {
        choose_parts(job, tpi_divide_up(a_bytes, PART_BYTES));
        job->block_panels = tpi_divide_up(job->row_panels, job->row_parts);
    } else {
        choose_parts(job, 1);
        int64_t panels = BLOCK_BYTES / panel_bytes;
        panels = panels < BLOCK_LEAST_PANELS ? BLOCK_LEAST_PANELS : panels;
        job->block_panels = tpi_least(panels, tpi_divide_up(job->row_panels, job->row_parts));
    }
}

/* Lays out the workers' memory: packed A, packed B, unfinished tiles. */
static tp_status reserve(gemm_job *job)
{
    int64_t floats = job->block_panels * job->panel_stride;
    job->b_at = floats;
    if (job->packing)
        floats +=
            (job->keeping ? tpi_divide_up(job->col_panels, job->col_parts) : 1) * job->chunk_steps * TPI_GEMM_COLS;
    job->b_wide_at = floats;
    floats += tpi_gemm_widened(TPI_GEMM_COLS, job->chunk_steps);
    job->state_at = floats;
    job->state_tiles = job->plan.blocks > 1 ? 1 + TPI_GEMM_LEVELS : 1;
    if (job->chunked)
        floats += job->block_panels * WINDOW_PANELS * job->state_tiles * TPI_GEMM_TILE;
    return tpi_cpu_reserve(job->ctx, (size_t)floats * sizeof(float));
}

/* Lines that are written past the caches are not read first, and leave in the caches what the next product needs. */
static bool streams(const gemm_job *job)
{
    const tpi_gemm_args *args = job->args;
    const size_t line = 64, floats = line / sizeof(float);
    return args->past_caches && job->direct && !args->accumulate && (uintptr_t)args->c % line == 0 &&
           (size_t)args->c_stride % floats == 0 &&
           (size_t)args->rows * (size_t)args->cols * sizeof(float) >= STREAMED_BYTES;
}

/* One row's sum where there are no columns, so that nothing is packed. */
static void sum_row(void *arg, int64_t row, int worker)
{
    const tpi_gemm_args *args = arg;
    const tpi_operand *a = &args->a;
    float sum = args->row_sums[row];
    (void)worker;
    for (int64_t k = 0; k < args->inner; k++) {
        const void *element = tpi_element(a->data, a->dtype, row * a->outer_stride + k * a->inner_stride);
        float first[TPI_LANES] __attribute__((aligned(64)));
        vf_store(first, vf_load_any(element, a->dtype, 1));
        sum += first[0];
    }
    args->row_sums[row] = sum;
}

tp_status CPU(gemm)(tp_ctx *ctx, const void *task)
{
    const tpi_gemm_args *args = task;
    if (args->cols == 0 && args->row_sums != NULL) {
        tpi_gemm_args copy = *args;
        tpi_cpu_parallel(ctx, args->rows, sum_row, &copy);
        return TP_OK;
    }
    if (args->rows == 0 || args->cols == 0 || (args->accumulate && args->inner == 0))
        return TP_OK;
    gemm_job job = {.ctx = ctx,
                    .args = args,
                    .direct = CPU(gemm_epilogue_empty)(args),
                    .row_panels = tpi_divide_up(args->rows, TPI_GEMM_ROWS),
                    .col_panels = tpi_divide_up(args->cols, TPI_GEMM_COLS)};
    job.streaming = streams(&job);
    CPU(gemm_plan_make)(&job.plan, args->a.dtype, args->inner, args->order);
    find_packed(&job);
    choose_blocks(&job);
    TPI_TRY(reserve(&job));
    tpi_cpu_parallel(ctx, job.row_parts * job.col_parts, multiply_part, &job);
    return TP_OK;
}
