/* Tensor views. */
#include <criterion/criterion.h>
#include <stdint.h>
#include <tp/tensor.h>

Test(tensor, dense_views)
{
    float data[12];
    tp_tensor matrix = tp_tensor_2d(data, TP_DTYPE_F32, 3, 4);
    cr_assert_eq(matrix.data, data);
    cr_assert_eq(matrix.dims, 2);
    cr_assert_eq(matrix.stride[0], 4);
    cr_assert_eq(matrix.stride[1], 1);
    cr_assert_eq(tp_tensor_elements(matrix), 12);
    cr_assert_eq(tp_tensor_bytes(matrix), 48u);
    cr_assert(tp_tensor_is_dense(matrix));
    cr_assert_eq(tp_tensor_elements(tp_tensor_1d(data, TP_DTYPE_F32, 7)), 7);
    cr_assert_eq(tp_tensor_bytes(tp_tensor_1d(data, TP_DTYPE_BF16, 7)), 14u);
}

Test(tensor, none)
{
    float value = 0;
    cr_assert(tp_tensor_is_none(tp_tensor_none()));
    cr_assert_not(tp_tensor_is_none(tp_tensor_1d(&value, TP_DTYPE_F32, 1)));
    cr_assert_not(tp_tensor_is_none(tp_tensor_1d(NULL, TP_DTYPE_F32, 0)));
    cr_assert_eq(tp_tensor_elements(tp_tensor_none()), 1);
    cr_assert_eq(tp_tensor_bytes(tp_tensor_none()), 0u);
}

Test(tensor, rows_and_cols)
{
    uint16_t data[20];
    tp_tensor matrix = tp_tensor_2d(data, TP_DTYPE_BF16, 4, 5);
    tp_tensor rows = tp_tensor_rows(matrix, 1, 3);
    cr_assert_eq(rows.data, &data[5]);
    cr_assert_eq(rows.shape[0], 2);
    cr_assert(tp_tensor_is_dense(rows));
    tp_tensor cols = tp_tensor_cols(matrix, 2, 5);
    cr_assert_eq(cols.data, &data[2]);
    cr_assert_eq(cols.shape[1], 3);
    cr_assert_eq(cols.stride[0], 5);
    cr_assert_not(tp_tensor_is_dense(cols));
    cr_assert(tp_tensor_is_dense(tp_tensor_rows(cols, 1, 2)), "one row has no gaps");
    cr_assert(tp_tensor_is_dense(tp_tensor_rows(cols, 2, 2)), "nothing has no gaps");
    cr_assert_null(tp_tensor_rows(tp_tensor_2d(NULL, TP_DTYPE_F32, 4, 5), 2, 4).data);
}

Test(tensor, counts_do_not_overflow)
{
    int64_t big = (int64_t)1 << 33;
    cr_assert_eq(tp_tensor_elements(tp_tensor_2d(NULL, TP_DTYPE_U8, big, 3)), 3 * big);
    cr_assert_eq(tp_tensor_bytes(tp_tensor_2d(NULL, TP_DTYPE_F32, big, 3)), (size_t)12 << 33);
    cr_assert_eq(tp_tensor_elements(tp_tensor_2d(NULL, TP_DTYPE_F32, big, big)), -1);
    cr_assert_eq(tp_tensor_bytes(tp_tensor_2d(NULL, TP_DTYPE_F32, big, big)), SIZE_MAX);
    cr_assert_eq(tp_tensor_bytes(tp_tensor_1d(NULL, TP_DTYPE_I64, INT64_MAX)), SIZE_MAX);
    cr_assert_eq(tp_tensor_elements(tp_tensor_2d(NULL, TP_DTYPE_F32, INT64_MAX, 0)), 0);
    cr_assert_eq(tp_tensor_elements(tp_tensor_2d(NULL, TP_DTYPE_F32, 3, -1)), -1);
}

Test(tensor, dims_are_bounded)
{
    float data[12];
    for (int dims = -3; dims <= TP_MAX_DIMS + 3; dims++) {
        tp_tensor tensor = tp_tensor_2d(data, TP_DTYPE_F32, 3, 4);
        tensor.dims = dims;
        if (dims >= 0 && dims <= TP_MAX_DIMS)
            continue;
        cr_expect_eq(tp_tensor_elements(tensor), -1, "%d dims", dims);
        cr_expect_eq(tp_tensor_bytes(tensor), SIZE_MAX, "%d dims", dims);
        cr_expect_not(tp_tensor_is_dense(tensor), "%d dims", dims);
    }
}
