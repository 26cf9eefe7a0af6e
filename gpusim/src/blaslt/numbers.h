// The arithmetic of one multiplication.
#pragma once
#include "descriptor.h"

namespace gpusim {

struct MatmulOperands {
    const void *a, *b, *c;
    void *d;
    float alpha, beta;
    int batch;
};

// D = epilogue(alpha op(A) op(B) + beta C) of one batch, sums in float along k.
void multiply(const MatmulProblem &problem, const EpilogueParts &parts, const MatmulOperands &operands);

} // namespace gpusim
