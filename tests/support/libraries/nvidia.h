// NVIDIA's headers for tests that call the emulated libraries themselves.
#pragma once

#include <cublasLt.h>
#include <cudnn.h>
