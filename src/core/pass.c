/* Rows of a pass that this rank holds. */
#include <tp/pass.h>

tp_range tp_pass_rows(const tp_ctx *ctx, const tp_pass *pass, bool sequence_parallel)
{
    if (!ctx || !pass || pass->tokens < 0)
        return (tp_range){0, 0};
    if (!sequence_parallel)
        return (tp_range){0, pass->tokens};
    const tp_mesh *mesh = tp_ctx_mesh(ctx);
    return tp_shard_range(pass->tokens, mesh->tp, tp_mesh_coordinate(mesh, tp_ctx_rank(ctx), TP_AXIS_TP));
}
