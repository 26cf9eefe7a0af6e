#include "operand.h"

#include "../report.h"

#include <algorithm>
#include <cstring>

namespace gpusim {
namespace {

struct Extent {
    const char *begin, *end;
};

Extent extent_of(const std::vector<OperandLine> &lines)
{
    Extent all = {lines[0].begin, lines[0].begin};
    for (const OperandLine &line : lines) {
        all.begin = std::min(all.begin, line.begin);
        all.end = std::max(all.end, line.begin + line.bytes);
    }
    return all;
}

void sort_lines(std::vector<OperandLine> &lines)
{
    std::sort(lines.begin(), lines.end(),
              [](const OperandLine &a, const OperandLine &b) { return a.begin < b.begin; });
}

bool share_elements(const Operand &one, const Operand &other)
{
    std::vector<OperandLine> left = one.lines(), right = other.lines();
    const Extent whole = extent_of(left), against = extent_of(right);
    if (whole.begin >= against.end || against.begin >= whole.end)
        return false;
    sort_lines(left);
    sort_lines(right);
    for (size_t i = 0, k = 0; i < left.size() && k < right.size();) {
        if (left[i].begin + left[i].bytes <= right[k].begin)
            i++;
        else if (right[k].begin + right[k].bytes <= left[i].begin)
            k++;
        else
            return true;
    }
    return false;
}

bool in_place(const Operand &c, const Operand &d)
{
    return strcmp(c.name, "C") == 0 && strcmp(d.name, "D") == 0 && c.memory == d.memory &&
           c.layout.ld == d.layout.ld && c.layout.order == d.layout.order &&
           (c.layout.batch == 1 || c.layout.stride == d.layout.stride);
}

} // namespace

std::vector<OperandLine> Operand::lines() const
{
    const size_t bytes = blas_type_bytes(int(layout.type));
    const bool rows = layout.order == CUBLASLT_ORDER_ROW;
    const size_t outer = rows ? layout.rows : layout.cols, inner = rows ? layout.cols : layout.rows;
    std::vector<OperandLine> all;
    all.reserve(size_t(layout.batch) * outer);
    for (size_t batch = 0; batch < size_t(layout.batch); batch++)
        for (size_t line = 0; line < outer; line++) {
            const int64_t element = int64_t(batch) * layout.stride + int64_t(line) * layout.ld;
            all.push_back({static_cast<const char *>(memory) + element * int64_t(bytes), inner * bytes});
        }
    return all;
}

std::string operands_overlap(const std::vector<Operand> &operands)
{
    for (size_t i = 0; i < operands.size(); i++)
        for (size_t k = i + 1; k < operands.size(); k++) {
            const Operand &one = operands[i], &other = operands[k];
            if ((one.written || other.written) && !in_place(one, other) && share_elements(one, other))
                return format_text("%s and %s overlap, and %s is written", one.name, other.name,
                                   (other.written ? other : one).name);
        }
    return "";
}

} // namespace gpusim
