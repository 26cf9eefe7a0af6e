/* Runs an op on every instruction set of this machine with 1, 2 and 3 threads: all must give the same bits. */
#ifndef TPT_MACHINES_H
#define TPT_MACHINES_H

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/ops.h"
#include "support/data.h"
#include "support/tolerance.h"

static const tp_dtype machine_floats[3] = {TP_DTYPE_F32, TP_DTYPE_BF16, TP_DTYPE_F16};

typedef struct machines {
    int count;
    tp_ctx *ctx[12];
} machines;

/* Contexts for all of them; the first is the portable one with one thread. */
static inline machines machines_open(void)
{
    machines all = {0};

    for (tp_isa isa = TP_ISA_PORTABLE; isa <= TP_ISA_AVX512_BF16; isa++) {
        for (int threads = 1; threads <= 3 && tp_isa_available(isa); threads++) {
            tp_ctx_desc desc = {.isa = isa, .threads = threads};

            cr_assert_eq(tp_ctx_create(&desc, &all.ctx[all.count++]), TP_OK, "%s", tp_last_message());
        }
    }
    cr_assert_gt(all.count, 0);
    return all;
}

static inline void machines_close(machines *all)
{
    for (int i = 0; i < all->count; i++)
        tp_ctx_destroy(all->ctx[i]);
}

/* Issues the op that `test` describes; everything it writes lies in out. */
typedef tp_status (*machine_run)(tp_ctx *ctx, const void *test, void *out);

/* Runs on all machines and returns the result, freed by the caller. out begins as `before`, or as bytes 0x5a where that
 * is NULL. */
static inline void *machines_run(const machines *all, machine_run run, const void *test, const void *before,
                                 size_t bytes)
{
    char *first = NULL;

    for (int i = 0; i < all->count; i++) {
        char *out = tpt_allocate(bytes + 1);

        if (before)
            memcpy(out, before, bytes);
        else
            memset(out, 0x5a, bytes);
        cr_assert_eq(run(all->ctx[i], test, out), TP_OK, "%s", tp_last_message());
        cr_assert_eq(tp_ctx_synchronize(all->ctx[i]), TP_OK, "%s", tp_ctx_message(all->ctx[i]));
        if (i == 0) {
            first = out;
            continue;
        }
        cr_assert(memcmp(first, out, bytes) == 0, "%s with %d threads gives other bits",
                  tp_isa_name(tp_ctx_isa(all->ctx[i])), tp_ctx_threads(all->ctx[i]));
        free(out);
    }
    return first;
}

/* Bytes that no op may touch: what machines_run fills new output with. */
static inline bool machine_untouched(const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (((const unsigned char *)data)[i] != 0x5a)
            return false;
    }
    return true;
}

#endif
