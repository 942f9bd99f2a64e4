// Initialisation of parameters. Each function writes in place without recording, draws from the given
// generator or default_generator(), and returns its argument. Fans: the first dim is `out`, the second `in`;
// the sizes of further dims multiply both.
//   nn::init::xavier_uniform_(layer.weight);
// Each function throws DTypeError for integers and for numbers that the dtype cannot hold. It throws
// ValueError for memory given as const. Functions that use fans throw as fan() does.
#pragma once

#include <utility>

#include <weft/tensor/generator.h>
#include <weft/tensor/tensor.h>

namespace weft::nn::init {

/// U(low, high). Throws: ValueError if low > high or one of them is not finite.
WEFT_API Tensor uniform_(Tensor t, double low = 0, double high = 1, Generator* generator = nullptr);
/// N(mean, stddev^2). Throws: ValueError for a negative stddev, and for numbers that are not finite.
WEFT_API Tensor normal_(Tensor t, double mean = 0, double stddev = 1, Generator* generator = nullptr);
/// One value for all elements.
WEFT_API Tensor constant_(Tensor t, double value);
inline Tensor zeros_(Tensor t) { return constant_(std::move(t), 0); }
inline Tensor ones_(Tensor t) { return constant_(std::move(t), 1); }
/// U(-a, a), a = gain * sqrt(6 / (in + out)). Source: Glorot & Bengio 2010, eq. 16.
WEFT_API Tensor xavier_uniform_(Tensor t, double gain = 1, Generator* generator = nullptr);
/// N(0, gain^2 * 2 / (in + out)).
WEFT_API Tensor xavier_normal_(Tensor t, double gain = 1, Generator* generator = nullptr);
/// U(-b, b), b = sqrt(6 / ((1 + slope^2) * in)). Source: He et al. 2015, eq. 10 with leaky slope.
WEFT_API Tensor kaiming_uniform_(Tensor t, double slope = 0, Generator* generator = nullptr);
/// N(0, 2 / ((1 + slope^2) * in)).
WEFT_API Tensor kaiming_normal_(Tensor t, double slope = 0, Generator* generator = nullptr);
/// An orthogonal matrix times gain: its rows are orthonormal, or its columns if there are fewer of them.
/// Shape: [out, ..], flattened to two dims. Throws: ShapeError for fewer than two dims.
WEFT_API Tensor orthogonal_(Tensor t, double gain = 1, Generator* generator = nullptr);

/// Number of inputs and outputs of a unit.
struct Fan {
  int64_t in, out;
};
/// Throws: ShapeError for fewer than two dims.
WEFT_API Fan fan(const Tensor& t);

}  // namespace weft::nn::init
