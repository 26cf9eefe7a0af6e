/* One generator an algorithm: a pure function of the builder's description, in a file of its own. */
#ifndef TPI_ALGORITHMS_H
#define TPI_ALGORITHMS_H

#include "plan/builder.h"

void tpi_generate_none(tpi_builder *builder);
void tpi_generate_bulk(tpi_builder *builder);
void tpi_generate_ring(tpi_builder *builder);
void tpi_generate_pipeline(tpi_builder *builder);
void tpi_generate_pull(tpi_builder *builder);
void tpi_generate_direct(tpi_builder *builder);

#endif
