/* The rank mesh. */
#include <criterion/criterion.h>
#include <string.h>
#include <tp/mesh.h>

Test(mesh, zeros_are_filled_in)
{
    tp_mesh mesh = {0};
    cr_assert_eq(tp_mesh_resolve(&mesh, 6), TP_OK);
    cr_assert(mesh.tp == 6 && mesh.cp == 1 && mesh.dp == 1 && mesh.pp == 1);
    mesh = (tp_mesh){.dp = 3, .pp = 2};
    cr_assert_eq(tp_mesh_resolve(&mesh, 24), TP_OK);
    cr_assert(mesh.tp == 4 && mesh.cp == 1 && mesh.dp == 3 && mesh.pp == 2);
}

static void check_refused(tp_mesh mesh, int ranks, const char *first, const char *second)
{
    tp_mesh before = mesh;
    cr_assert_eq(tp_mesh_resolve(&mesh, ranks), TP_ERR_ARGUMENT);
    cr_assert_eq(memcmp(&mesh, &before, sizeof mesh), 0, "a refused call changes nothing");
    cr_assert_not_null(strstr(tp_last_message(), first), "%s", tp_last_message());
    cr_assert_not_null(strstr(tp_last_message(), second), "%s", tp_last_message());
}

Test(mesh, wrong_products_are_named)
{
    check_refused((tp_mesh){.tp = 3}, 8, "3", "8 ranks");
    check_refused((tp_mesh){.dp = 3}, 8, "dp 3", "8 ranks");
    check_refused((tp_mesh){.tp = 2, .dp = 2}, 8, "= 4", "8 ranks");
    check_refused((tp_mesh){.tp = -1}, 8, "mesh.tp is -1", "8 ranks");
    check_refused((tp_mesh){.pp = 9}, 8, "mesh.pp is 9", "8 ranks");
    check_refused((tp_mesh){.cp = 1 << 20, .dp = 1 << 20, .pp = 1 << 20}, 1 << 21, "1048576", "2097152 ranks");
    check_refused((tp_mesh){0}, 0, "0", "1");
}

Test(mesh, coordinates_round_trip)
{
    tp_mesh mesh = {.tp = 2, .cp = 3, .dp = 5, .pp = 7};
    cr_assert_eq(tp_mesh_resolve(&mesh, 210), TP_OK);
    for (int rank = 0; rank < 210; rank++) {
        int coordinate[TP_AXIS_COUNT];
        for (int axis = 0; axis < TP_AXIS_COUNT; axis++) {
            coordinate[axis] = tp_mesh_coordinate(&mesh, rank, (tp_axis)axis);
            cr_assert(coordinate[axis] >= 0 && coordinate[axis] < tp_mesh_size(&mesh, (tp_axis)axis));
        }
        cr_assert_eq(tp_mesh_rank(&mesh, coordinate), rank);
    }
    cr_assert_eq(tp_mesh_coordinate(&mesh, 1, TP_AXIS_TP), 1, "tp varies fastest");
    cr_assert_eq(tp_mesh_coordinate(&mesh, 2, TP_AXIS_CP), 1);
    cr_assert_eq(tp_mesh_coordinate(&mesh, 30, TP_AXIS_PP), 1);
}
