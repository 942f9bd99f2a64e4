// Everything of weft::distributed: RPC, remote references, distributed autograd, distributed optimizers, and spawning a group.
#pragma once

#include <weft/distributed/dist_autograd.h>
#include <weft/distributed/dist_optimizer.h>
#include <weft/distributed/fields.h>
#include <weft/distributed/launch.h>
#include <weft/distributed/remote_module.h>
#include <weft/distributed/rpc.h>
#include <weft/distributed/rref.h>
#include <weft/distributed/spawn.h>
#include <weft/weft.h>
