/* Orders of inner sums: which indices of a cut dimension belong to which virtual rank (design: sums have one order). */
#ifndef TPI_INNER_H
#define TPI_INNER_H

#include "core/ops.h"

/* The order in which real rank `index` of `ranks` sums over the dimension made of `parts`: one block for each of its
 * virtual ranks, whose segments are what that virtual rank owns of each part, in local indices of this rank's shard. */
void tpi_inner_from_parts(const tp_shard_part *part, int parts, int ranks, int index, tpi_inner *out);

/* The order over `length` uncut indices of which real rank `index` of `ranks` takes the share of its virtual ranks
 * (replicated tensors, tokens under sequence parallelism): global indices, or local ones from the share's first
 * index. */
void tpi_inner_from_share(int64_t length, int ranks, int index, bool local, tpi_inner *out);

/* Local extent of a shard: held indices of all parts together. */
int64_t tpi_parts_local(const tp_shard_part *part, int parts, int ranks, int index);
/* Global extent. */
int64_t tpi_parts_global(const tp_shard_part *part, int parts);

#endif
