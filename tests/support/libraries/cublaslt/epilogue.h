// Epilogues of cuBLASLt: their bits, those that are emulated, and the functions that they apply.
#pragma once

#include <cublasLt.h>

#include <cmath>
#include <cstdint>

namespace weft::cuda::libraries {

// Bits of an epilogue; CUBLASLT_EPILOGUE_DEFAULT is one without meaning.
inline constexpr uint32_t kRelu = CUBLASLT_EPILOGUE_RELU, kBias = CUBLASLT_EPILOGUE_BIAS,
                          kGelu = CUBLASLT_EPILOGUE_GELU, kAux = CUBLASLT_EPILOGUE_GELU_AUX & ~kGelu,
                          kGeluGrad = CUBLASLT_EPILOGUE_DGELU & ~kAux,
                          kBiasGrad = CUBLASLT_EPILOGUE_DGELU_BGRAD & ~CUBLASLT_EPILOGUE_DGELU,
                          kSumsOfA = CUBLASLT_EPILOGUE_BGRADA, kSumsOfB = CUBLASLT_EPILOGUE_BGRADB;
inline bool has(uint32_t epilogue, uint32_t bits) { return (epilogue & bits) != 0; }
/// Whether it writes sums to the place of a bias.
inline bool has_sums(uint32_t epilogue) { return has(epilogue, kBiasGrad | kSumsOfA | kSumsOfB); }
inline bool is_emulated(uint32_t epilogue) {
  switch (epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_RELU:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
    case CUBLASLT_EPILOGUE_DGELU_BGRAD:
    case CUBLASLT_EPILOGUE_BGRADA:
    case CUBLASLT_EPILOGUE_BGRADB: return true;
    default: return false;
  }
}
// The tanh form of gelu, and its slope.
inline double inner(double x) { return std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x); }
inline double gelu(double x) { return 0.5 * x * (1 + std::tanh(inner(x))); }
inline double gelu_slope(double x) {
  const double t = std::tanh(inner(x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

}  // namespace weft::cuda::libraries
