/* All of tp. */
#ifndef TP_TP_H
#define TP_TP_H

#include <tp/comm.h>
#include <tp/context.h>
#include <tp/dtype.h>
#include <tp/export.h>
#include <tp/mesh.h>
#include <tp/param.h>
#include <tp/pass.h>
#include <tp/random.h>
#include <tp/shard.h>
#include <tp/status.h>
#include <tp/tensor.h>

#endif
