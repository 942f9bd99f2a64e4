// The methods of Tensor that call the free function of the same name (ops.h), in the order of tensor.h.
// In-place methods are in inplace.cpp, methods for gradients in tape/tensor_grad.cpp.
#include <weft/autograd/ops/ops.h>
#include <weft/autograd/ops/ops_order.h>
#include <weft/tensor/index.h>
#include <weft/tensor/inner/launch.h>

namespace weft {

// ---- views
Tensor Tensor::view(const Shape& sizes) const { return weft::view(*this, sizes); }
Tensor Tensor::reshape(const Shape& sizes) const { return weft::reshape(*this, sizes); }
Tensor Tensor::flatten(Whole start, Whole end) const { return weft::flatten(*this, start, end); }
Tensor Tensor::t() const {
  launch::check_defined("t", *this);
  if (dim() > 2) throw ShapeError(str("t: takes at most two dims, got ", sizes()));
  return dim() < 2 ? *this : weft::transpose(*this, 0, 1);
}
Tensor Tensor::transpose(int64_t d0, int64_t d1) const { return weft::transpose(*this, d0, d1); }
Tensor Tensor::permute(const Shape& dims) const { return weft::permute(*this, dims); }
Tensor Tensor::expand(const Shape& sizes) const { return weft::expand(*this, sizes); }
Tensor Tensor::squeeze() const { return weft::squeeze(*this); }
Tensor Tensor::squeeze(Whole d) const { return weft::squeeze(*this, d); }
Tensor Tensor::unsqueeze(Whole d) const { return weft::unsqueeze(*this, d); }
Tensor Tensor::narrow(Whole d, Whole start, Whole length) const {
  return weft::narrow(*this, d, start, length);
}
Tensor Tensor::select(Whole d, Whole index) const { return weft::select(*this, d, index); }
Tensor Tensor::slice(Whole d, Whole start, Whole end, Whole step) const {
  return weft::slice(*this, d, start, end, step);
}
Tensor Tensor::as_strided(const Shape& sizes, const Shape& strides, int64_t offset) const {
  return weft::as_strided(*this, sizes, strides, offset);
}
Tensor Tensor::diagonal(Whole offset, int64_t d0, int64_t d1) const {
  return weft::diagonal(*this, offset, d0, d1);
}
std::vector<Tensor> Tensor::split(int64_t length, Whole d) const { return weft::split(*this, length, d); }
std::vector<Tensor> Tensor::split(const Shape& lengths, Whole d) const {
  return weft::split(*this, lengths, d);
}
std::vector<Tensor> Tensor::chunk(Whole parts, Whole d) const { return weft::chunk(*this, parts, d); }
std::vector<Tensor> Tensor::unbind(Whole d) const { return weft::unbind(*this, d); }

// ---- copies and conversions
Tensor Tensor::contiguous() const { return weft::contiguous(*this); }
Tensor Tensor::clone() const { return weft::clone(*this); }
Tensor Tensor::to(DType dtype) const { return weft::to(*this, dtype); }
Tensor Tensor::to(Device device, bool non_blocking) const { return weft::to(*this, device, non_blocking); }
Tensor Tensor::to(Device device, DType dtype, bool non_blocking) const {
  return weft::to(*this, device, dtype, non_blocking);
}

// ---- pointwise
#define WEFT_METHOD(name) \
  Tensor Tensor::name() const { return weft::name(*this); }
#define WEFT_METHOD_OF_TENSOR(name) \
  Tensor Tensor::name(const Tensor& other) const { return weft::name(*this, other); }
#define WEFT_METHOD_OF_EITHER(name) \
  WEFT_METHOD_OF_TENSOR(name)       \
  Tensor Tensor::name(Scalar other) const { return weft::name(*this, other); }

Tensor Tensor::add(const Tensor& other, Scalar alpha) const { return weft::add(*this, other, alpha); }
Tensor Tensor::add(Scalar other) const { return weft::add(*this, other); }
Tensor Tensor::sub(const Tensor& other, Scalar alpha) const { return weft::sub(*this, other, alpha); }
Tensor Tensor::sub(Scalar other) const { return weft::sub(*this, other); }
WEFT_METHOD_OF_EITHER(mul)
WEFT_METHOD_OF_EITHER(div)
WEFT_METHOD_OF_EITHER(pow)
WEFT_METHOD_OF_EITHER(remainder)
WEFT_METHOD_OF_EITHER(fmod)
WEFT_METHOD_OF_EITHER(floor_divide)
WEFT_METHOD_OF_EITHER(maximum)
WEFT_METHOD_OF_EITHER(minimum)
WEFT_METHOD_OF_EITHER(eq)
WEFT_METHOD_OF_EITHER(ne)
WEFT_METHOD_OF_EITHER(lt)
WEFT_METHOD_OF_EITHER(le)
WEFT_METHOD_OF_EITHER(gt)
WEFT_METHOD_OF_EITHER(ge)
WEFT_METHOD_OF_EITHER(bitwise_and)
WEFT_METHOD_OF_EITHER(bitwise_or)
WEFT_METHOD_OF_EITHER(bitwise_xor)
WEFT_METHOD_OF_TENSOR(atan2)
WEFT_METHOD_OF_TENSOR(logical_and)
WEFT_METHOD_OF_TENSOR(logical_or)
WEFT_METHOD_OF_TENSOR(logical_xor)
WEFT_METHOD(neg)
WEFT_METHOD(abs)
WEFT_METHOD(sign)
WEFT_METHOD(square)
WEFT_METHOD(sqrt)
WEFT_METHOD(rsqrt)
WEFT_METHOD(reciprocal)
WEFT_METHOD(exp)
WEFT_METHOD(expm1)
WEFT_METHOD(log)
WEFT_METHOD(log1p)
WEFT_METHOD(log2)
WEFT_METHOD(erf)
WEFT_METHOD(sin)
WEFT_METHOD(cos)
WEFT_METHOD(tan)
WEFT_METHOD(tanh)
WEFT_METHOD(sigmoid)
WEFT_METHOD(relu)
WEFT_METHOD(floor)
WEFT_METHOD(ceil)
WEFT_METHOD(round)
WEFT_METHOD(trunc)
WEFT_METHOD(logical_not)
WEFT_METHOD(bitwise_not)
WEFT_METHOD(isnan)
WEFT_METHOD(isinf)
WEFT_METHOD(isfinite)
Tensor Tensor::nan_to_num(Scalar nan, std::optional<Scalar> posinf, std::optional<Scalar> neginf) const {
  return weft::nan_to_num(*this, nan, posinf, neginf);
}
Tensor Tensor::max(const Tensor& other) const { return weft::maximum(*this, other); }
Tensor Tensor::min(const Tensor& other) const { return weft::minimum(*this, other); }
Tensor Tensor::clamp(std::optional<Scalar> low, std::optional<Scalar> high) const {
  return weft::clamp(*this, low, high);
}
Tensor Tensor::clamp(const Tensor& low, const Tensor& high) const { return weft::clamp(*this, low, high); }
Tensor Tensor::where(const Tensor& condition, const Tensor& other) const {
  return weft::where(condition, *this, other);
}
Tensor Tensor::where(const Tensor& condition, Scalar other) const {
  return weft::where(condition, *this, other);
}
Tensor Tensor::masked_fill(const Tensor& mask, Scalar value) const {
  return weft::masked_fill(*this, mask, value);
}
Tensor Tensor::addcmul(const Tensor& a, const Tensor& b, Scalar value) const {
  return weft::addcmul(*this, a, b, value);
}
Tensor Tensor::addcdiv(const Tensor& a, const Tensor& b, Scalar value) const {
  return weft::addcdiv(*this, a, b, value);
}
Tensor Tensor::lerp(const Tensor& end, const Tensor& weight) const { return weft::lerp(*this, end, weight); }
Tensor Tensor::lerp(const Tensor& end, Scalar weight) const { return weft::lerp(*this, end, weight); }
bool Tensor::allclose(const Tensor& other, double rtol, double atol) const {
  return weft::allclose(*this, other, rtol, atol);
}
bool Tensor::equal(const Tensor& other) const { return weft::equal(*this, other); }

// ---- reductions
#define WEFT_REDUCTION(name) \
  WEFT_METHOD(name)          \
  Tensor Tensor::name(const Shape& dims, Flag keepdim) const { return weft::name(*this, dims, keepdim); }
#define WEFT_REDUCTION_OF_DIM(Result, name) \
  WEFT_METHOD(name)                         \
  Result Tensor::name(Whole d, Flag keepdim) const { return weft::name(*this, d, keepdim); }
WEFT_REDUCTION(sum)
Tensor Tensor::sum_to(const Shape& sizes) const { return weft::sum_to(*this, sizes); }
WEFT_REDUCTION(mean)
WEFT_REDUCTION(any)
WEFT_REDUCTION(all)
WEFT_REDUCTION_OF_DIM(Tensor, prod)
WEFT_REDUCTION_OF_DIM(MaxResult, max)
WEFT_REDUCTION_OF_DIM(MaxResult, min)
WEFT_REDUCTION_OF_DIM(MaxResult, median)
WEFT_REDUCTION_OF_DIM(Tensor, argmax)
WEFT_REDUCTION_OF_DIM(Tensor, argmin)
WEFT_METHOD(var)
WEFT_METHOD(std)
Tensor Tensor::amax(const Shape& dims, Flag keepdim) const { return weft::amax(*this, dims, keepdim); }
Tensor Tensor::amin(const Shape& dims, Flag keepdim) const { return weft::amin(*this, dims, keepdim); }
Tensor Tensor::var(const Shape& dims, double correction, Flag keepdim) const {
  return weft::var(*this, dims, correction, keepdim);
}
Tensor Tensor::std(const Shape& dims, double correction, Flag keepdim) const {
  return weft::std(*this, dims, correction, keepdim);
}
Tensor Tensor::norm(double p) const { return weft::norm(*this, p); }
Tensor Tensor::norm(double p, const Shape& dims, Flag keepdim) const {
  return weft::norm(*this, p, dims, keepdim);
}
Tensor Tensor::logsumexp(Whole d, Flag keepdim) const { return weft::logsumexp(*this, d, keepdim); }
Tensor Tensor::cumsum(Whole d) const { return weft::cumsum(*this, d); }
Tensor Tensor::cumprod(Whole d) const { return weft::cumprod(*this, d); }
Tensor Tensor::softmax(Whole d) const { return weft::softmax(*this, d); }
Tensor Tensor::log_softmax(Whole d) const { return weft::log_softmax(*this, d); }

// ---- matrix products
WEFT_METHOD_OF_TENSOR(matmul)
WEFT_METHOD_OF_TENSOR(mm)
WEFT_METHOD_OF_TENSOR(bmm)
WEFT_METHOD_OF_TENSOR(mv)
WEFT_METHOD_OF_TENSOR(dot)
WEFT_METHOD_OF_TENSOR(outer)
Tensor Tensor::addmm(const Tensor& a, const Tensor& b, Scalar beta, Scalar alpha) const {
  return weft::addmm(*this, a, b, beta, alpha);
}

// ---- indexing and arrangements
Tensor Tensor::index_put(const std::vector<TensorIndex>& at, const Tensor& values, bool accumulate) const {
  return weft::index_put(*this, at, values, accumulate);
}
Tensor Tensor::masked_scatter(const Tensor& mask, const Tensor& source) const {
  return weft::masked_scatter(*this, mask, source);
}
Tensor Tensor::index_select(Whole d, const Tensor& index) const {
  return weft::index_select(*this, d, index);
}
Tensor Tensor::gather(Whole d, const Tensor& index) const { return weft::gather(*this, d, index); }
Tensor Tensor::scatter(Whole d, const Tensor& index, const Tensor& src) const {
  return weft::scatter(*this, d, index, src);
}
Tensor Tensor::scatter(Whole d, const Tensor& index, Scalar value) const {
  return weft::scatter(*this, d, index, value);
}
Tensor Tensor::scatter_add(Whole d, const Tensor& index, const Tensor& src) const {
  return weft::scatter_add(*this, d, index, src);
}
Tensor Tensor::index_add(Whole d, const Tensor& index, const Tensor& src) const {
  return weft::index_add(*this, d, index, src);
}
Tensor Tensor::scatter_reduce(Whole d, const Tensor& index, const Tensor& src, ScatterReduce reduce,
                              bool include_self) const {
  return weft::scatter_reduce(*this, d, index, src, reduce, include_self);
}
Tensor Tensor::take_along(const Tensor& index, Whole d) const { return weft::take_along(*this, index, d); }
Tensor Tensor::masked_select(const Tensor& mask) const { return weft::masked_select(*this, mask); }
Tensor Tensor::nonzero() const { return weft::nonzero(*this); }
MaxResult Tensor::sort(Whole d, Flag descending) const { return weft::sort(*this, d, descending); }
Tensor Tensor::argsort(Whole d, Flag descending) const { return weft::argsort(*this, d, descending); }
UniqueResult Tensor::unique() const { return weft::unique(*this); }
UniqueResult Tensor::unique(const UniqueOptions& options) const { return weft::unique(*this, options); }
Tensor Tensor::bincount(const Tensor& weights, Whole minlength) const {
  return weft::bincount(*this, weights, minlength);
}
Tensor Tensor::repeat_interleave(Whole repeats, std::optional<int64_t> d) const {
  return weft::repeat_interleave(*this, repeats, d);
}
Tensor Tensor::repeat_interleave(const Tensor& repeats, std::optional<int64_t> d) const {
  return weft::repeat_interleave(*this, repeats, d);
}
MaxResult Tensor::topk(Whole k, Whole d, Flag largest) const { return weft::topk(*this, k, d, largest); }
Tensor Tensor::repeat(const Shape& times) const { return weft::repeat(*this, times); }
Tensor Tensor::flip(const Shape& dims) const { return weft::flip(*this, dims); }
Tensor Tensor::roll(Whole shift) const { return weft::roll(*this, shift); }
Tensor Tensor::roll(Whole shift, Whole d) const { return weft::roll(*this, shift, d); }
Tensor Tensor::tril(Whole k) const { return weft::tril(*this, k); }
Tensor Tensor::triu(Whole k) const { return weft::triu(*this, k); }
Tensor Tensor::diag(Whole k) const { return weft::diag(*this, k); }
Tensor Tensor::multinomial(Whole count, bool replacement, Generator* generator) const {
  return weft::multinomial(*this, count, replacement, generator);
}
Tensor Tensor::bernoulli(double p, Generator* generator) const {
  launch::check_defined("bernoulli", *this);
  return weft::bernoulli(full({}, p, {.device = device()}).expand(sizes()), generator).to(dtype());
}
Tensor Tensor::bernoulli(Generator* generator) const { return weft::bernoulli(*this, generator); }

#undef WEFT_METHOD
#undef WEFT_METHOD_OF_TENSOR
#undef WEFT_METHOD_OF_EITHER
#undef WEFT_REDUCTION
#undef WEFT_REDUCTION_OF_DIM

}  // namespace weft
