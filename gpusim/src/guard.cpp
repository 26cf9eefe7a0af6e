#include "guard.h"

#include "backing.h"
#include "memory.h"
#include "operation.h"
#include "options.h"
#include "pinned.h"
#include "report.h"

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <set>
#include <sys/mman.h>
#include <ucontext.h>

namespace gpusim {
namespace {

constexpr uintptr_t page = 4096;

struct Guard {
    bool on = false;
    int depth = 0;              // operations that run
    std::set<uintptr_t> opened; // pages of device memory that host code has touched
    std::set<uintptr_t> told;   // of these allocations
    struct sigaction before = {};
};

Guard &guard()
{
    static auto &one = *new Guard;
    return one;
}

void *map_page(uintptr_t start, int protection)
{
    return mmap(reinterpret_cast<void *>(start), page, protection,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

// Host code goes on with a copy of the page, as it is now.
void let_through(uintptr_t start)
{
    memcpy(map_page(start, PROT_READ | PROT_WRITE), reinterpret_cast<const void *>(backing(start)), page);
    guard().opened.insert(start);
}

void device_touched(const Allocation &found, uintptr_t address)
{
    if (guard().told.insert(found.base).second)
        report(GPUSIM_HOST_ACCESS,
               "host code touched device memory, byte %zu of an allocation of %zu bytes of device %d",
               address - found.base, found.bytes, found.device);
    let_through(address / page * page);
}

void pass_on(int signal, siginfo_t *info, void *context)
{
    const struct sigaction &before = guard().before;
    if (before.sa_flags & SA_SIGINFO)
        before.sa_sigaction(signal, info, context);
    else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
        before.sa_handler(signal);
    else
        sigaction(signal, &before, nullptr); // the access is repeated, and ends the process as it would have
}

bool is_write(const void *context)
{
#if defined(__x86_64__)
    constexpr unsigned written = 2; // of the page fault's error code
    return static_cast<const ucontext_t *>(context)->uc_mcontext.gregs[REG_ERR] & written;
#else
    (void)context;
    return false; // a read is a fault too wherever the GPU writes
#endif
}

void on_fault(int signal, siginfo_t *info, void *context)
{
    Locked lock(machine_lock());
    const uintptr_t address = reinterpret_cast<uintptr_t>(info->si_addr);
    if (guard().depth == 0 && pinned_touched(address, is_write(context)))
        return;
    const Allocation *found = memory_find(address);
    if (!found || !found->live || found->space == Space::registered)
        return pass_on(signal, info, context);
    // Or another thread has opened it while this one waited for the lock: the access is repeated.
    if (found->space == Space::device && !guard().opened.count(address / page * page))
        device_touched(*found, address);
}

} // namespace

bool guard_install()
{
    Guard &one = guard();
    const char *wanted = getenv("GPUSIM_GUARD");
    if (one.on || (wanted && *wanted == '0'))
        return one.on;
    one.on = true;
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &one.before);
    return true;
}

GuardOpen::GuardOpen()
{
    guard().depth++;
    pinned_open();
}

GuardOpen::~GuardOpen()
{
    guard().depth--;
}

void guard_close(const VectorClock &known)
{
    if (guard().on && guard().depth == 0)
        pinned_close(known);
}

void guard_forget(uintptr_t base, size_t bytes)
{
    Guard &one = guard();
    for (auto opened = one.opened.lower_bound(base); opened != one.opened.end() && *opened < base + bytes;) {
        map_page(*opened, PROT_NONE);
        opened = one.opened.erase(opened);
    }
    one.told.erase(base);
}

void guard_reset()
{
    guard_forget(0, UINTPTR_MAX);
    guard().told.clear();
}

} // namespace gpusim
