// CUDA devices beyond tensors: streams, events, graphs, memory, and how the backend computes. Part of
// weft::core; a program that includes it runs on machines without a GPU too.
#pragma once

#include <weft/tensor/cuda.h>
