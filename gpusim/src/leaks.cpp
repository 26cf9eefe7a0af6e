// What a program has not given back.
#include "handles.h"
#include "memory.h"
#include "options.h"
#include "report.h"
#include "runtime/runtime.h"

namespace gpusim {
namespace {

void report_leak(const Allocation &allocation)
{
    static const char *const names[] = {"device memory", "pinned memory", "registered host memory"};
    if (!allocation.permanent)
        report(GPUSIM_LEAK, "%zu bytes of %s of device %d, %s", allocation.bytes, names[int(allocation.space)],
               allocation.device, allocation.pool ? "from cudaMallocAsync" : "not freed");
}

} // namespace

int report_leaks()
{
    const int before = gpusim_reports(-1);
    report_open_groups();
    report_handles();
    memory_each_live([](Allocation &allocation) { report_leak(allocation); });
    int left = 0;
    for (const Stream *stream : streams())
        left += int(stream->queue.size());
    if (left)
        report(GPUSIM_LEAK, "%d operations were queued and never waited for", left);
    return gpusim_reports(-1) - before;
}

} // namespace gpusim

extern "C" int gpusim_report_leaks(void)
{
    gpusim::Locked lock(gpusim::machine_lock());
    return gpusim::report_leaks();
}
