// Ranks of one thread for tests of NCCL: communicators, streams, and numbers whose sums are known.
#pragma once
#include "devices.h"

#include <nccl.h>

constexpr int most_ranks = 4;

// Ranks on devices 0, 1, ...: each with a stream, and int or float buffers that fit every call.
struct World {
    int size;
    ncclComm_t comms[most_ranks];
    cudaStream_t streams[most_ranks];

    explicit World(int ranks) : size(ranks)
    {
        CHECK(ncclCommInitAll(comms, ranks, nullptr) == ncclSuccess);
        for (int rank = 0; rank < ranks; rank++)
            streams[rank] = new_stream(rank);
    }
    ~World()
    {
        close();
    }
    void close()
    {
        for (int rank = 0; rank < size; rank++) {
            ncclCommDestroy(comms[rank]);
            cudaStreamDestroy(streams[rank]);
        }
        size = 0;
    }
    template <class T> T *filled(int rank, const std::vector<T> &values)
    {
        T *memory = device_array<T>(values.size(), rank);
        upload(memory, values, streams[rank]);
        return memory;
    }
    void each(const std::function<ncclResult_t(int)> &call)
    {
        CHECK(ncclGroupStart() == ncclSuccess);
        for (int rank = 0; rank < size; rank++)
            CHECK(call(rank) == ncclSuccess);
        CHECK(ncclGroupEnd() == ncclSuccess);
    }
};

inline std::vector<float> values_of(int rank, size_t count)
{
    std::vector<float> values(count);
    for (size_t i = 0; i < count; i++)
        values[i] = float(rank * 100 + int(i % 17));
    return values;
}

inline float sum_at(int ranks, size_t i)
{
    float sum = 0;
    for (int rank = 0; rank < ranks; rank++)
        sum += float(rank * 100 + int(i % 17));
    return sum;
}

