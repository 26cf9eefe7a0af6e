#include "fatbinary.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace gpusim::ptx
{

namespace
{

const uint32_t kWrapperMagic = 0x466243b1u;
const uint32_t kContainerMagic = 0xBA55ED50u;
const uint16_t kPtxEntry = 1;

struct Wrapper {
    uint32_t magic, version;
    const char *data;
};

struct Header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t payload_bytes;
};

struct Entry {
    uint16_t kind, version;
    uint32_t header_bytes;
    uint64_t payload_bytes;
};

template <class T> T read(const char *at)
{
    T value;
    memcpy(&value, at, sizeof value);
    return value;
}

// 90 for ".target sm_90a".
int target_of(const std::string &text)
{
    size_t at = text.find(".target sm_");
    return at == std::string::npos ? 0 : atoi(text.c_str() + at + strlen(".target sm_"));
}

} // namespace

std::string fatbinary_ptx(const void *fatbinary, int compute_capability, std::string *error)
{
    const char *data = static_cast<const char *>(fatbinary);
    if (read<uint32_t>(data) == kWrapperMagic) {
        data = read<Wrapper>(data).data;
    }
    Header header = read<Header>(data);
    if (header.magic != kContainerMagic) {
        *error = "not a fat binary";
        return {};
    }
    const char *at = data + header.header_bytes, *end = at + header.payload_bytes;
    std::string best;
    int best_target = 0, others = 0;
    while (at + sizeof(Entry) <= end) {
        Entry entry = read<Entry>(at);
        const char *payload = at + entry.header_bytes;
        at = payload + entry.payload_bytes;
        if (entry.kind != kPtxEntry) {
            others++;
            continue;
        }
        std::string text(payload, strnlen(payload, entry.payload_bytes));
        int target = target_of(text);
        if (target == 0) {
            *error = "its PTX is compressed: compile with --compress-mode=none";
            return {};
        }
        if (target <= compute_capability && target > best_target) {
            best_target = target;
            best = std::move(text);
        } else {
            others++;
        }
    }
    if (best.empty()) {
        *error = "no PTX for compute capability " + std::to_string(compute_capability / 10) + "." +
                 std::to_string(compute_capability % 10) + " or below (" + std::to_string(others) + " other images)";
    }
    return best;
}

} // namespace gpusim::ptx
