// Everything of weft::distributed: RPC, remote references, distributed autograd, distributed optimizers,
// collectives and data parallel training, spawning a group, and stores.
#pragma once

#include <weft/distributed/autograd/dist_autograd.h>
#include <weft/distributed/autograd/edge_codec.h>
#include <weft/distributed/collectives/data_parallel.h>
#include <weft/distributed/collectives/process_group.h>
#include <weft/distributed/launch/group.h>
#include <weft/distributed/launch/launch.h>
#include <weft/distributed/launch/membership.h>
#include <weft/distributed/launch/spawn.h>
#include <weft/distributed/launch/store_etcd.h>
#include <weft/distributed/launch/store_service.h>
#include <weft/distributed/launch/wait_signal.h>
#include <weft/distributed/optim/dist_checkpoint.h>
#include <weft/distributed/optim/dist_optimizer.h>
#include <weft/distributed/rpc/batched.h>
#include <weft/distributed/rpc/broadcast.h>
#include <weft/distributed/rpc/result_dropped.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/rpc/served_errors.h>
#include <weft/distributed/rpc/step_errors.h>
#include <weft/distributed/rpc/trace.h>
#include <weft/distributed/rref/recreatable.h>
#include <weft/distributed/rref/remote_module.h>
#include <weft/distributed/rref/rref.h>
#include <weft/distributed/wire/fields.h>
#include <weft/weft.h>
