// Everything of weft::distributed: RPC, remote references, distributed autograd, distributed optimizers.
#pragma once
