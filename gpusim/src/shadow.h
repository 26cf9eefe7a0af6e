// Shadow cells: what is remembered of every two bytes (single bytes where anything smaller was touched): the last write
// and the reads since then that are not ordered before each other.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace gpusim {

struct Access {
    uint32_t operation; // 0: none
    uint32_t epoch;     // of the block; 0: not a kernel
    uint32_t site;      // site_number(); 0: not a kernel
    uint16_t clock;     // of the lane
    uint16_t thread;    // low ten bits; flags above
};

constexpr uint16_t kThreadMask = 0x3FF, kAccessAtomic = 0x400, kAccessPending = 0x800;
constexpr uint16_t kAccessSomeLane = 0x1000; // any lane of the thread's warp

// A read, or equal ones of several lanes of a warp.
struct Reading {
    uint32_t operation; // 0: none
    uint32_t epoch, site;
    uint16_t clock;
    uint16_t warp;  // low five bits; flags above
    uint32_t lanes; // a bit each; 0: unknown, or not a kernel
};

constexpr uint16_t kWarpMask = 0x1F, kReadingAtomic = 0x8000;
constexpr uint16_t kReadingWrite = 0x4000; // in sets only: no read but a plain write that atomic ones have followed

struct Cell {
    Access writer;
    Reading reader;   // the latest
    // Those before it that don't come before it: a ReaderSets number; 0: none. After atomic writes also the plain
    // accesses before them: other atomics need not be ordered after the last one, but must be after these.
    uint32_t readers;
};

class ShadowMap {
public:
    static constexpr size_t page_bytes = 4096;

    // Calls visit(cell) for each cell of the range.
    template <class Visit> void each(size_t offset, size_t bytes, Visit visit)
    {
        const size_t end = offset + bytes;
        while (offset < end) {
            Page &page = page_at(offset / page_bytes);
            const size_t stop = std::min(end, (offset / page_bytes + 1) * page_bytes);
            if (!page.single_bytes && (offset % 2 || stop % 2))
                split(page);
            const size_t width = page.single_bytes ? 1 : 2;
            for (; offset < stop; offset += width)
                visit(page.cells[offset % page_bytes / width]);
        }
    }
    void clear() { pages_.clear(); }

private:
    struct Page {
        bool single_bytes = false;
        std::unique_ptr<Cell[]> cells;
    };
    Page &page_at(size_t number);
    static void split(Page &page);

    std::vector<Page> pages_;
};

} // namespace gpusim
