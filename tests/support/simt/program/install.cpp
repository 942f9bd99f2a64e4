// A program linked with this file has the emulated devices "cuda:0" and "cuda:1" from its start.
#include "support/simt/device.h"

namespace {
const bool installed = (weft::cuda::simt::install(), true);
}
