#include "guard.h"

#include "memory.h"
#include "operation.h"
#include "options.h"
#include "pinned.h"
#include "report.h"

#include <csignal>
#include <cstdlib>
#include <sys/mman.h>
#include <ucontext.h>

namespace gpusim {
namespace {

struct Guard {
    bool installed = false;
    bool off = false;
    bool closed = false;
    bool grown = false;   // since then there is memory that is open
    bool touched = false; // device memory, by the host: it stays open
    int depth = 0;
    struct sigaction before = {};
};

Guard &guard()
{
    static auto &one = *new Guard;
    return one;
}

void protect(int protection)
{
    memory_each_device_range([&](uintptr_t base, size_t bytes) { mprotect(reinterpret_cast<void *>(base), bytes, protection); });
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
    const bool was_closed = guard().closed;
    if (guard().depth == 0 && pinned_touched(address, is_write(context))) {
        guard().closed = was_closed; // operations may have run
        if (was_closed)
            protect(PROT_NONE);
        return;
    }
    const Allocation *found = memory_find(address);
    if (!found || !found->live || found->space == Space::registered)
        return pass_on(signal, info, context);
    if (found->space == Space::pinned || !guard().closed)
        return; // another thread opened it while this one waited for the lock: the access is repeated
    report(GPUSIM_HOST_ACCESS, "host code touched device memory, byte %zu of an allocation of %zu bytes of device %d", address - found->base,
           found->bytes, found->device);
    guard().touched = true;
    guard().closed = false;
    protect(PROT_READ | PROT_WRITE);
}

void install()
{
    Guard &one = guard();
    one.installed = true;
    const char *wanted = getenv("GPUSIM_GUARD");
    one.off = wanted && *wanted == '0';
    if (one.off)
        return;
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &one.before);
}

} // namespace

GuardOpen::GuardOpen()
{
    Guard &one = guard();
    one.depth++;
    pinned_open();
    if (one.closed) {
        one.closed = false;
        protect(PROT_READ | PROT_WRITE);
    }
}

GuardOpen::~GuardOpen()
{
    guard().depth--;
}

void guard_close(const VectorClock &known, bool pinned_only)
{
    Guard &one = guard();
    if (!one.installed)
        install();
    if (one.off || one.depth)
        return;
    pinned_close(known);
    if ((one.closed && !one.grown) || one.touched || pinned_only)
        return;
    one.closed = true;
    one.grown = false;
    protect(PROT_NONE);
}

void guard_reset()
{
    guard().touched = false;
}

void guard_new_memory()
{
    guard().grown = true;
}

} // namespace gpusim
