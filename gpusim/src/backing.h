// Device memory has two addresses. Programs know the one that host code can't touch; its bytes are a fixed distance
// further on, and only the simulator knows that. So an access by host code is seen whenever it comes, and nothing has
// to be closed or opened for it.
#pragma once
#include <cstdint>

namespace gpusim {

struct DeviceWindow {
    uintptr_t base = 0, bytes = 0; // of all devices, as programs know it
    uintptr_t distance = 0;        // 0: GPUSIM_GUARD=0
};

inline DeviceWindow &device_window()
{
    static DeviceWindow one;
    return one;
}

// Where the bytes are that the program knows by this address: its own, if it isn't device memory.
inline uintptr_t backing(uintptr_t address)
{
    const DeviceWindow &window = device_window();
    return address - window.base < window.bytes ? address + window.distance : address;
}

template <class T> T *backing(T *memory)
{
    return reinterpret_cast<T *>(backing(reinterpret_cast<uintptr_t>(memory)));
}

} // namespace gpusim
