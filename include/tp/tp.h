/* All of tp. */
#ifndef TP_TP_H
#define TP_TP_H

#include <tp/attention.h>
#include <tp/auto.h>
#include <tp/block.h>
#include <tp/comm.h>
#include <tp/context.h>
#include <tp/data.h>
#include <tp/device.h>
#include <tp/dtype.h>
#include <tp/embedding.h>
#include <tp/export.h>
#include <tp/graph.h>
#include <tp/io.h>
#include <tp/linear.h>
#include <tp/loss.h>
#include <tp/mesh.h>
#include <tp/mlp.h>
#include <tp/model.h>
#include <tp/module.h>
#include <tp/norm.h>
#include <tp/optimizer.h>
#include <tp/overlap.h>
#include <tp/param.h>
#include <tp/pass.h>
#include <tp/plan.h>
#include <tp/random.h>
#include <tp/shard.h>
#include <tp/simulate.h>
#include <tp/status.h>
#include <tp/tensor.h>
#include <tp/trace.h>
#include <tp/trainer.h>

#endif
