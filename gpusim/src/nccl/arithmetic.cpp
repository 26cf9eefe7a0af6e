// Reductions in each type, rounded to it at every step as the wire does.
#include "group.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <type_traits>

namespace gpusim {
namespace {

// 16-bit floats compute in float, the others in themselves.
template <class T> struct Arithmetic {
    using Wide = T;
    static T load(T value) { return value; }
    static T store(T value) { return value; }
};

template <> struct Arithmetic<__half> {
    using Wide = float;
    static float load(__half value) { return __half2float(value); }
    static __half store(float value) { return __float2half(value); }
};

template <> struct Arithmetic<__nv_bfloat16> {
    using Wide = float;
    static float load(__nv_bfloat16 value) { return __bfloat162float(value); }
    static __nv_bfloat16 store(float value) { return __float2bfloat16(value); }
};

// Calls visit(T{}) with the type's C++ type.
template <class Visit> void with_type(ncclDataType_t type, Visit visit)
{
    switch (type) {
    case ncclInt8:
        return visit(int8_t());
    case ncclUint8:
        return visit(uint8_t());
    case ncclInt32:
        return visit(int32_t());
    case ncclUint32:
        return visit(uint32_t());
    case ncclInt64:
        return visit(int64_t());
    case ncclUint64:
        return visit(uint64_t());
    case ncclFloat16:
        return visit(__half());
    case ncclFloat32:
        return visit(float());
    case ncclFloat64:
        return visit(double());
    case ncclBfloat16:
        return visit(__nv_bfloat16());
    default:
        report(GPUSIM_UNSUPPORTED, "NCCL data type %d", int(type));
    }
}

template <class T> T combined(T a, T b, ncclRedOp_t op)
{
    switch (op) {
    case ncclProd:
        return T(a * b);
    case ncclMax:
        return std::max(a, b);
    case ncclMin:
        return std::min(a, b);
    default: // sum, average, scaled sum
        return T(a + b);
    }
}

} // namespace

size_t nccl_type_bytes(ncclDataType_t type)
{
    size_t bytes = 0;
    with_type(type, [&](auto value) { bytes = sizeof value; });
    return bytes;
}

void nccl_scale(void *values, size_t count, ncclDataType_t type, double scale)
{
    with_type(type, [&](auto tag) {
        using T = decltype(tag);
        using Wide = typename Arithmetic<T>::Wide;
        T *all = static_cast<T *>(values);
        for (size_t i = 0; i < count; i++)
            all[i] = Arithmetic<T>::store(Wide(Arithmetic<T>::load(all[i]) * Wide(scale)));
    });
}

void nccl_combine(void *accumulated, const void *values, size_t count, ncclDataType_t type, ncclRedOp_t op)
{
    with_type(type, [&](auto tag) {
        using T = decltype(tag);
        T *into = static_cast<T *>(accumulated);
        const T *from = static_cast<const T *>(values);
        for (size_t i = 0; i < count; i++)
            into[i] = Arithmetic<T>::store(combined(Arithmetic<T>::load(into[i]), Arithmetic<T>::load(from[i]), op));
    });
}

void nccl_divide(void *values, size_t count, ncclDataType_t type, int divisor)
{
    with_type(type, [&](auto tag) {
        using T = decltype(tag);
        using Wide = typename Arithmetic<T>::Wide;
        T *all = static_cast<T *>(values);
        for (size_t i = 0; i < count; i++)
            all[i] = Arithmetic<T>::store(Wide(Arithmetic<T>::load(all[i]) / Wide(divisor)));
    });
}

double nccl_scalar(const void *value, ncclDataType_t type)
{
    double result = 0;
    with_type(type, [&](auto tag) {
        using T = decltype(tag);
        result = double(Arithmetic<T>::load(*static_cast<const T *>(value)));
    });
    return result;
}

} // namespace gpusim
