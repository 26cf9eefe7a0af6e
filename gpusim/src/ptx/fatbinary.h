// The container that nvcc puts device code in.
#pragma once
#include <string>

namespace gpusim::ptx
{

// The PTX text for the highest virtual architecture not above `compute_capability` (80 for 8.0); empty with the reason
// in *error.
std::string fatbinary_ptx(const void *fatbinary, int compute_capability, std::string *error);

} // namespace gpusim::ptx
