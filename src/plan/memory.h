/* The block of memory a plan lives in. */
#ifndef TPI_PLAN_MEMORY_H
#define TPI_PLAN_MEMORY_H

#include <tp/plan.h>

/* Of all ranks together. */
typedef struct tpi_plan_size {
    size_t ops, waits, regions;
} tpi_plan_size;

typedef struct tpi_plan_block {
    tp_plan_op *op;
    tp_wait *wait;
    tp_region *region;
} tpi_plan_block;

/* A plan with room for so much, all zero; the caller spreads the block over the ranks. Freed by tp_plan_destroy. */
tp_status tpi_plan_allocate(const tpi_plan_size *size, tp_plan **out, tpi_plan_block *block);

#endif
