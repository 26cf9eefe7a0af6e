/* The rank mesh: which tensor-, context-, data- and pipeline-parallel coordinate a rank has. tp varies fastest. */
#ifndef TP_MESH_H
#define TP_MESH_H

#include <tp/status.h>

typedef enum tp_axis { TP_AXIS_TP = 0, TP_AXIS_CP, TP_AXIS_DP, TP_AXIS_PP, TP_AXIS_COUNT } tp_axis;

/* Sizes along the axes; 0 means 1, except that a zero tp takes all ranks the other axes leave. */
typedef struct tp_mesh {
    int tp, cp, dp, pp;
} tp_mesh;

TP_BEGIN_DECLS

/* Fills in zeros for a world of `ranks`. TP_ERR_ARGUMENT, naming both numbers, if the product is not `ranks`. */
TP_API tp_status tp_mesh_resolve(tp_mesh *mesh, int ranks);

/* Size along an axis, and the coordinate of a world rank along it. The mesh must be resolved. */
TP_API int tp_mesh_size(const tp_mesh *mesh, tp_axis axis);
TP_API int tp_mesh_coordinate(const tp_mesh *mesh, int rank, tp_axis axis);

/* World rank of four coordinates, in the order of tp_axis. */
TP_API int tp_mesh_rank(const tp_mesh *mesh, const int coordinate[TP_AXIS_COUNT]);

TP_END_DECLS
#endif
