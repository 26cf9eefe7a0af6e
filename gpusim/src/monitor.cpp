// Global memory: bounds, lifetime, device and order of every access; shared memory: bounds and order.
#include "monitor.h"

#include "access.h"
#include "cells.h"
#include "memory.h"
#include "options.h"
#include "report.h"
#include "runtime/runtime.h"

#include <set>

namespace gpusim {
namespace {

const char *const space_names[] = {"device", "pinned", "registered host"};

std::string accessor_text(const Operation &operation, const Place *place, uint32_t site)
{
    if (!place)
        return format_text("'%s'", operation.name);
    return format_text("'%s' block %u thread %u at %s", operation.name, place->block, place->thread,
                       site_text(site).c_str());
}

void report_place(gpusim_report_kind kind, const Operation &operation, const Place *place, uint32_t site,
                  const std::string &what)
{
    const std::string key = format_text("%s:%u:%s", operation.name, site, place ? "" : what.c_str());
    if (!report_seen(kind, key))
        report_new(kind, key, accessor_text(operation, place, site) + ": " + what);
}

bool check_lifetime(const Operation &operation, const Place *place, uint32_t site, uintptr_t address, size_t bytes,
                    bool write, Allocation *allocation)
{
    const char *verb = write ? "write" : "read";
    if (!allocation || bytes > allocation->base + allocation->bytes - address) {
        const uintptr_t outside = allocation ? allocation->base + allocation->bytes : address;
        report_place(GPUSIM_OUT_OF_BOUNDS, operation, place, site,
                     format_text("%s of %zu bytes, %s", verb, bytes, memory_near(outside).c_str()));
        return false;
    }
    if (!allocation->live) {
        report_place(GPUSIM_USE_AFTER_FREE, operation, place, site,
                     format_text("%s of memory that %s has freed", verb, allocation->freed_by));
        return false;
    }
    return true;
}

void check_device(const Operation &operation, const Place *place, uint32_t site, const Allocation &allocation)
{
    if (allocation.space != Space::device || operation.device == allocation.device || operation.device < 0)
        return;
    const bool allowed = allocation.pool ? allocation.pool->access.count(operation.device) > 0
                                         : peer_enabled(operation.device, allocation.device) ||
                                               (allocation.open_to >> operation.device & 1);
    if (!allowed)
        report_place(GPUSIM_WRONG_DEVICE, operation, place, site,
                     format_text("device %d uses memory of device %d%s", operation.device, allocation.device,
                                 allocation.pool ? "'s pool, which gave it no access" : " without peer access"));
}

void check_allocated(const Operation &operation, const Place *place, uint32_t site, Allocation &allocation)
{
    if (!allocation.allocated_by || allocation.allocation_known_to == operation.id)
        return;
    if (allocation.allocated_by == not_yet_allocated || !operation_before(allocation.allocated_by, operation))
        report_place(GPUSIM_RACE_STREAM, operation, place, site,
                     "uses memory of a cudaMallocAsync that it is not ordered after");
    allocation.allocation_known_to = operation.id;
}

bool access(const Operation &operation, const Place *place, uint32_t site, uintptr_t address, size_t bytes,
            unsigned flags)
{
    Allocation *allocation = memory_find(address);
    if (!check_lifetime(operation, place, site, address, bytes, flags & kWrite, allocation))
        return false;
    if (!(flags & kAnyDevice))
        check_device(operation, place, site, *allocation);
    check_allocated(operation, place, site, *allocation);
    const Accessor now = {&operation, place, flags, site, space_names[int(allocation->space)], false,
                          allocation->written_unseen, nullptr};
    cells_access(allocation->shadow, address - allocation->base, bytes, now);
    return true;
}

} // namespace

bool range_access(const void *memory, size_t bytes, unsigned flags)
{
    const Operation *operation = current_operation();
    if (bytes == 0 || !operation || !options().check)
        return true;
    return access(*operation, nullptr, 0, reinterpret_cast<uintptr_t>(memory), bytes, flags);
}

bool monitor_access(const Place &place, uintptr_t address, size_t bytes, unsigned flags, const Site &site)
{
    const Operation &operation = *current_operation();
    kernel_order().blocks(operation.id).note(place);
    const bool valid = access(operation, &place, site_number(site), address, bytes, flags);
    if (valid && (flags & kAtomic))
        monitor_atomic(place, address, flags);
    return valid;
}

void monitor_unwritten_local(const Place &place, size_t bytes, const Site &site)
{
    report_place(GPUSIM_UNINITIALISED, *current_operation(), &place, site_number(site),
                 format_text("read of %zu bytes of a local array that the thread has not written", bytes));
}

void monitor_pending_source(const Place &place, size_t bytes, const Site &site)
{
    report_place(GPUSIM_PENDING_COPY, *current_operation(), &place, site_number(site),
                 format_text("write of %zu bytes that a cp.async which was not waited for still reads", bytes));
}

void monitor_fence(const Place &place, Scope scope)
{
    const Operation &operation = *current_operation();
    BlockOrder &order = kernel_order().blocks(operation.id);
    order.note(place);
    if (scope != Scope::block)
        order.fence(place);
    kernel_order().fence(operation, place, scope);
}

void monitor_release(const Place &place, Scope scope)
{
    const Operation &operation = *current_operation();
    kernel_order().blocks(operation.id).hold(place);
    kernel_order().hold(operation, place);
    monitor_fence(place, scope);
}

void monitor_release_end(const Place &place)
{
    const Operation &operation = *current_operation();
    kernel_order().blocks(operation.id).drop(place);
    kernel_order().drop(operation, place);
}

void monitor_atomic(const Place &place, uintptr_t address, unsigned flags)
{
    const Operation &operation = *current_operation();
    BlockOrder &order = kernel_order().blocks(operation.id);
    order.note(place);
    if (!(flags & kBlock))
        order.atomic(place, address, flags);
    kernel_order().strong(operation, place, address, flags);
}

void monitor_kernel_end()
{
    kernel_order().end(*current_operation());
}

struct SharedShadow {
    size_t bytes;
    ShadowMap cells;
    ReaderSets readers{[](const Operation &, uint32_t) { return 0u; }};
    uintptr_t address; // of its own, for order by atomics
    std::set<uintptr_t> atomics;
};

SharedShadow *shared_shadow_begin(size_t bytes, uint32_t)
{
    constexpr uintptr_t first = uintptr_t(1) << 63, room = uintptr_t(1) << 20; // no memory has such addresses
    static uintptr_t made;
    auto *shadow = new SharedShadow;
    shadow->bytes = bytes;
    shadow->address = first + made++ * room;
    return shadow;
}

void shared_shadow_end(SharedShadow *shadow)
{
    for (uintptr_t address : shadow->atomics)
        kernel_order().forget(address);
    delete shadow;
}

bool monitor_shared_access(SharedShadow *shadow, const Place &place, size_t offset, size_t bytes, unsigned flags,
                           const Site &site)
{
    const Operation &operation = *current_operation();
    const uint32_t number = site_number(site);
    if (offset > shadow->bytes || bytes > shadow->bytes - offset) {
        report_place(GPUSIM_OUT_OF_BOUNDS, operation, &place, number,
                     format_text("%s of %zu bytes at %zu of the block's %zu bytes of shared memory",
                                 flags & kWrite ? "write" : "read", bytes, offset, shadow->bytes));
        return false;
    }
    const Accessor now = {&operation, &place, flags, number, "shared", true, false, &shadow->readers};
    cells_access(shadow->cells, offset, bytes, now);
    if ((flags & kAtomic) && kernel_order().strong(operation, place, shadow->address + offset, flags))
        shadow->atomics.insert(shadow->address + offset);
    return true;
}

} // namespace gpusim
