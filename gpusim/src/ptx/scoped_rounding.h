// PTX's rounding modes on the host's floating point unit.
#pragma once
#include "syntax.h"

#include <cfenv>

namespace gpusim::ptx
{

enum class Rounding : uint8_t { nearest, zero, down, up };

inline Rounding rounding_of(const Statement &statement)
{
    return statement.has("rz")   ? Rounding::zero
           : statement.has("rm") ? Rounding::down
           : statement.has("rp") ? Rounding::up
                                 : Rounding::nearest;
}

// Operands must be read from memory, and results stored, while it lives: then nothing can be computed outside of it.
class ScopedRounding
{
  public:
    explicit ScopedRounding(Rounding rounding) : before_(fegetround())
    {
        static const int kModes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
        fesetround(kModes[static_cast<int>(rounding)]);
    }
    ~ScopedRounding()
    {
        fesetround(before_);
    }
    ScopedRounding(const ScopedRounding &) = delete;
    ScopedRounding &operator=(const ScopedRounding &) = delete;

  private:
    int before_;
};

} // namespace gpusim::ptx
