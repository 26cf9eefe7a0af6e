// The rules: what an access of a cell may follow.
#pragma once
#include "kernel_order.h"
#include "operation.h"
#include "readers.h"
#include "shadow.h"

#include "api.h"

namespace gpusim {

// One access of one thread, or of a whole operation (place NULL): what the rules need to know of it.
struct Accessor {
    const Operation *operation;
    const Place *place;
    unsigned flags;
    uint32_t site;
    const char *memory; // "device", "shared", ...: for reports
    bool shared;
    bool unwritten_allowed;
    ReaderSets *readers; // of the cells; NULL: those of all global memory
};

uint32_t site_number(const Site &site);
std::string site_text(uint32_t site);

// Checks and updates the cells of a range.
void cells_access(ShadowMap &shadow, size_t offset, size_t bytes, const Accessor &now);
// Only checks: an access that nobody will be compared with.
void cells_check(ShadowMap &shadow, size_t offset, size_t bytes, const Accessor &now);

} // namespace gpusim
