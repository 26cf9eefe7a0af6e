/* An op on the CPU and on the GPU, side by side, on equal memory. */
#ifndef TPT_CUDA_SUPPORT_H
#define TPT_CUDA_SUPPORT_H

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/ops.h"
#include "cuda/gpus.h"
#include "support/data.h"
#include "support/tolerance.h"

enum { TPT_CPU = 0, TPT_GPU, TPT_SIDES, TPT_MAX_PAIRS = 64 };

static const tp_dtype tpt_floats[3] = {TP_DTYPE_F32, TP_DTYPE_BF16, TP_DTYPE_F16};

/* The same bytes in the memory of both contexts. */
typedef struct tpt_pair {
    char *at[TPT_SIDES];
    size_t bytes;
} tpt_pair;

typedef struct tpt_sides {
    tp_ctx *ctx[TPT_SIDES];
    int pairs;
    tpt_pair pair[TPT_MAX_PAIRS]; /* freed by tpt_sides_reset */
} tpt_sides;

/* The contexts; the GPU's plugin is TPT_CUDA_PLUGIN. A simulated GPU takes a schedule by the program's name and how
 * many were opened. */
void tpt_sides_open(tpt_sides *sides);
/* The same, with the simulator's compute capability and memory as in `machine`. */
void tpt_sides_open_on(tpt_sides *sides, const gpusim_options *machine);
/* Frees all memory of a case. On a simulated GPU, nothing was reported. */
void tpt_sides_reset(tpt_sides *sides);
void tpt_sides_close(tpt_sides *sides);
/* What the simulator reported; 0 on a real GPU. */
int tpt_simulator_reports(void);

/* Memory that begins as `host`, or as bytes 0x5a where that is NULL. */
tpt_pair tpt_pair_of(tpt_sides *sides, const void *host, size_t bytes);
tpt_pair tpt_pair_array(tpt_sides *sides, const void *host, tp_dtype dtype, int64_t count);
/* New random arrays on both sides. */
tpt_pair tpt_pair_normal(tpt_sides *sides, tp_dtype dtype, int64_t count, uint64_t seed, double deviation);
tpt_pair tpt_pair_uniform(tpt_sides *sides, tp_dtype dtype, int64_t count, uint64_t seed, double low, double high);
/* A host copy of one side, after all that was issued; freed by free(). */
void *tpt_pair_get(tpt_sides *sides, const tpt_pair *pair, int side);

/* Both sides have the same bits, or both a NaN, in all of the memory: what nobody wrote is equal too. */
void tpt_pair_same(tpt_sides *sides, const char *what, const tpt_pair *pair, tp_dtype dtype);
/* They differ by at most `tolerance`, and NaN and infinities stand at the same places. */
void tpt_pair_near(tpt_sides *sides, const char *what, const tpt_pair *pair, tp_dtype dtype, double tolerance);

/* Issues on one side and asserts that it went well. */
#define TPT_ISSUE(sides, side, op, args)                                                                               \
    cr_assert_eq(op((sides)->ctx[side]->compute, args), TP_OK, "%s", tp_ctx_message((sides)->ctx[side]))

#endif
