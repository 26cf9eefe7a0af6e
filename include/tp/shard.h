/* How global indices are dealt out to ranks. Everything else in tp is defined on global indices; this header is the one
 * place that turns them into local ones. */
#ifndef TP_SHARD_H
#define TP_SHARD_H

#include <stdbool.h>
#include <stdint.h>
#include <tp/export.h>

/* Sums that a layout could split are computed by this many virtual ranks, whatever the number of real ones. */
#define TP_VIRTUAL_RANKS 8

typedef struct tp_range {
    int64_t begin, end; /* [begin, end) */
} tp_range;

/* One logical part of a sharded dimension, e.g. the k rows of a fused [q; k; v] matrix.
 * `units` are dealt out (heads, features, vocabulary rows), `unit_size` consecutive indices each.
 * readers == 0: unit ranges are tp_shard_range(units, ...).
 * readers > 0: `readers` reading units (query heads) are dealt out instead, reader i reads unit i / (readers / units),
 * and a rank holds every unit that its readers read: neighbours may hold the same one, which the first holder owns. */
typedef struct tp_shard_part {
    int64_t units;
    int64_t unit_size;
    int64_t readers;
} tp_shard_part;

TP_BEGIN_DECLS

/* [floor(total*index/parts), floor(total*(index+1)/parts)): uneven is normal, nothing is padded, and ranges nest: a
 * rank of 4 holds exactly what two ranks of 8 hold. Exact for totals up to 2^63-1. total >= 0, 0 <= index < parts <=
 * 2^31. */
TP_API tp_range tp_shard_range(int64_t total, int64_t parts, int64_t index);

/* Global indices (not units) of the part that rank `index` of `parts` holds, and of those that it owns (counts in
 * norms, checkpoints and input gradients). Owned ranges are disjoint and cover the part. */
TP_API tp_range tp_shard_part_held(const tp_shard_part *part, int64_t parts, int64_t index);
TP_API tp_range tp_shard_part_owned(const tp_shard_part *part, int64_t parts, int64_t index);

/* The virtual ranks that real rank `index` of `parts` computes: [8*index/parts, 8*(index+1)/parts) where parts divides
 * 8; otherwise {index, index+1} of `parts` virtual ranks. *count gets the number of virtual ranks in all (8 or
 * parts). */
TP_API tp_range tp_shard_virtual(int64_t parts, int64_t index, int64_t *count);

TP_END_DECLS
#endif
