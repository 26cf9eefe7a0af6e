/* The rank mesh; tp varies fastest. */
#include "core/context.h"

static const char *const axis_names[TP_AXIS_COUNT] = {"tp", "cp", "dp", "pp"};

static int *axis_size(tp_mesh *mesh, tp_axis axis)
{
    switch (axis) {
    case TP_AXIS_TP: return &mesh->tp;
    case TP_AXIS_CP: return &mesh->cp;
    case TP_AXIS_DP: return &mesh->dp;
    default: return &mesh->pp;
    }
}

tp_status tp_mesh_resolve(tp_mesh *mesh, int ranks)
{
    if (!mesh)
        return tpi_message(TP_ERR_ARGUMENT, "mesh is NULL");
    if (ranks < 1)
        return tpi_message(TP_ERR_ARGUMENT, "mesh: the world has %d ranks, at least 1 is needed", ranks);
    tp_mesh resolved = *mesh;
    int64_t others = 1;
    for (tp_axis axis = TP_AXIS_TP; axis < TP_AXIS_COUNT; axis++) {
        int *size = axis_size(&resolved, axis);
        if (*size < 0 || *size > ranks)
            return tpi_message(TP_ERR_ARGUMENT, "mesh.%s is %d, not within 0 and the world's %d ranks",
                               axis_names[axis], *size, ranks);
        if (axis == TP_AXIS_TP)
            continue;
        if (*size == 0)
            *size = 1;
        others *= *size;
        if (others > ranks)
            return tpi_message(TP_ERR_ARGUMENT, "mesh: cp %d x dp %d x pp %d is more than the world's %d ranks",
                               mesh->cp, mesh->dp, mesh->pp, ranks);
    }
    if (resolved.tp == 0)
        resolved.tp = (int)(ranks / others);
    if (resolved.tp * others != ranks)
        return tpi_message(TP_ERR_ARGUMENT, "mesh: tp %d x cp %d x dp %d x pp %d = %lld, but the world has %d ranks",
                           resolved.tp, resolved.cp, resolved.dp, resolved.pp, (long long)(resolved.tp * others),
                           ranks);
    *mesh = resolved;
    return TP_OK;
}

int tp_mesh_size(const tp_mesh *mesh, tp_axis axis)
{
    tp_mesh copy = *mesh;
    return *axis_size(&copy, axis);
}

int tp_mesh_coordinate(const tp_mesh *mesh, int rank, tp_axis axis)
{
    for (tp_axis before = TP_AXIS_TP; before < axis; before++)
        rank /= tp_mesh_size(mesh, before);
    return rank % tp_mesh_size(mesh, axis);
}

int tp_mesh_rank(const tp_mesh *mesh, const int coordinate[TP_AXIS_COUNT])
{
    int rank = 0;
    for (int axis = TP_AXIS_COUNT - 1; axis >= 0; axis--)
        rank = rank * tp_mesh_size(mesh, (tp_axis)axis) + coordinate[axis];
    return rank;
}
