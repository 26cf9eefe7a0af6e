#include "handles.h"

#include "report.h"

#include <map>
#include <utility>

namespace gpusim {
namespace {

using What = std::pair<Handle, int>; // and its device

std::map<const void *, What> &handles()
{
    static auto &all = *new std::map<const void *, What>; // outlives static destructors
    return all;
}

} // namespace

void handle_made(const void *handle, Handle kind, int device)
{
    handles()[handle] = {kind, device};
}

bool handle_gone(const void *handle)
{
    return handles().erase(handle) > 0;
}

void report_handles()
{
    static const char *const names[] = {"streams",           "events",        "graphs",
                                        "executable graphs", "communicators", "cuBLASLt handles"};
    std::map<What, size_t> left;
    for (const auto &entry : handles())
        left[entry.second]++;
    for (const auto &entry : left)
        report(GPUSIM_LEAK, "%zu %s of device %d, not destroyed", entry.second, names[int(entry.first.first)],
               entry.first.second);
}

} // namespace gpusim
