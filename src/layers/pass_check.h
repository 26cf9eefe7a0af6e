/* Checks that layers make before anything is changed, with the same verdict on all ranks. */
#ifndef TPI_PASS_CHECK_H
#define TPI_PASS_CHECK_H

#include <tp/pass.h>

#include "core/context.h"

/* Tokens, sequences and offsets fit each other. */
tp_status tpi_pass_check(tp_ctx *ctx, const tp_pass *pass);

/* Length of the longest sequence of a checked pass. */
int64_t tpi_pass_longest(const tp_pass *pass);

/* Every value lies in [low, limit); the message names the value, its place and the limit. `what` is the field,
 * `limit_name` what the limit is. Nothing is checked where the device's memory cannot be read here. */
typedef struct tpi_pass_ids {
    const char *what, *limit_name;
    const int32_t *ids;
    int64_t count;
    int64_t low, limit;
} tpi_pass_ids;
tp_status tpi_pass_check_ids(tp_ctx *ctx, const tpi_pass_ids *args);

/* `value` in [low, high), and not NaN. */
tp_status tpi_layer_check_real(tp_ctx *ctx, const char *field, double value, double low, double high);

#endif
