/* A tensor is a view by value: it owns nothing and may look at any host or device memory of its context's device. */
#ifndef TP_TENSOR_H
#define TP_TENSOR_H

#include <stdbool.h>
#include <tp/dtype.h>
#include <tp/status.h>

#define TP_MAX_DIMS 4

typedef struct tp_tensor {
    void *data;
    tp_dtype dtype;
    int dims;
    int64_t shape[TP_MAX_DIMS];
    int64_t stride[TP_MAX_DIMS]; /* in elements; the last one is 1 */
} tp_tensor;

TP_BEGIN_DECLS

/* Dense row-major views. */
TP_API tp_tensor tp_tensor_1d(void *data, tp_dtype dtype, int64_t length);
TP_API tp_tensor tp_tensor_2d(void *data, tp_dtype dtype, int64_t rows, int64_t cols);

/* "No tensor": data NULL and no dims. Optional tensor arguments take it. */
TP_API tp_tensor tp_tensor_none(void);
TP_API bool tp_tensor_is_none(tp_tensor tensor);

/* Number of elements; 1 for no dims, -1 if the product passes 2^63-1, a size is negative or there are no such dims. */
TP_API int64_t tp_tensor_elements(tp_tensor tensor);

/* Bytes of a dense tensor of this shape; SIZE_MAX on overflow. */
TP_API size_t tp_tensor_bytes(tp_tensor tensor);

/* True if rows follow each other without gaps. */
TP_API bool tp_tensor_is_dense(tp_tensor tensor);

/* Rows [begin, end) of a 2-D tensor, columns [begin, end) of it: views of the same memory. */
TP_API tp_tensor tp_tensor_rows(tp_tensor tensor, int64_t begin, int64_t end);
TP_API tp_tensor tp_tensor_cols(tp_tensor tensor, int64_t begin, int64_t end);

TP_END_DECLS
#endif
