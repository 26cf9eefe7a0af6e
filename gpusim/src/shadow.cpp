#include "shadow.h"

namespace gpusim {

ShadowMap::Page &ShadowMap::page_at(size_t number)
{
    if (number >= pages_.size())
        pages_.resize(number + 1);
    Page &page = pages_[number];
    if (!page.cells)
        page.cells = std::make_unique<Cell[]>(page_bytes / 2);
    return page;
}

void ShadowMap::split(Page &page)
{
    auto halves = std::make_unique<Cell[]>(page_bytes);
    for (size_t i = 0; i < page_bytes; i++)
        halves[i] = page.cells[i / 2];
    page.cells = std::move(halves);
    page.single_bytes = true;
}

} // namespace gpusim
