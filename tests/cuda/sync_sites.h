/* Which wait of the library a wait of a stream is. */
#ifndef TPT_CUDA_SYNC_SITES_H
#define TPT_CUDA_SYNC_SITES_H

#include "cuda/sync_work.h"

/* Between the two, what the waits of this rank's streams are for is written to the parts' outcome. One program a
 * process. */
void tpt_sites_watch(tp_ctx *ctx, const tpt_parts *parts);
void tpt_sites_leave(tp_ctx *ctx);

#endif
