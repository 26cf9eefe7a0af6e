/* Tensor views. */
#include <tp/tensor.h>

tp_tensor tp_tensor_1d(void *data, tp_dtype dtype, int64_t length)
{
    return (tp_tensor){.data = data, .dtype = dtype, .dims = 1, .shape = {length}, .stride = {1}};
}

tp_tensor tp_tensor_2d(void *data, tp_dtype dtype, int64_t rows, int64_t cols)
{
    return (tp_tensor){.data = data, .dtype = dtype, .dims = 2, .shape = {rows, cols}, .stride = {cols, 1}};
}

tp_tensor tp_tensor_none(void)
{
    return (tp_tensor){.data = NULL};
}

bool tp_tensor_is_none(tp_tensor tensor)
{
    return tensor.data == NULL && tensor.dims == 0;
}

int64_t tp_tensor_elements(tp_tensor tensor)
{
    bool empty = false, large = false;
    int64_t elements = 1;
    if (tensor.dims < 0 || tensor.dims > TP_MAX_DIMS)
        return -1;
    for (int dim = 0; dim < tensor.dims; dim++) {
        if (tensor.shape[dim] < 0)
            return -1;
        empty = empty || tensor.shape[dim] == 0;
        large = __builtin_mul_overflow(elements, tensor.shape[dim], &elements) || large;
    }
    return empty ? 0 : large ? -1 : elements;
}

size_t tp_tensor_bytes(tp_tensor tensor)
{
    int64_t elements = tp_tensor_elements(tensor);
    size_t size = tp_dtype_size(tensor.dtype);
    if (elements < 0 || (size > 0 && (uint64_t)elements > SIZE_MAX / size))
        return SIZE_MAX;
    return (size_t)elements * size;
}

bool tp_tensor_is_dense(tp_tensor tensor)
{
    if (tp_tensor_elements(tensor) <= 0)
        return tp_tensor_elements(tensor) == 0;
    int64_t expected = 1;
    for (int dim = tensor.dims - 1; dim >= 0; dim--) {
        /* The stride of a dimension of one is never used. */
        if (tensor.shape[dim] != 1 && tensor.stride[dim] != expected)
            return false;
        expected *= tensor.shape[dim];
    }
    return true;
}

static void *advance(tp_tensor tensor, int64_t elements)
{
    if (!tensor.data)
        return NULL;
    return (char *)tensor.data + elements * (int64_t)tp_dtype_size(tensor.dtype);
}

tp_tensor tp_tensor_rows(tp_tensor tensor, int64_t begin, int64_t end)
{
    tensor.data = advance(tensor, begin * tensor.stride[0]);
    tensor.shape[0] = end - begin;
    return tensor;
}

tp_tensor tp_tensor_cols(tp_tensor tensor, int64_t begin, int64_t end)
{
    tensor.data = advance(tensor, begin * tensor.stride[1]);
    tensor.shape[1] = end - begin;
    return tensor;
}
