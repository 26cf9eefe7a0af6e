/* Communication of a dry run. */
#ifndef TPI_COMM_DRY_H
#define TPI_COMM_DRY_H

#include "comm/fabric.h"

/* In place of the backend's. */
extern const tpi_fabric tpi_fabric_dry;

#endif
