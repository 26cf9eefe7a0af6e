/* The layout of a GEMM's inner sum. */
#include "cpu/gemm.h"

static tpi_gemm_format format_of(tp_dtype dtype)
{
    if (dtype == TP_DTYPE_F16)
        return TPI_GEMM_F16;
    if (dtype != TP_DTYPE_BF16)
        return TPI_GEMM_F32;
#if TPI_ISA_LEVEL >= 3
    return TPI_GEMM_BF16_PAIRS;
#else
    return TPI_GEMM_BF16;
#endif
}

static void add_run(tpi_gemm_plan *plan, int64_t *position, int64_t begin, int64_t length)
{
    if (length == 0)
        return;
    plan->run[plan->runs++] = (tpi_gemm_run){.position = *position, .length = length, .begin = begin};
    *position += length;
}

/* Closes the block that began at `start` with the zeros it needs. */
static void end_block(tpi_gemm_plan *plan, int block, int64_t start, int64_t *position)
{
    int64_t unit = plan->format == TPI_GEMM_BF16 || plan->format == TPI_GEMM_BF16_PAIRS ? 2 : 1;
    int64_t length = *position - start;
    int64_t padded = length == 0 ? unit : (length + unit - 1) / unit * unit;
    add_run(plan, position, -1, padded - length);
    plan->block_steps[block] = padded / plan->per_step;
    plan->steps += plan->block_steps[block];
}

void CPU(gemm_plan_make)(tpi_gemm_plan *plan, tp_dtype dtype, int64_t inner, const tpi_inner *order)
{
    plan->format = format_of(dtype);
    plan->flush = plan->format == TPI_GEMM_BF16;
    plan->per_step = plan->format == TPI_GEMM_BF16_PAIRS ? 2 : 1;
    plan->steps = 0;
    plan->runs = 0;
    plan->blocks = order == NULL ? 1 : order->blocks;
    int64_t position = 0;
    int segment = 0;
    for (int block = 0; block < plan->blocks; block++) {
        int64_t start = position;
        if (order == NULL)
            add_run(plan, &position, 0, inner);
        for (; order != NULL && segment < order->segments && order->segment[segment].block == block; segment++)
            add_run(plan, &position, order->segment[segment].begin, order->segment[segment].length);
        end_block(plan, block, start, &position);
    }
}

void CPU(gemm_chunk_make)(const tpi_gemm_plan *plan, int64_t first_step, int64_t max_steps, tpi_gemm_chunk *chunk)
{
    int64_t end = plan->steps - first_step <= max_steps ? plan->steps : first_step + max_steps;
    *chunk = (tpi_gemm_chunk){
        .first_step = first_step, .steps = end - first_step, .first = first_step == 0, .last = end == plan->steps};
    int64_t block_begin = 0;
    for (int block = 0; block < plan->blocks; block++) {
        int64_t block_end = block_begin + plan->block_steps[block];
        int64_t from = block_begin > first_step ? block_begin : first_step;
        int64_t to = block_end < end ? block_end : end;
        /* A block that ends just where the chunk begins is its first piece, without steps: it still has to be put into
         * the tree. */
        bool resumed = first_step > 0 && block_end == first_step;
        if (to > from || resumed) {
            if (chunk->pieces == 0)
                chunk->first_block = block;
            chunk->piece_steps[chunk->pieces++] = to - from;
        }
        block_begin = block_end;
    }
}
