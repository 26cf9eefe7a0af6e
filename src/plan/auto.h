/* What the files of the automatic choice share. */
#ifndef TPI_AUTO_H
#define TPI_AUTO_H

#include <tp/auto.h>

/* TP_ERR_ARGUMENT names the field. */
tp_status tpi_overlap_check_shape(const tp_overlap_shape *shape);

/* Two layers' input and weight gradients together. */
bool tpi_overlap_is_chain_backward(tp_pattern pattern);

#endif
